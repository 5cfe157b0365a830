"""Answers about one model: inspect and compare, reports, the explorer, the command line."""

"""Sloppiness and the hyper-ribbon of linear models."""

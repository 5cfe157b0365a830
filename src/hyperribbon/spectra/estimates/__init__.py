"""Traces and densities from random probes."""

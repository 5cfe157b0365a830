"""Closed forms of the source papers: one module a paper, numpy and scipy only."""

from hyperribbon.theory import fluctuations, linear_networks, ribbons

__all__ = ["fluctuations", "linear_networks", "ribbons"]

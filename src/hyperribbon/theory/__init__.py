"""Closed forms of the source papers: one module per paper, numpy and scipy only."""

from hyperribbon.theory import fluctuations, gradient_flow, linear_networks, meanfield, ribbons

__all__ = ["fluctuations", "gradient_flow", "linear_networks", "meanfield", "ribbons"]

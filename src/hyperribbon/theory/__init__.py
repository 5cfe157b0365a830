"""Closed forms of the source papers: one module a paper, numpy and scipy only."""

from hyperribbon.theory import ribbons

__all__ = ["ribbons"]

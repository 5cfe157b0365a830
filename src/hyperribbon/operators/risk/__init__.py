"""The empirical risk: a model, a loss and data as one function of a vector of weights."""

from hyperribbon.operators.risk.risk import Chunk, Risk

__all__ = ["Chunk", "Risk"]

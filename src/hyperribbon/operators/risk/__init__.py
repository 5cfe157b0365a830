"""The empirical risk: a model, a loss and data as one function of a vector of weights."""

from hyperribbon.operators.risk.chunks import Chunk
from hyperribbon.operators.risk.empirical import Risk

__all__ = ["Chunk", "Risk"]

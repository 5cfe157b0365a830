"""The empirical risk: a model, a loss and data as one function of a vector of weights."""

from hyperribbon.operators.risk.empirical import Risk
from hyperribbon.operators.risk.evaluation import Chunk

__all__ = ["Chunk", "Risk"]

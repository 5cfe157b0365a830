"""Likelihoods of a Fisher matrix: information, its root, and scores of drawn or given targets."""

from hyperribbon.operators.risk.likelihoods.base import Likelihood
from hyperribbon.operators.risk.likelihoods.categorical import Categorical
from hyperribbon.operators.risk.likelihoods.distributions import (
    Bernoulli,
    FromDistribution,
    Laplace,
    Poisson,
    StudentT,
)
from hyperribbon.operators.risk.likelihoods.normal import Gaussian

__all__ = [
    "Bernoulli",
    "Categorical",
    "FromDistribution",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "Poisson",
    "StudentT",
]

"""Curvature matrices of a model, known by their products: Hessian, GGN, Fisher, Jacobian, NTK."""

from hyperribbon.operators.fisher import Fisher
from hyperribbon.operators.ggn import GGN
from hyperribbon.operators.gradient_covariance import GradientCovariance
from hyperribbon.operators.hessian import Hessian
from hyperribbon.operators.jacobian_and_ntk import NTK, Jacobian
from hyperribbon.operators.linear_operator import Cost, LinearOperator
from hyperribbon.operators.restriction_and_rescaling import Projected, Rescaled, Restricted
from hyperribbon.operators.risk import Risk
from hyperribbon.operators.risk.likelihoods import (
    Bernoulli,
    Categorical,
    FromDistribution,
    Gaussian,
    Laplace,
    Likelihood,
    Poisson,
    StudentT,
)
from hyperribbon.operators.risk.private_copy import unsharded, unwrapped

__all__ = [
    "Bernoulli",
    "Categorical",
    "Cost",
    "Fisher",
    "FromDistribution",
    "GGN",
    "Gaussian",
    "GradientCovariance",
    "Hessian",
    "Jacobian",
    "Laplace",
    "Likelihood",
    "LinearOperator",
    "NTK",
    "Poisson",
    "Projected",
    "Rescaled",
    "Restricted",
    "Risk",
    "StudentT",
    "unsharded",
    "unwrapped",
]

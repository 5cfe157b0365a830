"""Parameters, generators, checks, result types, trajectories, the store and data sets."""

from hyperribbon.core.checks import ArgumentError, MissingExtraError
from hyperribbon.core.claims import Band, Claim
from hyperribbon.core.generators import derive_seed, numpy_generator, torch_generator
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter, ParameterSpace
from hyperribbon.core.results import Density, Estimate, Spectrum

__all__ = [
    "ArgumentError",
    "Band",
    "Claim",
    "Density",
    "Estimate",
    "Mask",
    "MissingExtraError",
    "ParameterFilter",
    "ParameterSpace",
    "Spectrum",
    "derive_seed",
    "numpy_generator",
    "torch_generator",
]

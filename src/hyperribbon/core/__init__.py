"""Parameters, generators, checks, result types, trajectories, the store and data sets.

Names load on first use, so the command line avoids importing torch where it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperribbon.core.lazy import lazy_attributes

if TYPE_CHECKING:
    from hyperribbon.core.checks import ArgumentError, MissingExtraError
    from hyperribbon.core.claims import Band, Claim
    from hyperribbon.core.generators import derive_seed, numpy_generator, torch_generator
    from hyperribbon.core.mask import Mask
    from hyperribbon.core.parameters import ParameterFilter, ParameterSpace
    from hyperribbon.core.result import Result
    from hyperribbon.core.spectral_results import Density, Estimate, Spectrum

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
    "Result",
    "Spectrum",
    "derive_seed",
    "numpy_generator",
    "torch_generator",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__)

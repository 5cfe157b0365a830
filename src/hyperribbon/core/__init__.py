"""Parameters, generators, checks, result types, trajectories, the store and data sets.

Names load on first use, so that the command line answers without torch where it can.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_NAMES_BY_MODULE = {
    "checks": ("ArgumentError", "MissingExtraError"),
    "claims": ("Band", "Claim"),
    "generators": ("derive_seed", "numpy_generator", "torch_generator"),
    "mask": ("Mask",),
    "parameters": ("ParameterFilter", "ParameterSpace"),
    "results": ("Density", "Estimate", "Spectrum"),
}
_HOMES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

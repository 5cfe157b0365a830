"""hyperribbon: the geometry of a neural network's training, measured and predicted.

Public names load on first use, so that `import hyperribbon` costs little more than `import torch`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_NAMES_BY_MODULE = {
    "core": ("ArgumentError", "Band", "Claim", "Density", "Estimate", "Mask", "Spectrum"),
    "core.data": ("load_data",),
    "core.trajectory": ("Trajectory",),
    "operators": ("Hessian", "GGN", "Fisher", "GradientCovariance", "Jacobian", "NTK"),
    "spectra": (
        "eigsh",
        "trace",
        "density",
        "diagonal",
        "frobenius",
        "plan",
        "summarize",
        "alignment",
        "track",
    ),
    "manifold": ("InPCA", "PCA", "bhattacharyya"),
    "subnetworks": (
        "select",
        "prune",
        "reinitialize",
        "rerandomize",
        "overlap_ratio",
        "layer_criticality",
        "find_ticket",
    ),
    "noise": ("stationary_covariance", "weight_covariance", "variance_flatness"),
    "training": ("Recorder", "train", "train_ensemble"),
    "inspection": ("inspect", "compare_with_theory"),
    "experiments": ("sweep",),
}
_ROOMS = (
    "core",
    "operators",
    "theory",
    "training",
    "manifold",
    "subnetworks",
    "spectra",
    "noise",
    "plots",
    "inspection",
    "experiments",
    "report",
)
_HOMES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = ["__version__", *_HOMES, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

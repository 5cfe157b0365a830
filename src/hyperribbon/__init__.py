"""hyperribbon: the geometry of a neural network's training, measured and predicted.

Public names load on first use, so that `import hyperribbon` costs little more than `import torch`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperribbon import (
        core,
        manifold,
        noise,
        operators,
        plots,
        prediction,
        recording,
        spectra,
        subnetworks,
        theory,
    )
    from hyperribbon.application import inspection, report
    from hyperribbon.application.explorer import explore
    from hyperribbon.application.inspection import compare, compare_with_theory, inspect
    from hyperribbon.core import ArgumentError, Band, Claim, Density, Estimate, Mask, Spectrum
    from hyperribbon.core.data import load_data
    from hyperribbon.manifold import (
        PCA,
        InPCA,
        Streaming,
        Trajectories,
        bhattacharyya,
        stream_inpca,
    )
    from hyperribbon.noise import (
        fluctuations,
        stationary_covariance,
        variance_flatness,
        weight_covariance,
    )
    from hyperribbon.operators import GGN, NTK, Fisher, GradientCovariance, Hessian, Jacobian, Risk
    from hyperribbon.papers import experiments, simulation, training
    from hyperribbon.papers.experiments import sweep
    from hyperribbon.papers.training import train, train_ensemble
    from hyperribbon.prediction import predict_manifold, predict_sharpness
    from hyperribbon.recording import Recorder, Trajectory
    from hyperribbon.spectra import (
        Tracker,
        alignment,
        batch_sharpness,
        density,
        diagonal,
        eigsh,
        frobenius,
        layer_curvature,
        plan,
        summarize,
        trace,
        track,
    )
    from hyperribbon.subnetworks import (
        find_ticket,
        layer_criticality,
        overlap_ratio,
        prunable,
        prune,
        reinitialize,
        rerandomize,
        select,
        shrink,
    )

__version__ = "0.1.0"

_NAMES_BY_MODULE = {
    "core": ("ArgumentError", "Band", "Claim", "Density", "Estimate", "Mask", "Spectrum"),
    "core.data": ("load_data",),
    "operators": ("Risk", "Hessian", "GGN", "Fisher", "GradientCovariance", "Jacobian", "NTK"),
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
        "Tracker",
        "batch_sharpness",
        "layer_curvature",
    ),
    "manifold": ("InPCA", "PCA", "Streaming", "Trajectories", "bhattacharyya", "stream_inpca"),
    "subnetworks": (
        "select",
        "prunable",
        "prune",
        "reinitialize",
        "rerandomize",
        "overlap_ratio",
        "layer_criticality",
        "find_ticket",
        "shrink",
    ),
    "noise": ("fluctuations", "stationary_covariance", "weight_covariance", "variance_flatness"),
    "prediction": ("predict_manifold", "predict_sharpness"),
    "recording": ("Recorder", "Trajectory"),
    "papers.training": ("train", "train_ensemble"),
    "application.inspection": ("inspect", "compare", "compare_with_theory"),
    "papers.experiments": ("sweep",),
    "application.explorer": ("explore",),
}
_LAYERS = {
    "application": ("inspection", "report"),
    "papers": ("experiments", "simulation", "training"),
}
_ROOMS = {m.name: m.name for m in iter_modules(__path__) if m.ispkg and m.name not in _LAYERS}
_ROOMS |= {room: f"{layer}.{room}" for layer, rooms in _LAYERS.items() for room in rooms}
_HOMES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = ["__version__", *_HOMES, *_ROOMS]  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # type checkers read the imports above, and report any other name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
            globals()[name] = value
            return value
        if name in _ROOMS:
            return import_module(f"{__name__}.{_ROOMS[name]}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

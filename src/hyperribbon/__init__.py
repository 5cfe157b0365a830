"""hyperribbon: the geometry of a neural network's training, measured and predicted.

Public names load on first use, so that `import hyperribbon` costs little more than `import torch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperribbon.core.lazy import lazy_attributes

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

if not TYPE_CHECKING:  # type checkers read the imports above, and report any other name
    __getattr__, __dir__ = lazy_attributes(__name__)
    __all__ = ["__version__", *__dir__()]

"""hyperribbon: the geometry of a neural network's training, measured and predicted.

Public names load on first use, so that `import hyperribbon` costs little more than `import torch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperribbon.core.lazy import lazy_attributes

if TYPE_CHECKING:  # `as` exports a name to type checkers
    from hyperribbon import (
        core as core,
        manifold as manifold,
        noise as noise,
        operators as operators,
        plots as plots,
        prediction as prediction,
        recording as recording,
        spectra as spectra,
        subnetworks as subnetworks,
        theory as theory,
    )
    from hyperribbon.application import inspection as inspection, report as report
    from hyperribbon.application.explorer import explore as explore
    from hyperribbon.application.inspection import (
        compare as compare,
        compare_with_theory as compare_with_theory,
        inspect as inspect,
    )
    from hyperribbon.core import (
        ArgumentError as ArgumentError,
        Band as Band,
        Claim as Claim,
        Density as Density,
        Estimate as Estimate,
        Mask as Mask,
        Spectrum as Spectrum,
    )
    from hyperribbon.core.data import load_data as load_data
    from hyperribbon.manifold import (
        PCA as PCA,
        InPCA as InPCA,
        Streaming as Streaming,
        Trajectories as Trajectories,
        bhattacharyya as bhattacharyya,
        stream_inpca as stream_inpca,
    )
    from hyperribbon.noise import (
        fluctuations as fluctuations,
        stationary_covariance as stationary_covariance,
        variance_flatness as variance_flatness,
        weight_covariance as weight_covariance,
    )
    from hyperribbon.operators import (
        GGN as GGN,
        NTK as NTK,
        Fisher as Fisher,
        GradientCovariance as GradientCovariance,
        Hessian as Hessian,
        Jacobian as Jacobian,
        Risk as Risk,
    )
    from hyperribbon.papers import (
        experiments as experiments,
        simulation as simulation,
        training as training,
    )
    from hyperribbon.papers.experiments import sweep as sweep
    from hyperribbon.papers.training import train as train, train_ensemble as train_ensemble
    from hyperribbon.prediction import (
        predict_manifold as predict_manifold,
        predict_sharpness as predict_sharpness,
    )
    from hyperribbon.recording import Recorder as Recorder, Trajectory as Trajectory
    from hyperribbon.spectra import (
        Tracker as Tracker,
        alignment as alignment,
        batch_sharpness as batch_sharpness,
        density as density,
        diagonal as diagonal,
        eigsh as eigsh,
        frobenius as frobenius,
        layer_curvature as layer_curvature,
        plan as plan,
        summarize as summarize,
        trace as trace,
        track as track,
    )
    from hyperribbon.subnetworks import (
        find_ticket as find_ticket,
        layer_criticality as layer_criticality,
        overlap_ratio as overlap_ratio,
        prunable as prunable,
        prune as prune,
        reinitialize as reinitialize,
        rerandomize as rerandomize,
        select as select,
        shrink as shrink,
    )

__version__ = "0.1.0"

if not TYPE_CHECKING:  # type checkers read the imports above, and report other names
    __getattr__, __dir__ = lazy_attributes(__name__)
    __all__ = ["__version__", *__dir__()]

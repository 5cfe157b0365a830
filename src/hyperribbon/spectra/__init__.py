"""Eigenpairs, traces, densities and summaries of any operator with `.shape` and `@`."""

from hyperribbon.spectra.by_layer_and_batch import (
    BatchSharpness,
    LayerCurvature,
    batch_sharpness,
    layer_curvature,
)
from hyperribbon.spectra.eigensolvers import eigsh
from hyperribbon.spectra.estimates.estimators import DiagonalEstimate, diagonal, frobenius, trace
from hyperribbon.spectra.estimates.quadrature import density
from hyperribbon.spectra.planning import Plan, Route, plan
from hyperribbon.spectra.products import StoppedError
from hyperribbon.spectra.subspaces import Alignment, alignment
from hyperribbon.spectra.summaries import Summary, effective_rank, summarize
from hyperribbon.spectra.tracking import Tracker, track

__all__ = [
    "Alignment",
    "BatchSharpness",
    "DiagonalEstimate",
    "LayerCurvature",
    "Plan",
    "Route",
    "StoppedError",
    "Summary",
    "Tracker",
    "alignment",
    "batch_sharpness",
    "density",
    "diagonal",
    "effective_rank",
    "eigsh",
    "frobenius",
    "layer_curvature",
    "plan",
    "summarize",
    "trace",
    "track",
]

"""Rounding-error bounds for distances between nearly identical models."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.manifold.predictions import Predictions
from hyperribbon.manifold.stored_tiles import TileRule, rows_in_a_block
from hyperribbon.manifold.tiles import PRECISIONS

_UNIT = float(np.finfo(float).eps) / 2


def rounding_of_centred(
    shape: tuple[int, ...], squares: float, *, entries: float = 0.0, relative: float = _UNIT
) -> float:
    """Return a rounding-error bound on ‖W‖_F of centred distances.

    Distances that are off by `entries` each and by `relative` of themselves, centred by three means
    of n numbers, with weights r that sum to n:

        ‖ΔW‖_F ≤ ½ (n·entries + (relative + (samples + 4n)·u) √(Σ r_i r_j D_ij²)),

    u the unit of rounding in float64. For R^½ W R^½, centring is an orthogonal projection, which
    lengthens nothing.

    Args:
        shape: (models, samples, classes), or (models, models) of distances that were given.
        squares: Σ r_i r_j D_ij².
        entries: Absolute error of a distance.
        relative: Relative error of a distance.
    """
    count = shape[0]
    samples = shape[1] if len(shape) == 3 else 0
    relative += (samples + 4 * count) * _UNIT
    return (count * entries + relative * float(np.sqrt(squares))) / 2


def rounding_of_models(
    models: Any, weights: np.ndarray, rule: TileRule, squares: float, memory: float
) -> float:
    """Return a rounding-error bound on centred distances between predictions.

    With u the unit of the precision of the distances, an affinity Σ_c √p√q of c classes has two
    roots of numbers that were rounded once (3u; of logarithms, log c + 9 u), c products and sums
    (c u), and its place in a product of affinities (u). A distance is a mean of logarithms of
    such, so it is off by (c + log c + 10) u at most.

    Probabilities as they are given do not sum to one exactly. A mass m_u(s) moves all distances of
    a model by −½⟨log m_u⟩, which centring takes away again, but for the distance to itself, that is
    set to zero: ½ r_u |⟨log m_u⟩| is left of it. Masses are measured, not assumed.

    Args:
        models: (models, samples, classes), from `open_models`.
        weights: (models,), r, with the number of models as their sum.
        rule: How distances are taken.
        squares: Σ r_i r_j D_ij².
        memory: Memory limit in bytes.
    """
    classes = models.shape[2]
    unit = float(np.finfo(PRECISIONS[rule.precision].dtype).eps) / 2
    entries = (classes + np.log(classes) + 10) * unit
    masses = np.linalg.norm(weights * _log_masses(models, rule, memory))
    arithmetic = rounding_of_centred(models.shape, squares, entries=entries, relative=unit)
    return arithmetic + float(masses) / 2


def rounding_of_stress(norm: float, rounding: float) -> float:
    """Return a rounding-error bound on the explained stress.

    The stress that k directions leave is the distance of W to the nearest matrix of rank k over
    ‖W‖_F; both move by ‖ΔW‖_F at most.

    Args:
        norm: ‖W‖_F as computed, larger than its rounding.
        rounding: The bound on ‖ΔW‖_F.
    """
    return min(1.0, 2 * rounding / (norm - rounding))


def _log_masses(models: Any, rule: TileRule, memory: float) -> np.ndarray:
    """Return (models,) for a rounding bound: the mean log of what probabilities sum to."""
    if rule.floor is not None:  # they are divided by their sum, in their own type
        own = models.dtype if np.issubdtype(models.dtype, np.floating) else float
        return np.full(models.shape[0], (models.shape[2] + 1) * np.finfo(own).eps / 2)
    blocks = Predictions(models, rows_in_a_block(models.shape, rule, memory), 0)
    means = []
    for block in range(len(blocks)):
        part = np.asarray(blocks[block], dtype=np.float64)
        masses = (np.exp(part) if rule.log else part).sum(axis=2)
        means.append(np.log(masses).mean(axis=1))
    return np.concatenate(means)

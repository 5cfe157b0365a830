"""Explained stress of an embedding, and its estimate from landmarks."""

from __future__ import annotations

from typing import Annotated as Float

import numpy as np
import scipy.linalg

from hyperribbon.core.checks import ArgumentError, check_shape, matrix, row, square, validate
from hyperribbon.core.generators import numpy_generator
from hyperribbon.manifold.rounding import rounding_of_centred

_GROUPS = 16


def stress_of_all(
    distances: np.ndarray, weights: np.ndarray, count: int, population: int
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the explained stress of all models from landmarks, with an error bound.

    What each model has of its own weighs more among few, so the stress s of m landmarks is too
    small, by a part of order 1/m. With the stress s₋g when group g of G is left out and their mean
    s̄, the jackknife gives its bias and variance,

        b = (G − 1)(s̄ − s),   v = (G − 1)/G Σ_g (s₋g − s̄)²·(1 − m/n);

    the estimate is s − b, the bound |b| + 2√v. Landmarks that are spread more evenly than at random
    have a bound that is too large rather than too small.

    Args:
        distances: (m, m), between the landmarks.
        weights: (m,), how much each counts.
        count: Components k.
        population: Models n that the landmarks were drawn from.

    Returns:
        Estimates (k,) for the first 1, 2, … components, and bounds (k,).
    """
    size = len(distances)
    whole = stress_of_landmarks(distances, weights, count)
    groups = min(_GROUPS, size - count)
    if groups < 2:
        return whole, np.full(count, np.inf)
    shuffled = numpy_generator(0, "groups of landmarks").permutation(size)
    left_out = []
    for group in range(groups):
        kept = shuffled % groups != group
        left_out.append(stress_of_landmarks(distances[np.ix_(kept, kept)], weights[kept], count))
    parts = np.array(left_out)
    bias = (groups - 1) * (parts.mean(axis=0) - whole) * (1 - size / population)
    spread = (groups - 1) * parts.var(axis=0) * (1 - size / population)
    return np.clip(whole - bias, 0, 1), np.abs(bias) + 2 * np.sqrt(spread)


def stress_of_landmarks(distances: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    """Return the explained stress of the first 1, 2, … components of weighted models: (k,)."""
    w = weights / weights.sum()
    rows = distances - (distances @ w)[:, None]
    roots = np.sqrt(w)
    matrix = -roots[:, None] * (rows - w @ rows) * roots / 2
    values = scipy.linalg.eigvalsh((matrix + matrix.T) / 2)
    leading = values[np.argsort(-np.abs(values))][:count]
    return share_of_stress(leading, (values**2).sum())


def share_of_stress(leading: np.ndarray, total: float) -> np.ndarray:
    """Return the explained stress 1 − √(1 − Σ_{i≤k} λᵢ²/total) by k; NaN where there is none."""
    share = np.cumsum(leading**2) / (total or np.nan)
    return 1 - np.sqrt(np.clip(1 - share, 0, None))


@validate(distances=square, embedding=matrix, time_like=row)
def explained_stress(
    distances: np.ndarray, embedding: np.ndarray, time_like: np.ndarray
) -> Float[np.ndarray, "k"]:
    """Return the explained stress of the first 1, 2, … coordinates of any embedding.

        1 − ‖W − X_k J X_kᵀ‖_F/‖W‖_F,   W = −½ L D L,   J = diag(±1),

    with the coordinates X centred over the points. For the points an InPCA was built from this is
    its `explained_stress_`; for other points it says how well they fit into that space.

    Args:
        distances: (m, m), distances between the points.
        embedding: (m, k), their coordinates.
        time_like: (k,), which coordinates count negatively.

    Raises:
        ArgumentError: All points are the same.
    """
    count = len(distances)
    check_shape("embedding", embedding, (count, embedding.shape[1]), f"there are {count} points")
    reason = f"the embedding has {embedding.shape[1]} coordinates"
    check_shape("time_like", time_like, (embedding.shape[1],), reason)
    rows = distances - distances.mean(axis=1, keepdims=True)
    W = -(rows - rows.mean(axis=0)) / 2
    X = embedding - embedding.mean(axis=0)
    J = np.where(time_like, -1.0, 1.0)
    along = J * np.einsum("ik,ij,jk->k", X, W, X, optimize=True)
    overlap = J[:, None] * J * (X.T @ X) ** 2
    norm = (W**2).sum()
    if np.sqrt(norm) <= rounding_of_centred(distances.shape, (distances**2).sum()):
        reason = "all points are identical"
        raise ArgumentError("distances", distances, reason, "Give points that differ.")
    sizes = np.arange(1, X.shape[1] + 1)
    left = np.array([norm - 2 * along[:k].sum() + overlap[:k, :k].sum() for k in sizes])
    return 1 - np.sqrt(np.clip(left, 0, None) / norm)

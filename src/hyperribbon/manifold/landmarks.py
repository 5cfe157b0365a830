"""How well a few landmarks know the stress of all models."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from hyperribbon.core.generators import numpy_generator

__all__ = ["landmark_error"]

_GROUPS = 16


def landmark_error(
    distances: np.ndarray, weights: np.ndarray, count: int, population: int
) -> np.ndarray:
    """Return a bound on the error of the landmarks' explained stress, by jackknife.

    Landmarks are a random sample of the models, or one that is spread more evenly, for which the
    bound is too large rather than too small. With the stress s₋g when group g of G is left
    out and their mean s̄, bias and variance of s are

        b = (G − 1)(s̄ − s),   v = (G − 1)/G Σ_g (s₋g − s̄)²·(1 − m/n),

    and the bound is |b| + 2√v.

    Args:
        distances: (m, m), between the landmarks.
        weights: (m,), how much each counts.
        count: Components k.
        population: Models n that the landmarks were drawn from.

    Returns:
        (k,), for the first 1, 2, … components.
    """
    size = len(distances)
    groups = min(_GROUPS, size - count)
    if groups < 2:
        return np.full(count, np.inf)
    whole = _stress(distances, weights, count)
    shuffled = numpy_generator(0, "groups of landmarks").permutation(size)
    left_out = []
    for group in range(groups):
        kept = shuffled % groups != group
        left_out.append(_stress(distances[np.ix_(kept, kept)], weights[kept], count))
    parts = np.array(left_out)
    bias = (groups - 1) * (parts.mean(axis=0) - whole)
    spread = (groups - 1) * parts.var(axis=0) * (1 - size / population)
    return np.abs(bias) + 2 * np.sqrt(spread)


def _stress(distances: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    w = weights / weights.sum()
    rows = distances - (distances @ w)[:, None]
    roots = np.sqrt(w)
    matrix = -roots[:, None] * (rows - w @ rows) * roots / 2
    values = scipy.linalg.eigvalsh((matrix + matrix.T) / 2)
    squares = np.sort(values**2)[::-1]
    share = np.cumsum(squares[:count]) / squares.sum()
    return 1 - np.sqrt(np.clip(1 - share, 0, None))

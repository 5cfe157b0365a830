"""How many eigenvalues carry a fraction of a trace, from a small block with a certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Count", "count_dimensions"]

_ENTRIES_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Count:
    """Dimensions of a batch of covariance matrices.

    Attributes:
        dimensions: (B,), certified whole numbers.
        interpolated: (B,), where the partial sums, joined by straight lines, reach the fraction;
            lies within one below `dimensions`, and draws smooth contours.
        kept: (B,), size of the block that was diagonalised.
    """

    dimensions: np.ndarray
    interpolated: np.ndarray
    kept: np.ndarray


def count_dimensions(
    diagonal: np.ndarray,
    block: Callable[[np.ndarray, np.ndarray], np.ndarray],
    fraction: float,
    start: int = 8,
) -> Count:
    """Return the smallest k whose k largest eigenvalues hold `fraction` of the trace.

    For a positive semi-definite P and its principal block A on the coordinates with the largest
    diagonal entries, the sums F(k) of the k largest eigenvalues obey

        F_A(k) ≤ F_P(k) ≤ F_A(k) + tr P − tr A,

    so the answer is certain once both sides give the same k. Until then the block doubles.

    Args:
        diagonal: (B, n), the diagonals of B matrices.
        block: Called with the indices of m matrices and (m, size) coordinates; returns their
            principal blocks (m, size, size).
        fraction: Between 0 and 1.
        start: Size of the first block.
    """
    count, n = diagonal.shape
    order = np.argsort(-diagonal, axis=1, kind="stable")
    trace = diagonal.sum(axis=1)
    dimensions = np.zeros(count, dtype=int)
    interpolated = np.zeros(count)
    kept = np.zeros(count, dtype=int)
    unsure = np.arange(count)
    size = min(start, n)
    while unsure.size:
        later = []
        for rows in np.array_split(unsure, -(-unsure.size * size**2 // _ENTRIES_AT_ONCE)):
            coordinates = order[rows, :size]
            eigenvalues = np.linalg.eigvalsh(block(rows, coordinates))[:, ::-1]
            sums = np.cumsum(np.maximum(eigenvalues, 0), axis=1)
            outside = np.take_along_axis(diagonal[rows], order[rows, size:], axis=1).sum(axis=1)
            goal = fraction * trace[rows]
            if size == n:
                goal = np.minimum(goal, sums[:, -1])
            high = (sums < goal[:, None]).sum(axis=1) + 1
            low = (sums + outside[:, None] < goal[:, None]).sum(axis=1) + 1
            sure = low == high
            done = rows[sure]
            dimensions[done] = high[sure]
            interpolated[done] = _interpolate(sums[sure], high[sure], goal[sure])
            kept[done] = size
            later.append(rows[~sure])
        unsure = np.concatenate(later)
        size = min(2 * size, n)
    return Count(dimensions, interpolated, kept)


def _interpolate(sums: np.ndarray, k: np.ndarray, goal: np.ndarray) -> np.ndarray:
    rows = np.arange(len(k))
    above = sums[rows, k - 1]
    below = np.where(k > 1, sums[rows, np.maximum(k - 2, 0)], 0.0)
    step = np.where(above > below, above - below, 1.0)
    return k - 1 + np.clip((goal - below) / step, 0, 1)

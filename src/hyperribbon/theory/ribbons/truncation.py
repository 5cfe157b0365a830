"""How many eigenvalues carry a fraction of a trace, from a small block with a certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated as Float
from typing import Annotated as Int

import numpy as np

from hyperribbon.core.checks import check_shape, count, function, matrix, row, validate
from hyperribbon.core.checks import fraction as share
from hyperribbon.core.result import Brief

_ENTRIES_AT_ONCE = 1 << 17  # of the blocks built together: they stay in the second cache
_HOPE = 0.3  # share of the missing fraction that a first block may leave outside


@dataclass(frozen=True)
class Count(Brief):
    """Dimensions of a batch of covariance matrices.

    Attributes:
        dimensions: (B,), certified whole numbers.
        interpolated: (B,), where the partial sums, joined by straight lines, reach the fraction;
            lies within one below `dimensions`, and draws smooth contours.
        kept: (B,), size of the block that was diagonalised.
    """

    dimensions: Int[np.ndarray, "B"]
    interpolated: Float[np.ndarray, "B"]
    kept: Int[np.ndarray, "B"]


@validate(diagonal=matrix, block=function, fraction=share, coupled=matrix, start=count)
def count_dimensions(
    diagonal: np.ndarray,
    block: Callable[[np.ndarray, np.ndarray], np.ndarray],
    fraction: float,
    *,
    coupled: np.ndarray | None = None,
    start: int = 8,
) -> Count:
    r"""Return the smallest k at which truncation keeps `fraction` of the trace.

    For a positive semi-definite $P = D + C$ with a diagonal D ≥ 0 and a coupling C ≥ 0, let A be
    the principal block of P on some coordinates, R the others, and B = A ⊕ diag(P_R). The sums
    F(k) of the k largest eigenvalues obey

    $$F_B(k) \le F_P(k) \le \min\{F_A(k) + \operatorname{tr} P_R,\;
      F_B(k) + \sqrt{\operatorname{tr} C_A \operatorname{tr} C_R} + \operatorname{tr} C_R\}$$

    (B is a pinching of P; Ky Fan's inequality for the rest), so the answer is certain once both
    sides give the same k. Until then the block grows, from the first size that leaves a small part
    of the coupling outside; coordinates that are not coupled cost a sort.

    Args:
        diagonal: (B, n), the diagonals of B matrices P.
        block: Called with the indices of m matrices and (m, size) coordinates, all of them in
            their order when size is n; returns their principal blocks (m, size, size).
        fraction: Between 0 and 1.
        coupled: (B, n), the diagonals of C; None when nothing is known, so that C = P.
        start: Size of the first block.

    Raises:
        ArgumentError: The diagonals have different shapes.
    """
    shape: tuple[int, int] = diagonal.shape
    total, n = shape
    if coupled is None:
        coupled = diagonal
    check_shape("coupled", coupled, shape, "diagonal has that shape")
    order = np.argsort(-coupled, axis=1, kind="stable")
    tails, loose = (
        _tails(np.take_along_axis(values, order, axis=1)) for values in (diagonal, coupled)
    )
    trace = tails[:, 0]
    sizes = _sizes(start, n)
    hopeless = loose[:, sizes] > _HOPE * (1 - fraction) * trace[:, None]
    level = np.minimum(hopeless.sum(axis=1), len(sizes) - 1)
    dimensions = np.zeros(total, dtype=int)
    interpolated = np.zeros(total)
    for step, size in enumerate(sizes):
        unsure = np.flatnonzero(level == step)
        if not unsure.size:
            continue
        parts = -(-unsure.size * max(size**2, n) // _ENTRIES_AT_ONCE)
        for rows in np.array_split(unsure, min(parts, unsure.size)):
            at = order[rows, :size] if size < n else np.tile(np.arange(n), (len(rows), 1))
            blocks = np.asarray(block(rows, at))
            check_shape("block", blocks, (len(rows), size, size), f"{size} coordinates were given")
            eigenvalues = np.maximum(np.linalg.eigvalsh(blocks)[:, ::-1], 0)
            rest = np.take_along_axis(diagonal[rows], order[rows, size:], axis=1)
            pinched = -np.sort(-np.concatenate([eigenvalues, rest], axis=1), axis=1)
            lower = np.cumsum(pinched, axis=1)
            goal = fraction * trace[rows]
            if size == n:
                goal = np.minimum(goal, lower[:, -1])
            outside = loose[rows, size]
            slack = np.sqrt((loose[rows, 0] - outside) * outside) + outside
            upper = lower + slack[:, None]
            inner = np.cumsum(eigenvalues, axis=1) + tails[rows, size, None]
            upper[:, :size] = np.minimum(upper[:, :size], inner)
            high = (lower < goal[:, None]).sum(axis=1) + 1
            low = (upper < goal[:, None]).sum(axis=1) + 1
            sure = low == high
            dimensions[rows[sure]] = high[sure]
            interpolated[rows[sure]] = _interpolate(lower[sure], high[sure], goal[sure])
            level[rows[~sure]] = step + 1
    return Count(dimensions, interpolated, np.asarray(sizes)[level])


def _tails(values: np.ndarray) -> np.ndarray:
    """Return the tails that truncation leaves: sums of the last n − m columns, (B, n + 1)."""
    sums = np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([sums, np.zeros((len(values), 1))], axis=1)


@validate(eigenvalues=row, fraction=share)
def dimensions_of(eigenvalues: np.ndarray, fraction: float = 0.95) -> int:
    """Return where truncation of eigenvalues keeps `fraction` of their sum.

    Negative ones, rounding errors of a positive semi-definite matrix, count as zero.

    >>> dimensions_of(np.array([6.0, 3.0, 0.9, 0.1]), 0.95)
    3
    """
    sums = np.cumsum(np.sort(np.maximum(eigenvalues, 0))[::-1])
    return int((sums < min(fraction, 1.0) * sums[-1]).sum()) + 1


def _sizes(start: int, n: int) -> list[int]:
    """Return the block sizes tried by truncation, which grow by about √2 and end with n."""
    grown = [round(start * 2 ** (step / 2)) for step in range(2 * n.bit_length())]
    return [size for size in grown if size < n] + [n]


def _interpolate(sums: np.ndarray, k: np.ndarray, goal: np.ndarray) -> np.ndarray:
    rows = np.arange(len(k))
    above = sums[rows, k - 1]
    below = np.where(k > 1, sums[rows, np.maximum(k - 2, 0)], 0.0)
    step = np.where(above > below, above - below, 1.0)
    return k - 1 + np.clip((goal - below) / step, 0, 1)

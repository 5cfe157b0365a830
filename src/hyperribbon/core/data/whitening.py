"""Whitening: equal variance in every direction that the inputs span."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hyperribbon.core.checks import ArgumentError, matrix, positive, validate, zero_or_more
from hyperribbon.core.result import Brief


@dataclass(frozen=True)
class Whitened(Brief):
    """Whitened inputs, the whitening matrix and the dropped directions.

    Attributes:
        inputs: (rank, n), samples as columns, with X Xᵀ / n = σx² I exactly.
        rank: Number of directions kept.
        dropped: Number of input directions without variance, d − rank.
        directions: (d, rank), orthonormal; `inputs = diag(scales)⁻¹ directionsᵀ X · σx`.
        scales: (rank,), root mean square of the raw inputs along each direction.
    """

    inputs: np.ndarray
    rank: int
    dropped: int
    directions: np.ndarray
    scales: np.ndarray


@validate(inputs=matrix, sigma_x=positive, cutoff=zero_or_more)
def whiten(inputs: np.ndarray, sigma_x: float = 1.0, cutoff: float = 1e-10) -> Whitened:
    r"""Whiten inputs X (d, n) by the singular value decomposition.

    $$ X = U S V^\top, \quad X_w = \sqrt{n}\sigma_x V_r^\top, \quad X_w X_w^\top = n\sigma_x^2 I $$

    Directions whose singular value is below `cutoff` times the largest are dropped: a QR
    decomposition would fill them with junk (constant pixels have no direction to keep).

    Args:
        inputs: (d, n), samples as columns.
        sigma_x: Root mean square of every white coordinate.
        cutoff: Relative size below which a singular value counts as zero.

    Returns:
        The white inputs (rank, n) and what was dropped.

    Raises:
        ArgumentError: The inputs are not a finite matrix, or are all zero.

    >>> white = whiten(np.array([[3.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 0.0, 0.0]]))
    >>> white.rank, white.dropped
    (2, 1)
    >>> bool(np.allclose(white.inputs @ white.inputs.T / 3, np.eye(2)))
    True
    """
    dimensions, samples = inputs.shape
    left, singular, right = np.linalg.svd(inputs, full_matrices=False)
    if singular[0] == 0:
        raise ArgumentError("inputs", inputs, "every entry is zero", "Check the data.")
    rank = int(np.sum(singular > cutoff * singular[0]))
    return Whitened(
        inputs=np.sqrt(samples) * sigma_x * right[:rank],
        rank=rank,
        dropped=dimensions - rank,
        directions=left[:, :rank],
        scales=singular[:rank] / np.sqrt(samples),
    )

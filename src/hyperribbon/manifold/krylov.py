"""Block Lanczos for the eigenpairs of largest magnitude of an expensive symmetric matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated as Float

import numpy as np
import scipy.linalg


@dataclass(frozen=True)
class Leading:
    """Leading eigenpairs of a symmetric A.

    Attributes:
        values: (k,), descending in magnitude.
        vectors: (n, k), orthonormal.
        residuals: (k,), ‖A v − λ v‖.
        passes: Products with a block.
    """

    values: Float[np.ndarray, "k"]
    vectors: Float[np.ndarray, "n k"]
    residuals: Float[np.ndarray, "k"]
    passes: int


def leading_pairs(
    multiply: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    k: int,
    *,
    tol: float = 1e-10,
    most: int = 20,
    max_passes: int = 60,
) -> Leading:
    """Return the k eigenpairs of largest magnitude by a block Krylov space, for the manifold.

    The basis grows by the block A Q_last, orthogonalised against all of the basis; images of all
    basis vectors are kept, so every residual is a true one. When the basis holds `most` blocks it
    is restarted from its leading Ritz vectors. One pass multiplies one block, so few passes are
    needed where a pass is what costs.

    Args:
        multiply: A @ block (n, b).
        start: (n, b), random; b ≥ k finds eigenvalues that are repeated up to b times.
        k: Number of eigenpairs.
        tol: Residuals to reach, relative to the largest eigenvalue.
        most: Blocks in the basis.
        max_passes: Passes after which the pairs are returned as they are.
    """
    size, width = start.shape
    fresh = np.linalg.qr(start)[0]
    Q, AQ = np.empty((size, 0)), np.empty((size, 0))
    passes = 0
    while True:
        images = multiply(fresh)
        passes += 1
        Q, AQ = np.hstack([Q, fresh]), np.hstack([AQ, images])
        T = Q.T @ AQ
        values, S = scipy.linalg.eigh((T + T.T) / 2)
        order = np.argsort(-np.abs(values), kind="stable")
        values, S = values[order], S[:, order]
        wanted = slice(0, k)
        left = AQ @ S[:, wanted] - (Q @ S[:, wanted]) * values[wanted]
        residuals = np.linalg.norm(left, axis=0)
        solved = len(values) >= k and residuals.max() <= tol * abs(values[0])
        room = min(width, size - Q.shape[1])
        if solved or room == 0 or passes == max_passes:
            return Leading(values[wanted], Q @ S[:, wanted], residuals, passes)
        fresh = images[:, :room]
        for _ in range(3):
            fresh = fresh - Q @ (Q.T @ fresh)
            fresh = np.linalg.qr(fresh)[0]
        if Q.shape[1] >= most * width:
            Q, AQ = Q @ S[:, : k + width], AQ @ S[:, : k + width]

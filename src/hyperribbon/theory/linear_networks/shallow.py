"""Two layers, balanced or not: every eigenvalue and eigenvector from the two matrices."""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from typing import Annotated as Float

import numpy as np
from numpy.typing import NDArray

from hyperribbon.core.checks import matrix, positive, validate
from hyperribbon.theory.linear_networks.solution import check_white
from hyperribbon.theory.linear_networks.weight_chains import check_chain

_ZERO = 1e-12  # relative size below which a singular value counts as zero


@validate(W1=matrix, W2=matrix, sigma_x=positive)
def shallow_eigenvalues(
    W1: np.ndarray, W2: np.ndarray, sigma_x: float = 1.0
) -> Float[np.ndarray, "eigenvalues"]:
    r"""Return the tangent kernel's eigenvalues of a shallow network (two layers, white inputs).

    $$ \lambda_{ij} = \sigma_x^2 \left(\sigma_i^2(W_1) + \sigma_j^2(W_2)\right),
    \qquad i \in [d_0],\ j \in [d_2] $$

    with the singular values padded by zeros. Implements Eq. (15) of [linear_networks], which
    lists i ≤ min(d0, d1) and j ≤ min(d1, d2) only.

    Args:
        W1: First layer (d1, d0).
        W2: Second layer (d2, d1).
        sigma_x: Root mean square of the white inputs.

    Returns:
        (d0 · d2,), descending.

    >>> shallow_eigenvalues(np.array([[2.0, 0.0]]), np.array([[3.0]]))
    array([13., 9.])
    """
    return np.sort(_pair_sums(W1, W2, sigma_x).ravel())[::-1]


@validate(W1=matrix, W2=matrix, X=matrix)
def shallow_eigenvectors(
    W1: np.ndarray, W2: np.ndarray, X: np.ndarray
) -> Float[np.ndarray, "outputs eigenvalues"]:
    r"""Return the tangent kernel's eigenvectors of a shallow network (two layers, white inputs).

    $$ q_{ij} = \tfrac{1}{\sqrt n \sigma_x} X^\top v_i \otimes u_j $$

    with v_i the right singular vectors of W1 and u_j the left ones of W2. Implements Eq. (16) of
    [linear_networks], normalised.

    Raises an ArgumentError when the inputs are not white.

    Args:
        W1: First layer (d1, d0).
        W2: Second layer (d2, d1).
        X: White inputs (d0, n), samples as columns.

    Returns:
        (n d2, d0 d2), orthonormal columns in the order of `shallow_eigenvalues`.
    """
    W1, W2 = check_chain([W1, W2])
    sigma_x = check_white(X, W1.shape[1])
    sums = _pair_sums(W1, W2, sigma_x)
    features: NDArray[np.float64] = np.linalg.svd(W1)[2] @ X / (np.sqrt(X.shape[1]) * sigma_x)
    left: NDArray[np.float64] = np.linalg.svd(W2)[0]
    vectors = np.kron(features.T, left)
    return vectors[:, np.argsort(-sums.ravel(), kind="stable")]


@validate(W1=matrix, W2=matrix, sigma_x=positive)
def shallow_sharpness(W1: np.ndarray, W2: np.ndarray, sigma_x: float = 1.0) -> float:
    r"""Return a shallow network's sharpness on white inputs, σx²(‖W1‖₂² + ‖W2‖₂²).

    Implements Eq. (10) of [linear_networks].

    Args:
        W1: First layer (d1, d0).
        W2: Second layer (d2, d1).
        sigma_x: Root mean square of the white inputs.
    """
    W1, W2 = check_chain([W1, W2])
    return float(sigma_x**2 * (np.linalg.norm(W1, 2) ** 2 + np.linalg.norm(W2, 2) ** 2))


@validate(W1=matrix, W2=matrix, sigma_x=positive)
def shallow_trace(W1: np.ndarray, W2: np.ndarray, sigma_x: float = 1.0) -> float:
    r"""Return the sum of a shallow network's eigenvalues, σx²(d2‖W1‖²_F + d0‖W2‖²_F).

    Implements Eq. (11) of [linear_networks].

    Args:
        W1: First layer (d1, d0).
        W2: Second layer (d2, d1).
        sigma_x: Root mean square of the white inputs.
    """
    W1, W2 = check_chain([W1, W2])
    return float(sigma_x**2 * (len(W2) * np.sum(W1 * W1) + W1.shape[1] * np.sum(W2 * W2)))


@validate(W1=matrix, W2=matrix)
def shallow_count(W1: np.ndarray, W2: np.ndarray) -> int:
    r"""Return how many eigenvalues of a shallow network (two layers, white inputs) are not zero.

    $$ d_0 d_2 - (d_0 - r_1)(d_2 - r_2), \qquad r_\ell = \mathrm{rank}\, W_\ell $$

    Appendix B of [linear_networks] prints min(d0, d1) · min(d1, d2), which leaves out the pairs
    with one zero.

    Args:
        W1: First layer (d1, d0).
        W2: Second layer (d2, d1).
    """
    W1, W2 = check_chain([W1, W2])
    d_in, d_out = W1.shape[1], W2.shape[0]
    ranks = [int(np.linalg.matrix_rank(W, rtol=_ZERO)) for W in (W1, W2)]
    return d_in * d_out - (d_in - ranks[0]) * (d_out - ranks[1])


def _pair_sums(W1: np.ndarray, W2: np.ndarray, sigma_x: float) -> np.ndarray:
    """Return a shallow network's eigenvalues λ_ij as a matrix (d0, d2)."""
    W1, W2 = check_chain([W1, W2])
    first, second = np.zeros(W1.shape[1]), np.zeros(W2.shape[0])
    for padded, weight in ((first, W1), (second, W2)):
        squares = np.linalg.svd(weight, compute_uv=False) ** 2
        padded[: len(squares)] = squares
    return sigma_x**2 * (first[:, None] + second)

"""Strongly balanced networks: every eigenvalue from the singular values of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated as Float

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import (
    ArgumentError,
    check_array,
    check_positive_int,
    check_shape,
    validate,
)
from hyperribbon.theory.linear_networks.weight_chains import check_chain, check_widths, end_to_end

_BALANCED = 1e-6  # defect of layers whose closed forms hold to as many digits


@validate(weights=checks.matrices)
def balance_defect(weights: Sequence[np.ndarray]) -> float:
    r"""Return how far consecutive layers are from strong balance.

    $$ \max_\ell \frac{\|W_\ell W_\ell^\top - W_{\ell+1}^\top W_{\ell+1}\|_F}
    {\max(\|W_\ell W_\ell^\top\|_F, \|W_{\ell+1}^\top W_{\ell+1}\|_F)} $$

    It is 0 under Assumption 3 of [linear_networks] (and for one layer), and at most √2.

    Args:
        weights: W1, …, WL.
    """
    defects = [0.0]
    for before, after in pairwise(check_chain(weights)):
        left, right = before @ before.T, after.T @ after
        scale = max(np.linalg.norm(left), np.linalg.norm(right))
        if scale > 0:
            defects.append(float(np.linalg.norm(left - right) / scale))
    return max(defects)


@validate(
    depth=checks.count,
    d_in=checks.count,
    d_out=checks.count,
    sigma_x=checks.positive,
    covariance=checks.matrix,
    input_directions=checks.matrix,
)
def balanced_eigenvalues(
    singular_values: Sequence[float] | np.ndarray,
    depth: int,
    d_in: int,
    d_out: int,
    sigma_x: float = 1.0,
    *,
    covariance: np.ndarray | None = None,
    input_directions: np.ndarray | None = None,
) -> Float[np.ndarray, "eigenvalues"]:
    r"""Return the eigenvalues of the tangent kernel of a balanced network.

    On white inputs,

    $$ \lambda_{ij} = \sigma_x^2 \sum_{\ell=1}^L \sigma_i^{2(L-\ell)} \sigma_j^{2(\ell-1)},
    \qquad i \in [d_0],\ j \in [d_L] $$

    with the singular values padded by zeros. Implements Eq. (9a) of [linear_networks], which
    lists the pairs of non-zero singular values only: pairs with one zero give σ^{2(L−1)}.

    On inputs of any covariance Σ = XXᵀ/n the kernel splits over the output directions j into blocks
    with the eigenvalues of

    $$ \Sigma^{1/2} V D_j V^\top \Sigma^{1/2}, \qquad
    D_j = \operatorname{diag}_i \sum_{\ell=1}^L \sigma_i^{2(\ell-1)} \sigma_j^{2(L-\ell)} $$

    where the columns of V are the right singular vectors of the first layer; the sharpness is the
    largest eigenvalue of the block of the largest singular value.

    Args:
        singular_values: Those that the layers share; at most min(d_in, d_out) of them. Cut rounded
            zeros of an end-to-end map before you take its L-th roots: (1e-16)^{1/L} is not small.
        depth: Number of layers L.
        d_in: Input width d0 (the rank of the inputs, if they are white).
        d_out: Output width dL.
        sigma_x: Root mean square of the white inputs.
        covariance: Σ (d_in, d_in) of inputs that are not white, in place of sigma_x.
        input_directions: V (d_in, k), orthonormal columns in the order of the singular values; any
            basis of the rest completes it. Needed with a covariance.

    Returns:
        (d_in · d_out,), descending, each as often as it occurs. All further eigenvalues of the
        Hessian are zero.

    Raises:
        ArgumentError: The singular values, the covariance or the directions do not fit each other.

    >>> balanced_eigenvalues([2.0], depth=3, d_in=2, d_out=1)
    array([48., 16.])
    >>> V = np.array([[1.0], [0.0]])
    >>> balanced_eigenvalues([2.0], 3, 2, 1, covariance=np.diag([1.0, 4.0]), input_directions=V)
    array([64., 48.])
    """
    values = _check_singular_values(singular_values, min(d_in, d_out))
    sums = _pair_sums(values, depth, d_in, d_out)
    if covariance is None:
        if input_directions is not None:
            reason = "directions matter only for inputs that are not white"
            raise ArgumentError("input_directions", input_directions, reason, "Give covariance=.")
        return sigma_x**2 * np.sort(sums.ravel())[::-1]
    if sigma_x != 1:
        reason = "incompatible with covariance, which has the scale of the inputs"
        raise ArgumentError("sigma_x", sigma_x, reason, "Omit one of them.")
    root = _root(_check_covariance(covariance, d_in))
    basis = root @ _complete(input_directions, len(values), d_in)
    found = np.empty((d_out, d_in))
    for j in range(min(len(values) + 1, d_out)):  # all further output directions are like the last
        block = basis * sums[:, j] @ basis.T
        found[j:] = np.maximum(np.linalg.eigvalsh(block), 0)
    return np.sort(found.ravel())[::-1]


@validate(weights=checks.matrices, X=checks.matrix)
def balanced_eigenvectors(
    weights: Sequence[np.ndarray], X: np.ndarray
) -> tuple[Float[np.ndarray, "k"], Float[np.ndarray, "outputs k"]]:
    r"""Return the eigenpairs of the tangent kernel of a balanced network of any depth.

    $$ q_{mj} = a_m^{(j)} \otimes u_j, \qquad \tfrac{1}{\sqrt n} X^\top V D_j^{1/2} =
    \textstyle\sum_m \sqrt{\lambda_{mj}}\; a_m^{(j)} b_m^{(j)\top} $$

    with u_j the left singular vectors of the last layer and D_j as in `balanced_eigenvalues`. On
    white inputs these are the q_ij of Sec. 3 of [linear_networks].

    Args:
        weights: W1, …, WL, balanced.
        X: Inputs (d0, n), samples as columns; they need not be white.

    Returns:
        Eigenvalues (k,), descending, and orthonormal eigenvectors (n·dL, k) of `ntk`, with
        k = dL·min(d0, n). All further eigenvalues of the kernel are zero.

    Raises:
        ArgumentError: The layers are not balanced, or do not fit the inputs.
    """
    chain = check_chain(weights)
    defect = balance_defect(chain)
    if defect > _BALANCED:
        reason = f"the layers are not balanced: their defect is {defect:.2g}"
        raise ArgumentError("weights", "list", reason, "Use the SVD of jacobian(...).")
    d_in, d_out = chain[0].shape[1], len(chain[-1])
    check_shape("X", X, (d_in, X.shape[1]), f"the first layer has {d_in} inputs")
    # Both bases from the end-to-end map, so that the i-th input goes to the i-th output direction.
    left, product, right = np.linalg.svd(end_to_end(chain))
    rank = int((product > product[0] * max(d_in, d_out) * np.finfo(float).eps).sum())
    shared = product[:rank] ** (1 / len(chain)) if product[0] > 0 else product[:0]
    sums = _pair_sums(shared, len(chain), d_in, d_out)
    features = X.T @ right.T / np.sqrt(X.shape[1])
    values, vectors = [], []
    for j in range(d_out):
        a, singular, _ = np.linalg.svd(features * np.sqrt(sums[:, j]), full_matrices=False)
        values.append(singular**2)
        vectors.append(np.kron(a, left[:, j : j + 1]))
    order = np.argsort(-np.concatenate(values), kind="stable")
    return np.concatenate(values)[order], np.concatenate(vectors, axis=1)[:, order]


@validate(rank=checks.whole, depth=checks.count, d_in=checks.count, d_out=checks.count)
def balanced_count(rank: int, depth: int, d_in: int, d_out: int) -> int:
    r"""Return how many eigenvalues of a balanced network are not zero.

    $$ r\,(d_0 + d_L - r) \quad (L \ge 2), \qquad d_0 d_L \quad (L = 1) $$

    The sentence after Eq. (9b) of [linear_networks] gives (min d)² instead, see `printed_count`.

    Args:
        rank: Number of non-zero singular values r.
        depth: Number of layers.
        d_in: Input width (the rank of the inputs).
        d_out: Output width.

    >>> balanced_count(rank=5, depth=2, d_in=20, d_out=5)
    100
    """
    if rank == 0:
        return d_in * d_out if depth == 1 else 0
    rank = check_positive_int("rank", rank, maximum=min(d_in, d_out))
    return d_in * d_out if depth == 1 else rank * (d_in + d_out - rank)


@validate(widths=checks.row)
def printed_count(widths: Sequence[int]) -> int:
    """Return (min d)², the balanced network's count printed after Eq. (9b) of [linear_networks].

    It is right only when no more than the narrowest width of inputs and outputs is there, as for
    a square network.

    >>> printed_count((20, 7, 5))
    25
    """
    return min(check_widths(widths)) ** 2


def _check_singular_values(values: Sequence[float] | np.ndarray, most: int) -> np.ndarray:
    array = check_array("singular_values", values, ndim=1, empty=True)
    if len(array) > most or (array < 0).any():
        reason = f"it must be at most {most} finite numbers, zero or more"
        remedy = "Give the singular values that the layers share, each once."
        raise ArgumentError("singular_values", values, reason, remedy)
    return array


def _pair_sums(values: np.ndarray, depth: int, d_in: int, d_out: int) -> np.ndarray:
    """Return Σ_ℓ σ_i^{2(L−ℓ)} σ_j^{2(ℓ−1)} of a balanced network for all pairs: (d0, dL)."""
    row, column = np.zeros(d_in), np.zeros(d_out)
    row[: len(values)] = column[: len(values)] = values**2
    powers = np.arange(depth)
    # 0.0 ** 0 is 1, as the formula wants it.
    return (row[:, None] ** powers[::-1]) @ (column[:, None] ** powers).T


def _check_covariance(covariance: np.ndarray, d_in: int) -> np.ndarray:
    check_shape("covariance", covariance, (d_in, d_in), f"there are {d_in} inputs")
    scale = np.abs(covariance).max()
    if np.abs(covariance - covariance.T).max() > 1e-8 * scale:
        raise ArgumentError("covariance", covariance, "it is not symmetric", "Give XXᵀ/n.")
    if np.linalg.eigvalsh(covariance)[0] < -1e-8 * d_in * scale:
        raise ArgumentError("covariance", covariance, "it has a negative eigenvalue", "Give XXᵀ/n.")
    return covariance


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T


def _complete(directions: np.ndarray | None, k: int, d_in: int) -> np.ndarray:
    """Return a balanced network's basis (d_in, d_in) whose first k columns are given."""
    if directions is None or directions.shape[0] != d_in or not k <= directions.shape[1] <= d_in:
        reason = f"a covariance needs the {k} input directions of the singular values"
        remedy = f"Give the right singular vectors of the first layer as columns: ({d_in}, {k})."
        raise ArgumentError("input_directions", directions, reason, remedy)
    gram = directions.T @ directions
    if np.abs(gram - np.eye(len(gram))).max() > 1e-6:
        reason = "its columns are not orthonormal"
        raise ArgumentError("input_directions", directions, reason, "Use singular vectors.")
    rest = np.linalg.svd(directions)[0][:, directions.shape[1] :]
    return np.concatenate([directions, rest], axis=1)

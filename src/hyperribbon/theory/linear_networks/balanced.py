"""Strongly balanced networks: every eigenvalue from the singular values of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated as Float

import numpy as np

from hyperribbon.core.boundary import checked, count, matrices, positive, row, whole
from hyperribbon.core.checks import ArgumentError, check_array, check_positive_int
from hyperribbon.theory.linear_networks.weight_chains import check_chain, check_widths

__all__ = ["balance_defect", "balanced_count", "balanced_eigenvalues", "printed_count"]


@checked(weights=matrices)
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


@checked(depth=count, d_in=count, d_out=count, sigma_x=positive)
def balanced_eigenvalues(
    singular_values: Sequence[float] | np.ndarray,
    depth: int,
    d_in: int,
    d_out: int,
    sigma_x: float = 1.0,
) -> Float[np.ndarray, "eigenvalues"]:
    r"""Return the eigenvalues of the tangent kernel of a balanced network on white inputs.

    $$ \lambda_{ij} = \sigma_x^2 \sum_{\ell=1}^L \sigma_i^{2(L-\ell)} \sigma_j^{2(\ell-1)},
    \qquad i \in [d_0],\ j \in [d_L] $$

    with the singular values padded by zeros. Implements Eq. (9a) of [linear_networks], which
    lists the pairs of non-zero singular values only: pairs with one zero give σ^{2(L−1)}.

    Args:
        singular_values: Those that the layers share; at most min(d_in, d_out) of them.
        depth: Number of layers L.
        d_in: Input width d0 (the rank of the inputs).
        d_out: Output width dL.
        sigma_x: Root mean square of the white inputs.

    Returns:
        (d_in · d_out,), descending, each as often as it occurs. All further eigenvalues of the
        Hessian are zero.

    >>> balanced_eigenvalues([2.0], depth=3, d_in=2, d_out=1)
    array([48., 16.])
    """
    values = _check_singular_values(singular_values, min(d_in, d_out))
    row, column = np.zeros(d_in), np.zeros(d_out)
    row[: len(values)] = column[: len(values)] = values**2
    powers = np.arange(depth)
    # 0.0 ** 0 is 1, as the formula wants it.
    rows, columns = row[:, None] ** powers[::-1], column[:, None] ** powers
    return sigma_x**2 * np.sort((rows @ columns.T).ravel())[::-1]


@checked(rank=whole, depth=count, d_in=count, d_out=count)
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


@checked(widths=row)
def printed_count(widths: Sequence[int]) -> int:
    """Return (min d)², the count printed after Eq. (9b) of [linear_networks].

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

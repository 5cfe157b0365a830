"""The tangent kernel of a linear network, a bound of its sharpness, and its trace."""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated as Float

import numpy as np
from numpy.typing import NDArray

from hyperribbon.core.checks import ArgumentError, check_array, matrices, matrix, positive, validate
from hyperribbon.theory.linear_networks.moments import Moments
from hyperribbon.theory.linear_networks.weight_chains import chain_products


@validate(weights=matrices, X=matrix)
def jacobian(weights: Sequence[np.ndarray], X: np.ndarray) -> Float[np.ndarray, "outputs weights"]:
    r"""Return the Jacobian of a linear network's outputs f(X), from which its kernel is made.

    $$ J = [J_1 \cdots J_L], \qquad J_\ell = (P_\ell X)^\top \otimes S_\ell $$

    Implements Eq. (4) of [linear_networks]. Outputs are ordered sample by sample, and the weights
    of a layer column by column.

    Args:
        weights: W1, …, WL.
        X: Inputs (d0, n), samples as columns.

    Returns:
        (n dL, p), with p the number of weights. The eigenvalues of the Gauss-Newton matrix are
        squared singular values of J/√n, and small ones are more precise so than from J Jᵀ.
    """
    before, after = chain_products(weights)
    X = _check_inputs(X, before[0].shape[1])
    return np.hstack([np.kron((P @ X).T, S) for P, S in zip(before, after, strict=True)])


@validate(weights=matrices, X=matrix)
def ntk(weights: Sequence[np.ndarray], X: np.ndarray) -> Float[np.ndarray, "outputs outputs"]:
    r"""Return a linear network's tangent kernel over n, with the Gauss–Newton eigenvalues.

    $$ \tfrac1n J J^\top = \sum_{\ell=1}^L \tfrac1n X^\top P_\ell^\top P_\ell X
    \otimes S_\ell S_\ell^\top $$

    Implements Eq. (5) of [linear_networks], for any inputs.

    Args:
        weights: W1, …, WL.
        X: Inputs (d0, n), samples as columns.

    Returns:
        (n dL, n dL), ordered sample by sample.

    >>> ntk([np.array([[2.0]]), np.array([[3.0]])], np.array([[1.0]]))
    array([[13.]])
    """
    before, after = chain_products(weights)
    X = _check_inputs(X, before[0].shape[1])
    samples: int = X.shape[1]
    size = samples * after[-1].shape[0]
    kernel = np.zeros((size, size))
    for P, S in zip(before, after, strict=True):
        features: NDArray[np.float64] = P @ X
        output: NDArray[np.float64] = S @ S.T
        kernel += np.kron(features.T @ features / samples, output)
    return kernel


@validate(weights=matrices, sigma_x=positive)
def sharpness_bound(
    weights: Sequence[np.ndarray], X: np.ndarray | Moments | None = None, *, sigma_x: float = 1.0
) -> float:
    r"""Return the upper bound of a linear network's tangent kernel's largest eigenvalue.

    $$ \lambda_{\max} \le \sum_{\ell=1}^L
    \lambda_{\max}\big(\tfrac1n X^\top P_\ell^\top P_\ell X\big)\,
    \lambda_{\max}(S_\ell S_\ell^\top) $$

    which is σx² Σ σmax²(Pℓ) σmax²(Sℓ) for white inputs. Implements Eq. (6) of [linear_networks];
    balanced layers attain it.

    Args:
        weights: W1, …, WL.
        X: Inputs (d0, n), or their moments; None for white ones.
        sigma_x: Root mean square of white inputs.
    """
    before, after = chain_products(weights)
    scaled = [_times_inputs(P, X, sigma_x) for P in before]
    return float(
        sum(
            np.linalg.eigvalsh(product @ P.T)[-1] * np.linalg.norm(S, 2) ** 2
            for product, P, S in zip(scaled, before, after, strict=True)
        )
    )


@validate(weights=matrices, sigma_x=positive)
def trace(
    weights: Sequence[np.ndarray], X: np.ndarray | Moments | None = None, *, sigma_x: float = 1.0
) -> float:
    r"""Return the trace of a linear network's Hessian, that of its tangent kernel.

    $$ \mathrm{Tr} = \tfrac1n \sum_{\ell=1}^L \|P_\ell X\|_F^2 \, \|S_\ell\|_F^2 $$

    Implements Eq. (7) of [linear_networks]. It is exact for any inputs and at any loss: the
    network is linear in each weight by itself, so the residual adds nothing to the diagonal.

    Args:
        weights: W1, …, WL.
        X: Inputs (d0, n), or their moments; None for white ones.
        sigma_x: Root mean square of white inputs.

    >>> trace([np.array([[2.0]]), np.array([[3.0]])])
    13.0
    """
    before, after = chain_products(weights)
    return float(
        sum(
            np.sum(_times_inputs(P, X, sigma_x) * P) * np.sum(S * S)
            for P, S in zip(before, after, strict=True)
        )
    )


def _times_inputs(P: np.ndarray, X: np.ndarray | Moments | None, sigma_x: float) -> np.ndarray:
    """Return P Σ for a linear network's tangent kernel, whose eigenvalues are those of P Σ Pᵀ."""
    if X is None:
        return sigma_x**2 * P
    if isinstance(X, Moments):
        return X.times_inputs(P)
    X = _check_inputs(X, P.shape[1])
    return P @ X @ X.T / X.shape[1]


def _check_inputs(X: np.ndarray, width: int) -> np.ndarray:
    X = check_array("X", X, ndim=2)
    if X.shape[0] != width:
        raise ArgumentError(
            "X", X, f"the first layer takes {width} inputs", f"Give a matrix ({width}, n)."
        )
    return X

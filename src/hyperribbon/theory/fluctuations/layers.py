"""Two-layer linear networks at any weights: any inputs, samples, outputs and widths.

`two_layer` has the closed forms of [fluctuations] for white inputs and many samples. Here are the
matrices they simplify, over all weights (vec δW₁, vec δW₂), columns stacked: for W₁ (N_h×N_i) and
W₂ (N_o×N_h) the product changes by vec(W₂δW₁ + δW₂W₁) = 𝒥·(vec δW₁, vec δW₂).
"""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from typing import Annotated as Float

import numpy as np
from numpy.typing import ArrayLike

from hyperribbon.core.checks import (
    ArgumentError,
    check_shape,
    count,
    covariance,
    matrix,
    positive,
    validate,
)
from hyperribbon.theory.fluctuations.one_layer import minibatch_covariance
from hyperribbon.theory.fluctuations.stationary import lyapunov_covariance
from hyperribbon.theory.fluctuations.two_layer import moment_covariances

_AT_REST = 1e-3  # correlation of errors and inputs up to which weights count as a solution


@validate(W1=matrix, W2=matrix)
def imbalance(W1: ArrayLike, W2: ArrayLike) -> Float[np.ndarray, "h h"]:
    """Return W₂ᵀW₂ − W₁W₁ᵀ of two layers, which gradient flow conserves. Implements Eq. (3.6).

    It vanishes for zero-balanced weights; [fluctuations].
    """
    W1, W2 = _chain(W1, W2)
    return W2.T @ W2 - W1 @ W1.T


@validate(w=matrix)
def balanced_products(w: ArrayLike) -> tuple[Float[np.ndarray, "i i"], Float[np.ndarray, "o o"]]:
    """Return W₁ᵀW₁ and W₂W₂ᵀ of zero-balanced layers whose product is w = ŨS̃Ṽᵀ.

    Implements Eqs. (3.7) and (3.8) of [fluctuations], where w = Σyx/σx² for white inputs: the
    singular values there are those of Σyx and lack 1/σx². It holds for any inputs.

    Args:
        w: Product W₂W₁ (N_o×N_i); at the end of training Σyx(Σxx)⁻¹.
    """
    U, s, Vt = np.linalg.svd(np.asarray(w, dtype=np.float64), full_matrices=False)
    return (Vt.T * s) @ Vt, (U * s) @ U.T


@validate(X=matrix, Y=matrix, batch_size=count)
def sample_moment_covariances(
    X: ArrayLike, Y: ArrayLike, batch_size: int, *, replacement: bool = True
) -> tuple[
    Float[np.ndarray, "i i i i"], Float[np.ndarray, "o i o i"], Float[np.ndarray, "i i o i"]
]:
    """Return cov(δΣxx), cov(δΣyx) and their cross term for these samples of the layers' data.

    The finite-P form of `moment_covariances`. Implements Eq. (3.11) of [fluctuations].

    Args:
        X: Inputs (N_i×P), samples as columns.
        Y: Targets (N_o×P).
        batch_size: Minibatch size S.
        replacement: Whether a minibatch may hold a sample twice.
    """
    X, Y = _samples(X, Y)
    (N_i, P), N_o = X.shape, len(Y)
    rows = [np.einsum("ap,jp->paj", left, X).reshape(P, -1) for left in (X, Y)]
    C = minibatch_covariance(np.hstack(rows), batch_size, replacement=replacement)
    n = N_i**2
    return (
        C[:n, :n].reshape(N_i, N_i, N_i, N_i),
        C[n:, n:].reshape(N_o, N_i, N_o, N_i),
        C[:n, n:].reshape(N_i, N_i, N_o, N_i),
    )


@validate(W1=matrix, W2=matrix, Sxx=covariance, Syx=matrix)
def two_layer_hessian(
    W1: ArrayLike, W2: ArrayLike, Sxx: ArrayLike, Syx: ArrayLike | None = None
) -> Float[np.ndarray, "weights weights"]:
    """Return both layers' Hessian of ½⟨‖y − W₂W₁x‖²⟩ over (vec δW₁, vec δW₂).

        𝒥ᵀ(Σxx ⊗ 1)𝒥, and −(Σyx − W₂W₁Σxx) between δW₁ and δW₂, which a solution does not have.

    Implements Eq. (3.18) of [fluctuations] for any inputs and widths.

    Args:
        W1: First layer (N_h×N_i).
        W2: Second layer (N_o×N_h).
        Sxx: Σxx (N_i×N_i).
        Syx: Σyx (N_o×N_i); by default that of a solution.
    """
    W1, W2 = _chain(W1, W2)
    Sxx, (N_h, N_i), N_o = np.asarray(Sxx, dtype=np.float64), W1.shape, len(W2)
    check_shape("Sxx", Sxx, (N_i, N_i), f"W1 has shape {W1.shape}")
    J = _jacobian(W1, W2)
    H = J.T @ np.kron(Sxx, np.eye(N_o)) @ J
    if Syx is not None:
        rest = np.asarray(Syx, dtype=np.float64)
        check_shape("Syx", rest, (N_o, N_i), f"W1 has shape {W1.shape}, W2 {W2.shape}")
        rest = rest - W2 @ W1 @ Sxx
        # −tr(restᵀ δW₂ δW₁): entry (h, i) of δW₁ meets entry (o, h) of δW₂
        cross = -np.einsum("oi,hk->ihko", rest, np.eye(N_h)).reshape(W1.size, W2.size)
        H[: W1.size, W1.size :] += cross
        H[W1.size :, : W1.size] += cross.T
    return H


@validate(W1=matrix, W2=matrix, dW1=matrix, dW2=matrix, Sxx=covariance)
def reduced_loss(
    W1: ArrayLike, W2: ArrayLike, dW1: ArrayLike, dW2: ArrayLike, Sxx: ArrayLike
) -> float:
    """Return L̃ = ½ tr[(W₂δW₁ + δW₂W₁) Σxx (W₂δW₁ + δW₂W₁)ᵀ] of both layers, to second order.

    Implements the reduced loss of Eq. (3.22) of [fluctuations], whose cross term lacks a factor 2
    in print; Σxx = σx²·1 there.
    """
    W1, W2 = _chain(W1, W2)
    d1, d2 = np.asarray(dW1, dtype=np.float64), np.asarray(dW2, dtype=np.float64)
    check_shape("dW1", d1, W1.shape, f"W1 has shape {W1.shape}")
    check_shape("dW2", d2, W2.shape, f"W2 has shape {W2.shape}")
    Sxx = np.asarray(Sxx, dtype=np.float64)
    check_shape("Sxx", Sxx, (W1.shape[1],) * 2, f"W1 has shape {W1.shape}")
    change = W2 @ d1 + d2 @ W1
    return float(np.sum((change @ Sxx) * change) / 2)


@validate(W1=matrix, W2=matrix, Sxx=covariance, Syx=matrix, Syy=covariance, batch_size=count)
def gaussian_noise_covariances(
    W1: ArrayLike,
    W2: ArrayLike,
    Sxx: ArrayLike,
    Syx: ArrayLike,
    Syy: ArrayLike,
    batch_size: int,
) -> tuple[
    Float[np.ndarray, "h i h i"], Float[np.ndarray, "o h o h"], Float[np.ndarray, "h i o h"]
]:
    """Return both layers' cov(R₁)_ij,kl, cov(R₂)_ij,kl and cov(R₁_ij, R₂_kl), Gaussian data.

    Gaussian data, P → ∞, at any weights: R₁ = W₂ᵀG and R₂ = GW₁ᵀ with G = δΣyx − W₂W₁δΣxx.
    Implements Eqs. (E1)–(E3) of [fluctuations] before white inputs and a solution are put in, which
    turn them into `layer_noise_covariances` over λ.

    Args:
        W1: First layer (N_h×N_i).
        W2: Second layer (N_o×N_h).
        Sxx: Σxx (N_i×N_i).
        Syx: Σyx (N_o×N_i).
        Syy: ⟨yyᵀ⟩ (N_o×N_o), diagonal in the paper.
        batch_size: Minibatch size S.
    """
    W1, W2 = _chain(W1, W2)
    w, Syy = W2 @ W1, np.asarray(Syy, dtype=np.float64)
    Syx = np.asarray(Syx, dtype=np.float64)
    check_shape("Syx", Syx, w.shape, f"W1 has shape {W1.shape}, W2 {W2.shape}")
    check_shape("Syy", Syy, (len(w),) * 2, f"W2 has shape {W2.shape}")
    xx, yx, cross = moment_covariances(Sxx, Syx, np.diag(Syy), batch_size)
    correlated = Syy - np.diag(np.diag(Syy))
    yx = yx + np.einsum("ik,jl->ijkl", correlated, np.asarray(Sxx, dtype=float)) / batch_size
    mixed = np.einsum("am,mjbl->ajbl", w, cross)
    G = yx - mixed - mixed.transpose(2, 3, 0, 1) + np.einsum("am,bn,mjnl->ajbl", w, w, xx)
    return (
        np.einsum("ai,bk,ajbl->ijkl", W2, W2, G),
        np.einsum("jm,ln,imkn->ijkl", W1, W1, G),
        np.einsum("ai,ln,ajkn->ijkl", W2, W1, G),
    )


@validate(X=matrix, Y=matrix, W1=matrix, W2=matrix, batch_size=count)
def two_layer_noise(
    X: ArrayLike,
    Y: ArrayLike,
    W1: ArrayLike,
    W2: ArrayLike,
    batch_size: int,
    *,
    replacement: bool = True,
) -> Float[np.ndarray, "weights weights"]:
    """Return the covariance of both layers' minibatch gradient, for these samples.

    Implements Eq. (3.19) of [fluctuations] through (C2): any inputs, outputs and finite P.
    """
    X, Y = _samples(X, Y)
    W1, W2 = _chain(W1, W2)
    errors, hidden = _errors(X, Y, W1, W2)
    first = np.einsum("hp,ip->pih", W2.T @ errors, X).reshape(X.shape[1], -1)
    second = np.einsum("op,hp->pho", errors, hidden).reshape(X.shape[1], -1)
    return minibatch_covariance(np.hstack([first, second]), batch_size, replacement=replacement)


@validate(X=matrix, Y=matrix, W1=matrix, W2=matrix, lr=positive, batch_size=count)
def two_layer_covariance(
    X: ArrayLike,
    Y: ArrayLike,
    W1: ArrayLike,
    W2: ArrayLike,
    lr: float,
    batch_size: int,
    *,
    replacement: bool = True,
    time: str = "continuous",
) -> Float[np.ndarray, "weights weights"]:
    """Return both layers' stationary covariance at a solution, for these samples.

    Solves HM + MH = λC with H of `two_layer_hessian` and C of `two_layer_noise`, so that inputs
    need not be white, samples not many, and detailed balance may be broken. Where the errors do not
    depend on the inputs and have covariance σ²·1, C = σ²H/S and M = λσ²/(2S) times the projector
    𝒥⁺𝒥, whatever Σxx is. Along the directions that leave W₂W₁ as it is, which are still to this
    order, weights diffuse to the next: their variance grows with time, in proportion to 1/S². An
    ensemble exceeds M by that much, so compare within the range of H.

    Args:
        X: Inputs (N_i×P), samples as columns.
        Y: Targets (N_o×P).
        W1: First layer (N_h×N_i).
        W2: Second layer (N_o×N_h).
        lr: Learning rate λ.
        batch_size: Minibatch size S.
        replacement: Whether a minibatch may hold a sample twice.
        time: "continuous" or "discrete".

    Raises:
        ArgumentError: The weights are not a solution, so that they are not stationary.
    """
    C = two_layer_noise(X, Y, W1, W2, batch_size, replacement=replacement)
    X, Y = _samples(X, Y)
    W1, W2 = _chain(W1, W2)
    errors, _ = _errors(X, Y, W1, W2)
    size = max(np.linalg.norm(errors), 1e-9 * np.linalg.norm(Y))  # of an interpolating solution
    rest = np.abs(errors @ X.T).max() / max(size * np.linalg.norm(X), 1e-300)
    if rest > _AT_REST:
        reason = f"errors and inputs are correlated by {rest:.2g}: the weights are no solution"
        raise ArgumentError("W1", W1, reason, "Train to the end by gradient descent first.")
    H = two_layer_hessian(W1, W2, X @ X.T / X.shape[1])
    return lyapunov_covariance(H, C, lr, time=time)


@validate(X=matrix, Y=matrix, W1=matrix, W2=matrix, lr=positive, batch_size=count)
def imbalance_drift(
    X: ArrayLike, Y: ArrayLike, W1: ArrayLike, W2: ArrayLike, lr: float, batch_size: int
) -> Float[np.ndarray, "h h"]:
    """Return the mean change of two layers' `imbalance` per step of SGD, exactly.

        λ²⟨g₂ᵀg₂ − g₁g₁ᵀ⟩; at a solution (λ²/S)·(1/P) Σ [|e|²(W₁x)(W₁x)ᵀ − |x|²(W₂ᵀe)(W₂ᵀe)ᵀ]

    with errors e = y − W₂W₁x. What gradient flow conserves (Eq. 3.6 of [fluctuations]) the noise
    changes: for white inputs by λσ_R²(N_o·W₁W₁ᵀ − N_i·W₂ᵀW₂), the slow drift of Sec. III C 2.
    """
    X, Y = _samples(X, Y)
    W1, W2 = _chain(W1, W2)
    errors, hidden = _errors(X, Y, W1, W2)
    P, back = X.shape[1], W2.T @ errors
    one = (hidden * np.sum(errors**2, axis=0)) @ hidden.T / P
    one -= (back * np.sum(X**2, axis=0)) @ back.T / P
    g1, g2 = back @ X.T / P, errors @ hidden.T / P
    many = g2.T @ g2 - g1 @ g1.T
    return lr**2 * (one / batch_size + (1 - 1 / batch_size) * many)


@validate(X=matrix, Y=matrix, W1=matrix, W2=matrix, lr=positive, batch_size=count)
def mean_drift(
    X: ArrayLike, Y: ArrayLike, W1: ArrayLike, W2: ArrayLike, lr: float, batch_size: int
) -> tuple[Float[np.ndarray, "h i"], Float[np.ndarray, "o h"]]:
    """Return how the mean of both layers moves per step along the solutions W₂W₁ = w*.

    The motion that keeps the product and changes `imbalance` by `imbalance_drift`; of those the
    shortest, as both leave (N_h−N_o)(N_i−N_h) directions open.
    """
    change = imbalance_drift(X, Y, W1, W2, lr, batch_size)
    W1, W2 = _chain(W1, W2)
    (N_h, N_i), N_o = W1.shape, len(W2)
    identity = np.eye(N_h)
    # rows: product, imbalance; columns: vec δW₁, vec δW₂
    first = np.einsum("ac,bi->abic", identity, W1).reshape(N_h**2, -1)
    second = np.einsum("oa,bc->abco", W2, identity).reshape(N_h**2, -1)
    swap = np.arange(N_h**2).reshape(N_h, N_h).T.ravel()
    moved = np.hstack([-(first + first[swap]), second + second[swap]])
    system = np.vstack([_jacobian(W1, W2), moved])
    right = np.concatenate([np.zeros(N_o * N_i), change.ravel()])
    found = np.linalg.lstsq(system, right, rcond=1e-10)[0]
    return found[: W1.size].reshape(N_i, N_h).T, found[W1.size :].reshape(N_h, N_o).T


def _chain(W1: ArrayLike, W2: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    W1, W2 = np.asarray(W1, dtype=np.float64), np.asarray(W2, dtype=np.float64)
    return W1, check_shape("W2", W2, (len(W2), len(W1)), f"W1 has shape {W1.shape}")


def _samples(X: ArrayLike, Y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    X, Y = np.asarray(X, dtype=np.float64), np.asarray(Y, dtype=np.float64)
    return X, check_shape("Y", Y, (len(Y), X.shape[1]), f"X has {X.shape[1]} samples (columns)")


def _errors(
    X: np.ndarray, Y: np.ndarray, W1: np.ndarray, W2: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors Y − W₂W₁X of two layers, and the hidden layer W₁X."""
    check_shape("W1", W1, (len(W1), len(X)), f"X has {len(X)} inputs (rows)")
    check_shape("W2", W2, (len(Y), len(W1)), f"Y has shape {Y.shape}, W1 {W1.shape}")
    hidden = W1 @ X
    return Y - W2 @ hidden, hidden


def _jacobian(W1: np.ndarray, W2: np.ndarray) -> np.ndarray:
    """Return the Jacobian 𝒥 (N_oN_i, weights) of the product of two layers."""
    return np.hstack([np.kron(np.eye(W1.shape[1]), W2), np.kron(W1.T, np.eye(len(W2)))])

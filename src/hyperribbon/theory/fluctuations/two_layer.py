"""Weight fluctuations of a two-layer linear network ŷ = W₂W₁x under SGD [fluctuations].

W₁ is N_h×N_i, W₂ is N_o×N_h, with N_h ≥ min(N_i, N_o), without which the network cannot reach the
solution of the regression. Inputs are white with variance σx², targets are noise of variance σy²,
and the weights sit at a solution. In the bases of W₁ = A S₁ Bᵀ and W₂ = U S₂ Vᵀ the fluctuations
are z₁ = VᵀδW₁ and z₂ = δW₂A (N_o×N_h), stacked column by column into Z = (vec z₁, vec z₂).
`layers` has the same for any inputs and finitely many samples.
"""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as Float

import numpy as np
from numpy.typing import ArrayLike

from hyperribbon.core.checks import (
    ArgumentError,
    check_shape,
    count,
    covariance,
    instance,
    matrix,
    non_negative_numbers,
    non_negative_row,
    numbers,
    positive,
    validate,
    zero_or_more,
)
from hyperribbon.core.result import Brief


@dataclass(frozen=True)
class TwoLayerModes(Brief):
    """Singular bases of both layers. Implements Eq. (3.23) of [fluctuations].

    Attributes:
        A: (N_h, N_h), left basis of W₁: the principal modes of δW₂.
        B: (N_i, N_i), right basis of W₁.
        U: (N_o, N_o), left basis of W₂.
        V: (N_h, m), right basis of W₂, m = min(N_o, N_h).
        s1: (min(N_h, N_i),), singular values of W₁, descending.
        s2: (m,), singular values of W₂, descending.
    """

    A: Float[np.ndarray, "h h"]
    B: Float[np.ndarray, "i i"]
    U: Float[np.ndarray, "o o"]
    V: Float[np.ndarray, "h m"]
    s1: Float[np.ndarray, "n"]
    s2: Float[np.ndarray, "m"]

    @property
    def D1(self) -> Float[np.ndarray, "h"]:
        """Eigenvalues of W₁W₁ᵀ in two-layer theory, (N_h,)."""
        return _pad(self.s1**2, len(self.A))

    @property
    def D2(self) -> Float[np.ndarray, "o"]:
        """Eigenvalues of W₂W₂ᵀ in two-layer theory, (N_o,)."""
        return _pad(self.s2**2, len(self.U))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Widths (N_i, N_h, N_o) of the network in two-layer theory."""
        return len(self.B), len(self.A), len(self.U)

    def jacobian(self) -> Float[np.ndarray, "outputs weights"]:
        """Return the two-layer 𝒥 with vec(W₂δW₁ + δW₂W₁) = 𝒥Z, so that Γ/σx² = 𝒥ᵀ𝒥."""
        N_i, N_h, N_o = self.sizes
        first = np.kron(np.eye(N_i), self.U[:, : len(self.s2)] * self.s2)
        coupled = np.zeros((N_i, N_h))
        coupled[:, : len(self.s1)] = self.B[:, : len(self.s1)] * self.s1
        return np.hstack([first, np.kron(coupled, np.eye(N_o))])

    @property
    def sums(self) -> Float[np.ndarray, "i o"]:
        """D₁k + D₂l in two-layer theory, (N_i, N_o): the eigenvalues of 𝒥𝒥ᵀ."""
        return np.add.outer(_pad(self.s1**2, len(self.B)), self.D2)


def _pad(values: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([values, np.zeros(length - len(values))])


_modes = instance(TwoLayerModes, "Give the result of decompose(W1, W2).")


@validate(W1=matrix, W2=matrix)
def decompose(W1: ArrayLike, W2: ArrayLike) -> TwoLayerModes:
    """Return the singular bases of both layers in two-layer theory.

    Raises:
        ArgumentError: The shapes do not chain, or the hidden layer is too narrow for a solution.
    """
    W1, W2 = np.asarray(W1, dtype=np.float64), np.asarray(W2, dtype=np.float64)
    check_shape("W2", W2, (len(W2), len(W1)), f"W1 has shape {W1.shape}")
    (N_h, N_i), N_o = W1.shape, len(W2)
    if N_h < min(N_i, N_o):
        reason = f"N_h = {N_h} hidden units cannot reach the solution, of rank {min(N_i, N_o)}"
        remedy = "Use a hidden layer as wide as the input or the output."
        raise ArgumentError("W1", W1, reason, remedy)
    A, s1, Bt = np.linalg.svd(W1)
    U, s2, Vt = np.linalg.svd(W2)
    return TwoLayerModes(A, Bt.T, U, Vt[: len(s2)].T, s1, s2)


@validate(lr=positive, batch_size=count, input_variance=positive, target_variance=zero_or_more)
def noise_strength(
    lr: float, batch_size: int, input_variance: float, target_variance: float
) -> float:
    """Return σ_R² = λσx²⟨y²⟩/S of two-layer noise. Implements Eq. (3.21) of [fluctuations]."""
    return lr * (input_variance * target_variance) / batch_size


@validate(Sxx=covariance, Syx=matrix, target_variance=numbers, batch_size=count)
def moment_covariances(
    Sxx: ArrayLike, Syx: ArrayLike, target_variance: ArrayLike, batch_size: int
) -> tuple[
    Float[np.ndarray, "i i i i"], Float[np.ndarray, "o i o i"], Float[np.ndarray, "i i o i"]
]:
    """Return cov(δΣxx), cov(δΣyx) and their cross term of a two-layer network's minibatch.

    Gaussian data, P → ∞, uncorrelated targets of variance ⟨y_i²⟩. Implements Eqs. (3.12a–c) of
    [fluctuations] (whose Eq. 3.14 misses σx⁴ on the second term).
    """
    Sxx, Syx = np.asarray(Sxx, dtype=np.float64), np.asarray(Syx, dtype=np.float64)
    check_shape("Syx", Syx, (len(Syx), len(Sxx)), f"Sxx has shape {Sxx.shape}")
    variances, outputs = np.asarray(target_variance, dtype=np.float64), (len(Syx),)
    check_shape("target_variance", variances, outputs, f"Syx has shape {Syx.shape}", broadcast=True)
    variances = np.broadcast_to(variances, outputs)
    xx = np.einsum("ik,jl->ijkl", Sxx, Sxx) + np.einsum("il,jk->ijkl", Sxx, Sxx)
    yx = np.einsum("ik,jl->ijkl", np.diag(variances), Sxx) + np.einsum("il,kj->ijkl", Syx, Syx)
    cross = np.einsum("ki,jl->ijkl", Syx, Sxx) + np.einsum("il,kj->ijkl", Sxx, Syx)
    return xx / batch_size, yx / batch_size, cross / batch_size


@validate(W1=matrix, W2=matrix, strength=zero_or_more, samples=count)
def layer_noise_covariances(
    W1: ArrayLike, W2: ArrayLike, strength: float, samples: int | None = None
) -> tuple[
    Float[np.ndarray, "h i h i"], Float[np.ndarray, "o h o h"], Float[np.ndarray, "h i o h"]
]:
    """Return two-layer cov(R₁)_ij,kl, cov(R₂)_ij,kl and cov(R₁_ij, R₂_kl) of gradient noise.

        σ_R²(1−N_i/P)·{δ_jl (W₂ᵀW₂)_ik,  δ_ik (W₁W₁ᵀ)_jl,  W₂ᵀ_ik W₁ᵀ_jl}

    Implements Eq. (3.21) of [fluctuations], with 1−N_i/P where it prints 1−1/P.

    Args:
        W1: First layer.
        W2: Second layer.
        strength: σ_R², see `noise_strength`.
        samples: P; None for P → ∞.
    """
    W1, W2 = np.asarray(W1, dtype=np.float64), np.asarray(W2, dtype=np.float64)
    check_shape("W2", W2, (len(W2), len(W1)), f"W1 has shape {W1.shape}")
    scale = strength * finite_sample_factor(W1.shape[1], samples)
    first = np.einsum("jl,ik->ijkl", np.eye(W1.shape[1]), W2.T @ W2)
    second = np.einsum("ik,jl->ijkl", np.eye(len(W2)), W1 @ W1.T)
    return scale * first, scale * second, scale * np.einsum("ik,jl->ijkl", W2.T, W1.T)


def finite_sample_factor(inputs: int, samples: int | None) -> float:
    """Return 1 − N_i/P, the share of targets that a two-layer regression leaves unexplained."""
    return 1.0 if samples is None else max(0.0, 1 - inputs / samples)


@validate(modes=_modes)
def drift_matrix(modes: TwoLayerModes) -> Float[np.ndarray, "weights weights"]:
    """Return the two-layer drift Γ/σx² = Δ/σ_R², N_oN_h + N_i·min(N_o, N_h) square. Eq. (3.27)."""
    J = modes.jacobian()
    return J.T @ J


@validate(modes=_modes)
def drift_eigenvalues(modes: TwoLayerModes) -> Float[np.ndarray, "weights"]:
    """Return the eigenvalues of the two-layer drift Γ/σx², descending; N_oN_i are positive.

    D₁k + D₂l once each, D₂l N_i − N_h times, and 0; if N_i ≥ N_h ≥ N_o, N_oN_h times. Implements
    Eq. (3.28) of [fluctuations].
    """
    return np.sort(_pad(modes.sums.ravel(), modes.jacobian().shape[1]))[::-1]


@validate(modes=_modes, lr=positive, batch_size=count, target_variance=zero_or_more, samples=count)
def layer_covariance(
    modes: TwoLayerModes,
    lr: float,
    batch_size: int,
    target_variance: float,
    *,
    samples: int | None = None,
) -> Float[np.ndarray, "weights weights"]:
    """Return the two-layer M = ½Γ⁺Δ of Z: λσy²/(2S)(1−N_i/P) times a projector.

    Implements Eqs. (3.29)–(3.32) of [fluctuations]. 𝒥𝒥ᵀ is a Kronecker sum, so the projector
    𝒥ᵀ(𝒥𝒥ᵀ)⁺𝒥 on the range of Γ needs no numerical pseudo-inverse.
    """
    scale = lr * target_variance / (2 * batch_size)
    sums = modes.sums.ravel()
    positive = sums > 1e-12 * sums.max()
    root = np.where(positive, 1 / np.sqrt(np.where(positive, sums, 1.0)), 0.0)
    rows = root[:, None] * (np.kron(modes.B, modes.U).T @ modes.jacobian())
    return scale * finite_sample_factor(len(modes.B), samples) * rows.T @ rows


@validate(modes=_modes, M=covariance)
def first_layer_covariance(
    modes: TwoLayerModes, M: ArrayLike
) -> Float[np.ndarray, "weights weights"]:
    """Return the two-layer cov(vec δW₁) from M of `layer_covariance`. Eq. (3.31a)."""
    size = len(modes.B) * len(modes.s2)
    lift = np.kron(np.eye(len(modes.B)), modes.V)
    return lift @ _check_covariance(modes, M)[:size, :size] @ lift.T


@validate(modes=_modes, M=covariance)
def second_layer_covariance(
    modes: TwoLayerModes, M: ArrayLike
) -> Float[np.ndarray, "weights weights"]:
    """Return the two-layer cov(vec δW₂) from M of `layer_covariance`. Eq. (3.31b)."""
    size = len(modes.B) * len(modes.s2)
    lift = np.kron(modes.A, np.eye(len(modes.U)))
    return lift @ _check_covariance(modes, M)[size:, size:] @ lift.T


def _check_covariance(modes: TwoLayerModes, M: ArrayLike) -> np.ndarray:
    N_i, N_h, N_o = modes.sizes
    size = len(modes.s2) * N_i + N_o * N_h
    return check_shape("M", np.asarray(M), (size, size), f"the modes have widths {modes.sizes}")


@validate(
    D1=non_negative_row,
    D2=non_negative_numbers,
    lr=positive,
    batch_size=count,
    target_variance=zero_or_more,
)
def second_layer_variances(
    D1: ArrayLike, D2: ArrayLike, lr: float, batch_size: int, target_variance: float
) -> Float[np.ndarray, "h o"]:
    """Return λσy²/(2S)·D₁k/(D₁k+D₂l), the eigenvalues of two-layer M₂₂, (N_h, N_o).

    Implements Eq. (3.34) of [fluctuations], here for any number of outputs.
    """
    D1, D2 = np.asarray(D1, dtype=np.float64)[:, None], np.asarray(D2, dtype=np.float64)
    scale = lr * target_variance / (2 * batch_size)
    total = D1 + np.atleast_1d(D2)
    return scale * D1 / np.where(total > 0, total, 1.0)


@validate(
    D1=non_negative_row,
    D2=positive,
    lr=positive,
    batch_size=count,
    target_variance=zero_or_more,
)
def second_layer_variances_limit(
    D1: ArrayLike, D2: float, lr: float, batch_size: int, target_variance: float
) -> Float[np.ndarray, "h"]:
    """Return λσy²/(2SD₂)·D₁, the limit of `second_layer_variances` for D₁ ≪ D₂ and one output.

    Implements Eq. (3.36) of [fluctuations]; it is too large by 1 + D₁/D₂.
    """
    return lr * target_variance / (2 * batch_size * D2) * np.asarray(D1, dtype=np.float64)

"""Linear regression under SGD: solution, Hessian, gradient noise and relaxation [fluctuations].

Samples are the columns of the design matrix X (N×P); targets Y are (P,). The loss is
L(w) = ‖wᵀX − Y‖²/(2P), a step of SGD is w ← w − λ∇L_B(w) on a minibatch B of S samples, and
continuum time is t = λτ after τ steps.
"""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

import functools
from typing import Annotated as Float

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import expm

from hyperribbon.core.checks import (
    ArgumentError,
    array,
    check_shape,
    count,
    covariance,
    decay_rates,
    matrix,
    non_negative,
    number,
    positive,
    row,
    validate,
    zero_or_more,
)

_ONE_EACH = "there is one for each of the rates"


def check_design(
    X: ArrayLike, Y: ArrayLike
) -> tuple[Float[np.ndarray, "N P"], Float[np.ndarray, "P"]]:
    """Return one layer's data X (N×P) and Y (P,) as float64 arrays that fit together."""
    X, Y = np.asarray(X, dtype=np.float64), np.asarray(Y, dtype=np.float64)
    Y = Y.reshape(-1) if Y.size == X.shape[1] else Y
    if Y.shape != (X.shape[1],):
        raise ArgumentError(
            "Y", Y, f"X has {X.shape[1]} samples (columns)", "Give one target for each column of X."
        )
    return X, Y


@validate(X=matrix)
def hessian(X: ArrayLike) -> Float[np.ndarray, "N N"]:
    """Return the one-layer Hessian H = XXᵀ/P (N×N). Implements Eq. (2.4) of [fluctuations]."""
    X = np.asarray(X, dtype=np.float64)
    return X @ X.T / X.shape[1]


@validate(X=matrix, Y=array)
def minimum_norm_solution(X: ArrayLike, Y: ArrayLike) -> Float[np.ndarray, "N"]:
    """Return the one-layer solution w* = (XXᵀ)⁺XYᵀ (N,) of smallest norm.

    Implements Eq. (2.7) of [fluctuations].

    >>> minimum_norm_solution([[1.0, 2.0]], [2.0, 4.0])
    array([2.])
    """
    X, Y = check_design(X, Y)
    return np.linalg.lstsq(X.T, Y, rcond=None)[0]


@validate(X=matrix, Y=array, w=row)
def residuals(X: ArrayLike, Y: ArrayLike, w: ArrayLike | None = None) -> Float[np.ndarray, "P"]:
    """Return one layer's residuals r = wᵀX − Y (P,), at the solution unless `w` is given.

    With N ≥ P and X of full rank the solution interpolates: its residuals are exactly zero.
    """
    X, Y = check_design(X, Y)
    if w is not None:
        weights = np.asarray(w, dtype=np.float64)
        return check_shape("w", weights, (len(X),), f"X has {len(X)} inputs (rows)") @ X - Y
    r = minimum_norm_solution(X, Y) @ X - Y
    rounding = 1e3 * np.finfo(float).eps * max(X.shape) * max(np.linalg.norm(Y), 1e-300)
    return np.where(np.linalg.norm(r) <= rounding, 0.0, r)


@validate(X=matrix, Y=array, w=row)
def regression_loss(X: ArrayLike, Y: ArrayLike, w: ArrayLike | None = None) -> float:
    """Return the one-layer loss L(w) = ‖wᵀX − Y‖²/(2P), L* unless `w` is given. Eq. (2.3)."""
    return float(np.mean(residuals(X, Y, w) ** 2) / 2)


@validate(gradients=matrix, batch_size=count)
def minibatch_covariance(
    gradients: ArrayLike, batch_size: int, *, replacement: bool = True
) -> Float[np.ndarray, "N N"]:
    """Return the covariance of the mean of `batch_size` one-layer gradients (P×N).

        C = f·[(1/P) Σ gᵘgᵘᵀ − ḡḡᵀ],  f = 1/S with replacement, (P−S)/(S(P−1)) without.

    Implements Eqs. (2.14) and (C2) of [fluctuations].

    Raises an ArgumentError when more distinct samples are asked for than there are.
    """
    g = np.asarray(gradients, dtype=np.float64)
    centered = g - g.mean(axis=0)
    return batch_factor(len(g), batch_size, replacement) * (centered.T @ centered) / len(g)


def batch_factor(samples: int, batch_size: int, replacement: bool) -> float:
    """Return 1/S, or (P−S)/(S(P−1)) for distinct samples, for the noise of one layer."""
    if replacement:
        return 1 / batch_size
    if batch_size > samples:
        reason = f"only {samples} distinct samples can be drawn without replacement"
        remedy = f"Use at most {samples}, or sample with replacement."
        raise ArgumentError("batch_size", batch_size, reason, remedy)
    if batch_size == samples:
        return 0.0
    return (samples - batch_size) / (batch_size * (samples - 1))


@validate(X=matrix, Y=array, batch_size=count, w=row)
def noise_covariance(
    X: ArrayLike,
    Y: ArrayLike,
    batch_size: int,
    w: ArrayLike | None = None,
    *,
    replacement: bool = True,
) -> Float[np.ndarray, "N N"]:
    """Return the covariance C (N×N) of the one-layer minibatch gradient at `w`, or at w*.

        C(w) = (1/S)[(1/P) Σ (rᵘ)²xᵘxᵘᵀ − ∇L∇Lᵀ],   C(w*) = X K Xᵀ/S, K = diag(r²)/P.

    Implements Eqs. (2.14), (2.16)–(2.18) of [fluctuations]; the subtracted gradient is Hw̄ − J,
    not the Hw̄ of its Eq. (2.15), which holds only for P → ∞.
    """
    X, Y = check_design(X, Y)
    return minibatch_covariance((X * residuals(X, Y, w)).T, batch_size, replacement=replacement)


@validate(X=matrix, Y=array)
def residual_weights(X: ArrayLike, Y: ArrayLike) -> Float[np.ndarray, "P"]:
    """Return P·K = (r*)² (P,), each sample's weight in one layer's C. Implements Eq. (2.18)."""
    return residuals(X, Y) ** 2


@validate(H=covariance, batch_size=count, label_variance=zero_or_more, deviation=row)
def noise_covariance_limit(
    H: ArrayLike, batch_size: int, label_variance: float, deviation: ArrayLike | None = None
) -> Float[np.ndarray, "N N"]:
    """Return one layer's C for P → ∞ Gaussian samples, at w = u + `deviation`.

        C = (1/S)[H w̄w̄ᵀ H + tr(H w̄w̄ᵀ) H + σε² H];  w̄ = 0 gives (σε²/S) H.

    Implements Eqs. (2.19) and (2.20) of [fluctuations].
    """
    H = np.asarray(H, dtype=np.float64)
    if deviation is None:
        return label_variance * H / batch_size
    w = np.asarray(deviation, dtype=np.float64)
    Hw = H @ check_shape("deviation", w, (len(H),), f"H has shape {H.shape}")
    return (np.outer(Hw, Hw) + (w @ Hw + label_variance) * H) / batch_size


@validate(inputs=count, samples=count)
def projector_variance(inputs: int, samples: int) -> tuple[float, float]:
    """Return exact variances of (diagonal, off-diagonal) entries of one layer's X⁺X, N ≤ P.

        Var diagonal = 2N(P−N)/[P²(P+2)],   Var off-diagonal = N(P−N)/[P(P−1)(P+2)].

    The diagonal is Beta(N/2, (P−N)/2) distributed. In s = P/N the exponent is −2 for s → ∞, where
    [fluctuations] reads −1.8 off its Fig. 2(a).
    """
    N, P = inputs, samples
    if N >= P:
        return 0.0, 0.0
    diagonal = 2 * N * (P - N) / (P**2 * (P + 2))
    return diagonal, N * (P - N) / (P * (P - 1) * (P + 2))


@validate(inputs=count, samples=count, variance=positive)
def marchenko_pastur_edges(inputs: int, samples: int, variance: float) -> tuple[float, float]:
    """Return the edges σx²(1 ∓ √(N/P))² of the one-layer spectrum of H for N, P → ∞.

    The lower edge is the slowest relaxation rate ω₀ of Sec. II B 3 of [fluctuations], whose printed
    form σx²(√(P/N) − 1)² is too large by P/N.
    """
    root = np.sqrt(inputs / samples)
    return float(variance * (1 - root) ** 2), float(variance * (1 + root) ** 2)


@validate(t=non_negative, second_moment=positive, lr=positive, batch_size=count, start=number)
def geometric_brownian_moments(
    t: ArrayLike, second_moment: float, lr: float, batch_size: int, start: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of the error of one layer with one input, without noise.

        ⟨w̄⟩ = w₀e^(−at),  Var w̄ = w₀²[e^(2a(λa/S − 1)t) − e^(−2at)],  a = ⟨x²⟩.

    Implements Eq. (2.24) of [fluctuations], with the λ its variance lacks in print.
    """
    t, a = np.asarray(t, dtype=np.float64), second_moment
    rate = lr * a / batch_size - 1
    return start * np.exp(-a * t), start**2 * (np.exp(2 * a * rate * t) - np.exp(-2 * a * t))


@validate(t=zero_or_more, H=covariance, lr=positive, batch_size=count, start=row)
def multiplicative_moments(
    t: float, H: ArrayLike, lr: float, batch_size: int, start: ArrayLike
) -> tuple[Float[np.ndarray, "N"], Float[np.ndarray, "N N"]]:
    """Return mean and covariance of one layer's w̄ = w − u at time t, without label noise.

    Gaussian samples, P → ∞: ⟨Z_ij Z_kl⟩ = H_ik H_jl + H_il H_jk, so that G = ⟨w̄w̄ᵀ⟩ obeys

        dG/dt = −HG − GH + (λ/S)[HGH + tr(HG)H]

    Implements Eqs. (2.21)–(2.23) of [fluctuations]; `geometric_brownian_moments` is N = 1. In the
    eigenbasis of H the diagonal of G is a linear system of its own, and every other entry decays
    alone. All of G vanishes for white inputs if and only if ⟨x²⟩ < 2S/(λ(N+1)), of which the
    ⟨x²⟩ < S/λ of the paper is N = 1.

    Args:
        t: Time.
        H: Second moment ⟨xxᵀ⟩ (N×N) of the inputs.
        lr: Learning rate λ.
        batch_size: Minibatch size S.
        start: w̄(0), (N,).
    """
    H, begin = np.asarray(H, dtype=np.float64), np.asarray(start, dtype=np.float64)
    check_shape("start", begin, (len(H),), f"H has shape {H.shape}")
    rates, V = np.linalg.eigh(H)
    z, eta = V.T @ begin, lr / batch_size
    decay = -np.add.outer(rates, rates) + eta * np.multiply.outer(rates, rates)
    G = np.exp(decay * t) * np.outer(z, z)
    np.fill_diagonal(G, expm((np.diag(np.diag(decay)) + eta * np.outer(rates, rates)) * t) @ z**2)
    mean = np.exp(-rates * t) * z
    return V @ mean, V @ (G - np.outer(mean, mean)) @ V.T


@validate(H=covariance, J=row, label_variance=zero_or_more, lr=positive, batch_size=count)
def noise_orders(
    H: ArrayLike, J: ArrayLike, label_variance: float, lr: float, batch_size: int
) -> tuple[Float[np.ndarray, "N N"], float, Float[np.ndarray, "N N"]]:
    """Return one layer's S·C(w) in orders of √(λ/S): C₀, the norm of C_{1/2}, and C₁.

        C₀ = JJᵀ + (JᵀH⁻¹J + σε²)H,   C_{1/2} = √η[Jw₁ᵀH + Hw₁Jᵀ + 2(Jᵀw₁)H],
        C₁ = η[H⟨w₁w₁ᵀ⟩H + tr(H⟨w₁w₁ᵀ⟩)H],   H⟨w₁w₁ᵀ⟩ + ⟨w₁w₁ᵀ⟩H = C₀,   η = λ/S.

    What is neglected when noise is taken as additive: C_{1/2} is zero on average, C₁ is not.
    Implements Eqs. (D5)–(D8) of [fluctuations]; the factor of (D8) is η, not η/2.

    Args:
        H: Hessian (N×N), positive definite.
        J: Xεᵀ/P (N,), see Eq. (2.6).
        label_variance: σε².
        lr: Learning rate λ.
        batch_size: Minibatch size S.

    Raises:
        ArgumentError: H is singular.
    """
    H, J = np.asarray(H, dtype=np.float64), np.asarray(J, dtype=np.float64)
    check_shape("J", J, (len(H),), f"H has shape {H.shape}")
    rates, V = np.linalg.eigh(H)
    if rates[0] <= 1e-12 * rates[-1]:
        reason = f"its smallest eigenvalue is {rates[0]:.3g}, so that the solution is not unique"
        raise ArgumentError("H", H, reason, "Use more samples than inputs.")
    eta, shift = lr / batch_size, np.linalg.solve(H, J)
    C0 = np.outer(J, J) + (J @ shift + label_variance) * H
    M = V @ ((V.T @ C0 @ V) / np.add.outer(rates, rates)) @ V.T
    HM = H @ M
    square = 2 * (J @ J) * np.trace(HM @ H) + 2 * J @ HM @ H @ J
    square += 4 * (J @ M @ J) * np.sum(H**2) + 8 * J @ M @ H @ H @ J
    return C0, float(np.sqrt(eta * square)), eta * (HM @ H + np.trace(HM) * H)


@validate(t=non_negative, rates=decay_rates, start=array, solution=array)
def mode_mean(
    t: ArrayLike, rates: ArrayLike, start: ArrayLike, solution: ArrayLike
) -> Float[np.ndarray, "*times modes"]:
    """Return one layer's ⟨z_k(t)⟩ = z*_k + e^(−ω_k t)(z_k(0) − z*_k). Eq. (2.27)."""
    start, solution = np.asarray(start, dtype=np.float64), np.asarray(solution, dtype=np.float64)
    decay = np.exp(-np.multiply.outer(t, rates))
    for name, given in (("start", start), ("solution", solution)):
        check_shape(name, given, np.shape(rates), _ONE_EACH, broadcast=True)
    return solution + decay * (start - solution)


@validate(
    t=zero_or_more, rates=functools.partial(decay_rates, ndim=1), noise=covariance, lr=positive
)
def mode_covariance(
    t: float, rates: ArrayLike, noise: ArrayLike, lr: float
) -> Float[np.ndarray, "modes modes"]:
    """Return one layer's covariance of modes at time t after a start without fluctuations.

        M̃_ij(t) = λ C̃_ij (1 − e^(−(ω_i+ω_j)t))/(ω_i+ω_j)

    from Eq. (2.27) of [fluctuations]; `noise` is C̃ = VᵀCV in the eigenbasis of H. Modes without a
    restoring force (ω_i + ω_j = 0) diffuse: λ C̃_ij t.
    """
    noise, omega = np.asarray(noise, dtype=np.float64), np.asarray(rates, dtype=np.float64)
    check_shape("rates", omega, (len(noise),), f"noise has shape {noise.shape}")
    sums = np.add.outer(omega, omega)
    safe = np.where(sums > 0, sums, 1.0)
    growth = np.where(sums > 0, -np.expm1(-safe * t) / safe, t)
    return lr * noise * growth

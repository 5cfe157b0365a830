"""Stationary covariance of the weights under SGD, continuous and discrete time [fluctuations]."""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from typing import Annotated as Float

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_continuous_lyapunov
from scipy.sparse.linalg import LinearOperator, eigsh

from hyperribbon.core.checks import (
    ArgumentError,
    array,
    check_choice,
    check_shape,
    count,
    covariance,
    matrix,
    positive,
    symmetric,
    validate,
    zero_or_more,
)
from hyperribbon.theory.fluctuations.one_layer import (
    batch_factor,
    check_design,
    hessian,
    noise_covariance,
)

_NULL = 1e-12


@validate(H=symmetric, C=covariance, lr=positive)
def lyapunov_covariance(
    H: ArrayLike, C: ArrayLike, lr: float, *, time: str = "continuous"
) -> Float[np.ndarray, "N N"]:
    """Return the stationary covariance M of the weights for curvature H and gradient noise C.

        continuous:  HM + MH = λC          M̃_ij = λC̃_ij/(ω_i+ω_j)
        discrete:    HM + MH − λHMH = λC   M̃_ij = λC̃_ij/(ω_i+ω_j−λω_iω_j)

    in the eigenbasis of H. The continuous form implements Eqs. (2.29)–(2.31) of [fluctuations]; the
    discrete one is exact for w ← w − λ(Hw + ξ) with noise ξ that does not depend on w. Directions
    without curvature and without noise do not fluctuate.

    Args:
        H: Curvature (N×N), symmetric, no negative eigenvalues.
        C: Covariance (N×N) of one step's gradient noise.
        lr: Learning rate λ.
        time: "continuous" or "discrete".

    Raises:
        ArgumentError: H or C is not positive semidefinite, noise acts where there is no curvature
            (the weights diffuse for ever), or the learning rate is beyond stability.

    >>> lyapunov_covariance([[2.0]], [[4.0]], 0.1)
    array([[0.1]])
    """
    check_choice("time", time, ("continuous", "discrete"))
    rates, V, noise, null = in_eigenbasis(H, C)
    sums = np.add.outer(rates, rates)
    if time == "discrete":
        check_stable(lr, float(rates[-1]))
        sums = sums - lr * np.multiply.outer(rates, rates)
    M = V @ np.where(null, 0.0, lr * noise / np.where(null, 1.0, sums)) @ V.T
    return (M + M.T) / 2


@validate(H=symmetric, C=covariance)
def antisymmetric_part(H: ArrayLike, C: ArrayLike) -> Float[np.ndarray, "N N"]:
    """Return Q = −Qᵀ of a stationary HM = (λ/2)(C + Q): Q̃_ij = C̃_ij (ω_i−ω_j)/(ω_i+ω_j).

    Zero when C is a function of H; otherwise detailed balance is broken. Implements Eq. (2.31) of
    [fluctuations].
    """
    rates, V, noise, null = in_eigenbasis(H, C)
    sums = np.where(null, 1.0, np.add.outer(rates, rates))
    Q = V @ (noise * np.subtract.outer(rates, rates) / sums) @ V.T
    return (Q - Q.T) / 2


@validate(deviation=array, H=symmetric, C=covariance, lr=positive)
def probability_current(
    deviation: ArrayLike, H: ArrayLike, C: ArrayLike, lr: float
) -> Float[np.ndarray, "*n N"]:
    """Return the stationary velocity 𝒥/p = −(λ/2) Q M⁺ δw at weights w* + δw, (N,) or (n, N).

    Implements Eq. (2.32) of [fluctuations], with the λ/2 it lacks in print. The velocity runs
    along surfaces of constant density: δwᵀM⁺𝒥 = 0.
    """
    M = lyapunov_covariance(H, C, lr)
    deviation = np.asarray(deviation, dtype=np.float64)
    shape = (*deviation.shape[:-1], len(M))
    check_shape("deviation", deviation, shape, f"H has shape {M.shape}")
    force = deviation @ np.linalg.pinv(M, hermitian=True)
    return -(lr / 2) * force @ antisymmetric_part(H, C).T


@validate(H=symmetric, C=covariance, lr=positive)
def detailed_balance_covariance(H: ArrayLike, C: ArrayLike, lr: float) -> Float[np.ndarray, "N N"]:
    """Return (λ/2) H^(−1/2) C H^(−1/2), stationary if detailed balance held.

    (λ/2)H⁻¹C of Eq. (2.33) of [fluctuations] is not symmetric at finite P; this symmetric matrix
    has the same eigenvalues. Directions without curvature are left out.
    """
    rates, V, noise, _ = in_eigenbasis(H, C)
    keep = rates > _NULL * rates[-1]
    root = np.where(keep, 1 / np.sqrt(np.where(keep, rates, 1.0)), 0.0)
    return lr / 2 * (V * root) @ noise @ (V * root).T


@validate(
    H=symmetric, C=covariance, lr=positive, temperature=zero_or_more, preconditioner=covariance
)
def sampler_covariance(
    H: ArrayLike,
    C: ArrayLike,
    lr: float,
    *,
    temperature: float = 0.0,
    preconditioner: ArrayLike | None = None,
) -> Float[np.ndarray, "N N"]:
    """Return the stationary covariance of SGD as a sampler of the posterior exp(−L/T).

    For w ← w − λB(Hw + ξ) + √(2λT)·B^{1/2}n with a preconditioner B and unit white noise n,

        BHM + MHBᵀ = λBCBᵀ + 2TB,   the posterior's being T·H⁻¹.

    Injected noise dominates for λ → 0 at fixed T, so that M → T·H⁻¹: Langevin dynamics. Without it,
    B of `sampling_preconditioner` gives the same. Implements Appendix B of [fluctuations].

    Args:
        H: Curvature (N×N), positive definite.
        C: Covariance (N×N) of one step's gradient noise.
        lr: Learning rate λ.
        temperature: T of the injected noise; 0 for none.
        preconditioner: B (N×N), symmetric positive definite; by default 1.

    Raises:
        ArgumentError: BH is not stable.

    >>> sampler_covariance([[2.0]], [[0.0]], 0.1, temperature=1.0)
    array([[0.5]])
    """
    rates, V, _, _ = in_eigenbasis(H, C)
    H, C = (V * rates) @ V.T, np.asarray(C, dtype=np.float64)
    B = np.eye(len(H)) if preconditioner is None else np.asarray(preconditioner, dtype=np.float64)
    check_shape("preconditioner", B, H.shape, f"H has shape {H.shape}")
    drift = B @ H
    slowest = float(np.linalg.eigvals(drift).real.min())
    if slowest <= _NULL * np.abs(drift).max():
        reason = f"a mode of BH decays at {slowest:.3g}: the weights have no stationary state"
        raise ArgumentError("H", H, reason, "Give a positive definite H and preconditioner.")
    M = solve_continuous_lyapunov(drift, lr * B @ C @ B.T + temperature * (B + B.T))
    return (M + M.T) / 2


@validate(C=covariance, lr=positive, temperature=positive)
def sampling_preconditioner(
    C: ArrayLike, lr: float, temperature: float
) -> Float[np.ndarray, "N N"]:
    """Return B = (2T/λ)C⁻¹, with which SGD's stationary covariance is T·H⁻¹ exactly.

    The preconditioning of Appendix B of [fluctuations].

    Raises:
        ArgumentError: C is singular.
    """
    C = np.asarray(C, dtype=np.float64)
    values = np.linalg.eigvalsh(C)
    if values[0] <= _NULL * max(values[-1], 1e-300):
        reason = f"its smallest eigenvalue is {values[0]:.3g}"
        raise ArgumentError("C", C, reason, "Give noise in every direction.")
    return 2 * temperature / lr * np.linalg.inv(C)


@validate(lr=positive, label_variance=zero_or_more, batch_size=count)
def isotropic_variance(lr: float, label_variance: float, batch_size: int) -> float:
    """Return λσε²/(2S), the stationary variance of every weight for P/N → ∞. Eq. (2.34)."""
    return lr * label_variance / (2 * batch_size)


@validate(H=covariance, lr=positive)
def relaxation_steps(H: ArrayLike, lr: float) -> float:
    """Return 1/(λω₀), the steps in which the slowest mode becomes stationary by a factor e."""
    rates = np.linalg.eigvalsh(np.asarray(H, dtype=np.float64))
    positive = rates[rates > _NULL * max(rates[-1], 0.0)]
    if positive.size == 0:
        raise ArgumentError(
            "H", H, "it has no positive eigenvalue", "Give a positive (semi-)definite H."
        )
    return float(1 / (lr * positive[0]))


@validate(X=matrix, Y=array, lr=positive, batch_size=count, rtol=positive)
def discrete_covariance(
    X: ArrayLike,
    Y: ArrayLike,
    lr: float,
    batch_size: int,
    *,
    replacement: bool = True,
    rtol: float = 1e-12,
) -> Float[np.ndarray, "N N"]:
    """Return the exact stationary covariance of SGD on linear regression, at any learning rate.

        HM + MH − λHMH = λ{C + f·[(1/P) Σ (xᵀMx) xxᵀ − HMH]},

    f = 1/S with replacement and (P−S)/(S(P−1)) without. The second term is the noise that the
    fluctuations themselves bring in, which Eq. (2.29) of [fluctuations] leaves out together with
    −λHMH. Solved by fixed-point rounds, each one discrete-time Lyapunov equation.

    Args:
        X: Design matrix (N×P), samples as columns.
        Y: Targets (P,).
        lr: Learning rate λ.
        batch_size: Minibatch size S.
        replacement: Whether a minibatch may draw a sample twice.
        rtol: Relative change of M at which the rounds end.

    Raises:
        ArgumentError: The mean (λω_max ≥ 2) or the covariance has no stationary state.
    """
    X, Y = check_design(X, Y)
    H, samples = hessian(X), X.shape[1]
    if not H.any():
        reason = "its moments are zero, so the weights do not move"
        raise ArgumentError("X", X, reason, "Give inputs of another scale.")
    additive = noise_covariance(X, Y, batch_size, replacement=replacement)
    factor = batch_factor(samples, batch_size, replacement)
    check_second_moments(X, lr, factor)
    M = lyapunov_covariance(H, additive, lr, time="discrete")
    for _ in range(10_000):
        fed_back = (X * np.einsum("np,np->p", X, M @ X)) @ X.T / samples - H @ M @ H
        noise = additive + factor * (fed_back + fed_back.T) / 2
        previous, M = M, lyapunov_covariance(H, noise, lr, time="discrete")
        if np.trace(M - previous) <= rtol * np.trace(M):
            return M
    reason = "it is so near its largest value that the covariance was not found in 10,000 rounds"
    raise ArgumentError("lr", lr, reason, "Use a smaller learning rate or a larger batch.")


def check_stable(lr: float, largest_rate: float) -> None:
    """Raise if there is no stationary state: gradient descent with step `lr` diverges."""
    if lr * largest_rate >= 2:
        reason = f"gradient descent diverges: the largest curvature is {largest_rate:.4g}"
        raise ArgumentError("lr", lr, reason, f"Use less than 2/ω_max = {2 / largest_rate:.4g}.")


def check_second_moments(X: np.ndarray, lr: float, factor: float, *, substeps: int = 1) -> None:
    """Raise unless SGD on linear regression has a stationary state: finite second moments.

    These follow M ← (1−λH)M(1−λH) + fλ²Φ(M) + λ²C with Φ(M) = (1/P) Σ (xᵀMx) xxᵀ − HMH. Both parts
    map covariances to covariances, so that the spectral radius is below one if and only if
    λω_max < 2 and the largest κ of fλ²Φ(M) = κ[M − (1−λH)M(1−λH)] is below one.

    Args:
        X: Design matrix (N×P).
        lr: Learning rate λ.
        factor: f, from `batch_factor`.
        substeps: Steps of λ/substeps, with noise of as much larger variance, for the flow.

    Raises:
        ArgumentError: They grow without bound.
    """
    rates, V = np.linalg.eigh(hessian(X))
    check_stable(lr, float(rates[-1]) / substeps)
    step, factor = lr / substeps, factor * substeps
    held = rates > _NULL * rates[-1]
    rates, x = rates[held], V[:, held].T @ X
    # M = 1 shrinks at once in most cases, which settles them.
    trial = (x * np.sum(x**2, axis=0)) @ x.T / X.shape[1] - np.diag(rates**2)
    scale = np.sqrt(2 * rates - step * rates**2)
    if np.linalg.eigvalsh(factor * step * trial / np.outer(scale, scale))[-1] < 1:
        return
    shrinking = np.add.outer(rates, rates) - step * np.multiply.outer(rates, rates)
    root, size = np.sqrt(shrinking), len(rates)

    def fed_back(vector: np.ndarray) -> np.ndarray:
        M = vector.reshape(size, size) / root
        grown = (x * np.einsum("np,np->p", x, M @ x)) @ x.T / X.shape[1]
        return (factor * step * (grown - M * np.multiply.outer(rates, rates)) / root).ravel()

    if size > 1:
        operator = LinearOperator(shape=(size**2, size**2), matvec=fed_back, dtype=np.float64)
        start = np.diag(np.diag(root)).ravel()
        largest = eigsh(operator, 1, which="LA", v0=start, return_eigenvectors=False)[0]
    else:
        largest = fed_back(np.ones(1))[0]
    if largest >= 1:
        reason = (
            "the chains diverge: the noise of each step feeds on the fluctuations, "
            f"{largest:.4g} times as strongly as they decay"
        )
        raise ArgumentError("lr", lr, reason, "Use a smaller learning rate or a larger batch.")


def in_eigenbasis(
    H: ArrayLike, C: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return ω ascending, V, C̃ = VᵀCV and where ω_i + ω_j vanishes, for stationary covariances."""
    H, C = np.asarray(H, dtype=np.float64), np.asarray(C, dtype=np.float64)
    if C.shape != H.shape:
        raise ArgumentError(
            "C", C, f"H has shape {H.shape}", "Give two square matrices of one size."
        )
    rates, V = np.linalg.eigh((H + H.T) / 2)
    scale = max(abs(rates[0]), abs(rates[-1]))
    if rates[0] < -1e-9 * scale:
        reason = f"it has the negative eigenvalue {rates[0]:.4g}, along which weights run away"
        remedy = "Measure at a minimum, or use the GGN instead of the Hessian."
        raise ArgumentError("H", H, reason, remedy)
    rates = np.maximum(rates, 0.0)
    noise = V.T @ ((C + C.T) / 2) @ V
    flat = rates <= _NULL * scale
    if flat.any() and noise[np.ix_(flat, flat)].max() > 1e-9 * max(abs(noise).max(), 1e-300):
        reason = (
            f"it puts noise into {int(flat.sum())} directions without curvature, where weights "
            "diffuse without end"
        )
        raise ArgumentError("C", C, reason, "Restrict both matrices to the range of H.")
    return rates, V, noise, np.logical_and.outer(flat, flat)

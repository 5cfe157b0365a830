"""SGD with its state-dependent noise, and several kernels together."""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated as Float
from typing import Literal

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from hyperribbon.core.checks import (
    ArgumentError,
    Check,
    check_array,
    check_choice,
    check_fraction,
    check_shape,
    count,
    matrices,
    matrix,
    positive,
    validate,
    zero_or_more,
)
from hyperribbon.core.result import Brief
from hyperribbon.theory.ribbons.bounds import Bound, decay_base, split_index
from hyperribbon.theory.ribbons.geometric_sums import mean_powers, pair_sums, square_sums
from hyperribbon.theory.ribbons.truncation import dimensions_of

_targets: Check = partial(check_array, ndim=(1, 2))


@dataclass(frozen=True, eq=False)
class TrajectoryCovariance(Brief):
    """Covariance P = P1 − P2 of the points on trajectories, in the basis of the samples.

    Of C outputs the coordinates are those of the first sample, then of the second: n·C for n below.

    Attributes:
        P1: (n, n), second moment of the residuals divided by √n.
        P2: (n, n), outer product of their mean.
        losses: (T,), expected ‖r_t‖²/2n at every step; empty where it was not followed.
    """

    P1: Float[np.ndarray, "n n"]
    P2: Float[np.ndarray, "n n"]
    losses: Float[np.ndarray, "T"]

    @property
    def P(self) -> Float[np.ndarray, "n n"]:
        """Covariance of all points of a ribbon variant (SGD, several kernels): (n, n)."""
        return self.P1 - self.P2

    def spectrum(self, part: Literal["P", "P1", "P2"] = "P") -> Float[np.ndarray, "n"]:
        """Return the eigenvalues of a part of a ribbon variant, descending."""
        check_choice("part", part, ("P", "P1", "P2"))
        return scipy.linalg.eigvalsh(getattr(self, part))[::-1]

    def dimensions(self, fraction: float = 0.95) -> int:
        """Return how many principal components carry `fraction` of a ribbon variant's variance."""
        return dimensions_of(self.spectrum(), check_fraction("fraction", fraction))


@validate(X=matrix, y=_targets, sigma_w=zero_or_more, alpha=positive, steps=count, batch_size=count)
def sgd(
    X: np.ndarray,
    y: np.ndarray,
    sigma_w: float,
    alpha: float,
    steps: int,
    batch_size: int,
    noise: Literal["exact", "constant"] = "exact",
) -> TrajectoryCovariance:
    """Return the variant of a ribbon for SGD with batches drawn with replacement.

    The second moment M_t = E[r_t r_tᵀ] obeys, exactly,

        M_{t+1} = K_d M_t K_d + (α²/b)·[n·K·diag(M_t)·K − K M_t K],

    so the noise vanishes with the residuals. Of several outputs, which share their batches, the
    moments of any two, E[r_t^a (r_t^b)ᵀ], obey the same. "constant" replaces the bracket by K²
    (zero between outputs), the Langevin model of Eq. (11) of [ribbons] with residuals divided by
    √n; it never vanishes.

    Args:
        X: (n, d), data.
        y: (n,) or (n, C), targets.
        sigma_w: Standard deviation of the initial weights.
        alpha: Learning rate.
        steps: T, points of each trajectory.
        batch_size: b.
        noise: "exact" or "constant".

    Raises:
        ArgumentError: The second moment diverges (it can, for α well below 2/λ₁).
    """
    check_choice("noise", noise, ("exact", "constant"))
    n = len(X)
    check_shape("y", y, (n, *y.shape[1:]), f"X has {n} samples (rows)")
    K = X @ X.T / n
    residual = -y.reshape(n, -1).T / np.sqrt(n)
    same = np.eye(len(residual))[:, :, None, None]
    M = sigma_w**2 * same * K + _outer(residual)
    kick = alpha**2 / batch_size
    decay = np.eye(n) - alpha * K
    total, mean = np.zeros_like(M), np.zeros_like(residual)
    losses = np.zeros(steps)
    for t in range(steps):
        losses[t] = np.einsum("aaii", M) / 2
        total += M
        mean += residual
        sizes = np.diagonal(M, axis1=2, axis2=3)[:, :, None]
        spread = (n * K * sizes) @ K - K @ M @ K if noise == "exact" else same * (K @ K)
        M = decay @ M @ decay + kick * spread
        residual = residual @ decay
        if not losses[t] < 1e12 * (losses[0] + sigma_w**2 + 1):
            reason = f"with batches of {batch_size} the second moment diverges (step {t})"
            raise ArgumentError("alpha", alpha, reason, "Lower alpha or raise batch_size.")
    return _covariance(total / steps, mean / steps, losses)


@validate(grams=matrices, y=_targets, sigma_w=zero_or_more, alpha=positive, steps=count)
def several_kernels(
    grams: Sequence[np.ndarray], y: np.ndarray, sigma_w: float, alpha: float, steps: int
) -> TrajectoryCovariance:
    """Return the variant of a ribbon for M kernel machines taken together.

        P(M, T) = (1/M) Σ_m P₁^(m) − K_{T,M} yyᵀ K_{T,M},   K_{T,M} = (1/MT) Σ_m Σ_t K_d^(m)t.

    Implements Sec. III of [ribbons]. The kernels share samples, targets and learning rate.

    Args:
        grams: Gram matrices k(xᵢ, xⱼ), each (n, n) and shared by all outputs; K is gram/n.
        y: (n,) or (n, C), targets.
        sigma_w: Standard deviation of the initial functions, σw·GP(0, k).
        alpha: Learning rate.
        steps: T, points of each trajectory.
    """
    n = len(y)
    for index, gram in enumerate(grams):
        check_shape(f"grams[{index}]", gram, (n, n), f"there are {n} targets")
    y = y.reshape(n, -1).T / np.sqrt(n)
    same = np.eye(len(y))[:, :, None, None]
    second, mean = np.zeros((len(y), len(y), n, n)), np.zeros_like(y)
    for eigenvalues, U in _spectra(grams, alpha):
        rates, targets = alpha * eigenvalues, y @ U
        part = _outer(targets) * pair_sums(rates, steps)
        part += same * np.diag(sigma_w**2 * eigenvalues * square_sums(rates, steps))
        second += U @ part @ U.T / (steps * len(grams))
        mean += (mean_powers(rates, steps) * targets) @ U.T / len(grams)
    return _covariance(second, mean, np.zeros(0))


@validate(grams=matrices, y=_targets, sigma_w=zero_or_more, alpha=positive, steps=count)
def kernels_bound(
    grams: Sequence[np.ndarray], y: np.ndarray, sigma_w: float, alpha: float, steps: int
) -> Bound:
    """Bound the eigenvalues of P₁ of the variant of several kernels relative to the first.

    With j = ⌊(i−1)/M⌋ + 1, Lemma 3 is applied to every kernel at index j and averaged:

        λᵢ/λ₁ ≤ min{1, (4/M) Σ_m ρ_m^{−(j−1)} + σw²/(α‖y‖²)}                            j ≤ 2k*,
        λᵢ/λ₁ ≤ (1/M) Σ_m {4ρ_m^{−(k*−1)} + min{1, 2αTλ^(m)_{j−k*+1}}·σw²/(α‖y‖²)}      beyond.

    Implements Eq. (12) of [ribbons]. The paper states the first line for i ≤ 2k*; Weyl's
    inequality needs j there, and that is what is used. As for `spectrum_bound`, the running
    minimum is taken, and for C outputs every eigenvalue counts C times.

    Returns:
        The ratios (n,) and their upper bounds; the lower ones are zero.

    Raises:
        ArgumentError: All targets are zero.
    """
    if not y.any():
        raise ArgumentError("y", y, "the bound divides by ‖y‖", "Give targets that are not zero.")
    truth = several_kernels(grams, y, sigma_w, alpha, steps).spectrum("P1")
    spectra = [eigenvalues[eigenvalues > 0] for eigenvalues, _ in _spectra(grams, alpha)]
    n, count = len(truth), len(grams)
    spectra = [np.repeat(spectrum, n // len(y)) for spectrum in spectra]
    weight = sigma_w**2 / (alpha * ((y**2).sum() / len(y)))
    rhos = np.array([decay_base(spectrum) for spectrum in spectra])[:, None]
    k = min(split_index(spectrum, alpha, steps) for spectrum in spectra)
    j = np.arange(n) // count + 1
    partners: NDArray[np.float64] = np.array(
        [np.append(s, np.zeros(n - len(s)))[np.clip(j - k, 0, n - 1)] for s in spectra]
    )
    head: NDArray[np.float64] = 4 * np.mean(rhos ** -(j - 1.0), axis=0) + weight
    reach = weight * np.minimum(1, 2 * alpha * steps * partners)
    beyond: NDArray[np.float64] = np.mean(4 * rhos ** -(k - 1.0) + reach, axis=0)
    upper = np.minimum.accumulate(np.where(j <= 2 * k, np.minimum(1, head), beyond))
    return Bound(truth / truth[0], upper, np.zeros(n))


def _outer(rows: np.ndarray) -> np.ndarray:
    """Return a ribbon variant's outer products of any two rows (C, n): (C, C, n, n)."""
    return rows[:, None, :, None] * rows[:, None]


def _covariance(second: np.ndarray, mean: np.ndarray, losses: np.ndarray) -> TrajectoryCovariance:
    """Return a variant's covariance from moments by output, (C, C, n, n) and (C, n)."""
    flat = mean.T.ravel()
    size = (len(flat), len(flat))
    moment = second.transpose(2, 0, 3, 1).reshape(size)
    return TrajectoryCovariance(moment, np.outer(flat, flat), losses)


def _spectra(grams: Sequence[np.ndarray], alpha: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return descending eigenvalues and eigenvectors of every K of a ribbon variant."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for gram in grams:
        eigenvalues, U = scipy.linalg.eigh(gram / len(gram))
        eigenvalues = eigenvalues[::-1]
        floor = len(gram) * np.finfo(float).eps * eigenvalues[0]
        eigenvalues = np.where(eigenvalues > floor, eigenvalues, 0.0)
        if alpha * eigenvalues[0] > 1 + 1e-12:
            reason = f"a kernel has largest eigenvalue {eigenvalues[0]:.4g}"
            remedy = f"Choose alpha up to {1 / eigenvalues[0]:.4g}, or rescale the kernels."
            raise ArgumentError("alpha", alpha, reason, remedy)
        found.append((eigenvalues, U[:, ::-1]))
    return found

"""The PCA matrix of the training trajectories of linear regression, in closed form."""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated as Float
from typing import Literal, TypedDict, Unpack

import numpy as np
import scipy.linalg

from hyperribbon.core.checks import (
    ArgumentError,
    check_array,
    check_choice,
    check_fraction,
    check_positive,
    check_positive_int,
)
from hyperribbon.theory.ribbons.geometric_sums import (
    covariances,
    mean_powers,
    noise_average,
    pair_sums,
    square_sums,
)
from hyperribbon.theory.ribbons.truncation import count_dimensions

__all__ = ["Part", "Ribbon"]

Part = Literal["P", "P1", "P1_sigma", "P1_y", "P2"]
_PARTS = ("P", "P1", "P1_sigma", "P1_y", "P2")


class _Variant(TypedDict, total=False):
    weight_decay: float
    batch_size: int | None


@dataclass(frozen=True, eq=False)
class Ribbon:
    """Covariance of the points on all training trajectories of a linear model.

    Gradient descent on ‖Xw − y‖²/(2n) from w₀ ~ N(0, σw² I) moves the residuals by
    r_{t+1} = (I − αK) r_t with K = XXᵀ/n. Over infinitely many initialisations and the first T
    points of each trajectory, their covariance is

        P = P₁^σ + P₁^y − P₂,
        P₁^σ = σw²/T Σ_t K_d^{2t} K,   P₁^y = 1/T Σ_t K_d^t yyᵀ K_d^t,   P₂ = K_T yyᵀ K_T.

    In the eigenbasis of K every sum over t is a geometric series, so nothing is looped over T.
    Implements Eq. (5) of [ribbons], with these conventions: residuals and targets are divided by
    √n (so that the initial covariance of a residual is σw²K, as printed), and vectors are written
    in the eigenbasis of K. Weight decay μ replaces K_d by I − α(K + μI) and y by K(K + μI)⁻¹y and
    leaves the initial covariance alone, which is exact. A batch size b adds the constant-noise
    model of SGD, Eq. (11).

    Args:
        eigenvalues: (n,), eigenvalues of K in descending order, zero or more.
        targets: (n,), the targets in K's eigenbasis divided by √n; or (n, C) for C outputs, in
            which case the points live in n·C dimensions and every eigenvalue counts C times.
        sigma_w: Standard deviation of the initial weights.
        alpha: Learning rate; α(λ₁ + weight_decay) must stay below 2.
        steps: T, the number of points of each trajectory, starting with the initial one.
        weight_decay: Coefficient μ of ‖w‖²/2 in the objective.
        batch_size: b of the constant-noise model of SGD; None for full-batch gradient descent.

    >>> ribbon = Ribbon.exponential(50, 0.2, sigma_star=2**0.5, sigma_w=0.1**0.5, steps=50)
    >>> ribbon.spectrum()[:2].round(6)
    array([0.270137, 0.0544  ])
    >>> ribbon.dimensions(0.95)
    9
    """

    eigenvalues: np.ndarray
    targets: np.ndarray
    sigma_w: float
    alpha: float
    steps: int
    weight_decay: float = field(default=0.0, kw_only=True)
    batch_size: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        eigenvalues = check_array("eigenvalues", self.eigenvalues, ndim=1)
        targets = check_array("targets", self.targets, ndim=(1, 2))
        if (np.diff(eigenvalues) > 0).any():
            raise ArgumentError(
                "eigenvalues", eigenvalues, "they are not one descending row", "Sort them first."
            )
        if eigenvalues[-1] < 0:
            reason = f"the smallest is {eigenvalues[-1]:.3g}, and K is positive semi-definite"
            raise ArgumentError("eigenvalues", eigenvalues, reason, "Clip rounding errors to zero.")
        if len(targets) != len(eigenvalues):
            reason = f"there are {len(eigenvalues)} eigenvalues"
            remedy = "Give an array of shape (n,) or (n, outputs) in the same eigenbasis."
            raise ArgumentError("targets", targets, reason, remedy)
        check_positive("sigma_w", self.sigma_w, zero=True)
        check_positive("weight_decay", self.weight_decay, zero=True)
        check_positive("alpha", self.alpha)
        fastest = self.alpha * (eigenvalues[0] + self.weight_decay)
        if fastest >= 2:
            reason = f"alpha times the largest eigenvalue is {fastest:.3g}, so training diverges"
            remedy = f"Choose alpha below {2 / (eigenvalues[0] + self.weight_decay):.4g}."
            raise ArgumentError("alpha", self.alpha, reason, remedy)
        if self.batch_size is not None:
            check_positive_int("batch_size", self.batch_size)
        object.__setattr__(self, "eigenvalues", eigenvalues)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "steps", check_positive_int("steps", self.steps))

    @classmethod
    def exponential(
        cls,
        n: int,
        slope: float,
        *,
        sigma_star: float = 1.0,
        sigma_w: float = 1.0,
        alpha: float = 1.0,
        steps: int = 50,
        rng: np.random.Generator | None = None,
        weight_decay: float = 0.0,
        batch_size: int | None = None,
    ) -> Ribbon:
        """Return the ribbon of sloppy data, λᵢ = exp(−c(i−1)).

        Targets come from true weights w* ~ N(0, σ*² I), so yᵢ ~ N(0, σ*²λᵢ). Their norm hardly
        concentrates (relative spread 0.45 at c = 0.2), so by default they are fixed at the typical
        value yᵢ = σ*√λᵢ; pass `rng` to draw them.

        Args:
            n: Number of samples.
            slope: c, the logarithm of the ratio of successive eigenvalues.
            sigma_star: σ*, standard deviation of the true weights.
            sigma_w: σw, standard deviation of the initial weights.
            alpha: Learning rate.
            steps: T, points of each trajectory.
            rng: Draws the targets when given.
            weight_decay: See the class.
            batch_size: See the class.
        """
        check_positive("slope", slope, zero=True)
        n = check_positive_int("n", n, maximum=10**6)
        eigenvalues = np.exp(-slope * np.arange(n))
        signs = np.ones(n) if rng is None else rng.standard_normal(n)
        targets = check_positive("sigma_star", sigma_star, zero=True) * np.sqrt(eigenvalues) * signs
        extra = _Variant(weight_decay=weight_decay, batch_size=batch_size)
        return cls(eigenvalues, targets, sigma_w, alpha, steps, **extra)

    @classmethod
    def from_data(
        cls,
        X: np.ndarray,
        y: np.ndarray,
        sigma_w: float,
        alpha: float,
        steps: int,
        **variant: Unpack[_Variant],
    ) -> Ribbon:
        """Return the ribbon of linear regression on a data matrix X (n, d) and targets y (n,).

        Directions of the residual that K does not move are left out; they carry no variance. Append
        a column of ones to X for a bias. `variant` takes weight_decay and batch_size.

        Raises:
            ArgumentError: X is zero, or its rows are not as many as the targets.
        """
        X, y = _matching("X", X, y)
        if not X.any():
            raise ArgumentError("X", X, "every entry is zero", "Check the data.")
        U, singular, _ = scipy.linalg.svd(X, full_matrices=False)
        kept = singular > singular[0] * max(X.shape) * np.finfo(float).eps
        eigenvalues = singular[kept] ** 2 / len(X)
        targets = U[:, kept].T @ y / np.sqrt(len(X))
        return cls(eigenvalues, targets, sigma_w, alpha, steps, **variant)

    @classmethod
    def from_kernel(
        cls,
        gram: np.ndarray,
        y: np.ndarray,
        sigma_w: float,
        alpha: float,
        steps: int,
        **variant: Unpack[_Variant],
    ) -> Ribbon:
        """Return the ribbon of a kernel machine with Gram matrix k(xᵢ, xⱼ); K is gram/n.

        The initial functions are draws of the Gaussian process σw·GP(0, k). Targets (n, C) of C
        outputs go with a Gram matrix (n, n) that all outputs share, or with one of (nC, nC), whose
        rows run over the outputs of the first sample, then of the second (as those of `NTK` do); n
        is the number of samples in both cases.

        Raises:
            ArgumentError: The Gram matrix is not symmetric and positive semi-definite, is zero, or
                does not fit the targets.
        """
        y = check_array("y", y, ndim=(1, 2))
        samples, outputs = len(y), y.shape[1] if y.ndim == 2 else 1
        if outputs > 1 and np.shape(gram) == (samples * outputs, samples * outputs):
            y = y.ravel()
        gram, y = _matching("gram", gram, y)
        if gram.shape[0] != gram.shape[1] or not np.allclose(gram, gram.T, rtol=1e-8, atol=1e-12):
            raise ArgumentError("gram", gram, "a Gram matrix is symmetric", "Give k(xᵢ, xⱼ).")
        eigenvalues, U = scipy.linalg.eigh(gram / samples)
        floor = len(gram) * np.finfo(float).eps * eigenvalues[-1]
        if eigenvalues[0] < -100 * floor:
            reason = f"its smallest eigenvalue, {eigenvalues[0]:.3g}, is negative"
            raise ArgumentError("gram", gram, reason, "Use a positive semi-definite kernel.")
        order = np.flatnonzero(eigenvalues > floor)[::-1]
        if not order.size:
            raise ArgumentError("gram", gram, "it has no positive eigenvalue", "Check the kernel.")
        targets = U[:, order].T @ y / np.sqrt(samples)
        return cls(eigenvalues[order], targets, sigma_w, alpha, steps, **variant)

    @cached_property
    def _coordinates(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rates αλ, initial variances and target of every coordinate of the prediction space."""
        outputs = 1 if self.targets.ndim == 1 else self.targets.shape[1]
        decayed = self.eigenvalues + self.weight_decay
        shrink = np.ones_like(decayed)
        if self.weight_decay:
            shrink = self.eigenvalues / decayed
        targets = (shrink[:, None] * self.targets.reshape(len(shrink), outputs)).ravel()
        spread = np.repeat(self.sigma_w**2 * self.eigenvalues, outputs)
        return np.repeat(self.alpha * decayed, outputs), spread, targets

    @property
    def P1_sigma(self) -> Float[np.ndarray, "n"]:
        """Part due to the initial weights (and to SGD's noise, if any): (n,), a diagonal."""
        rates, spread, _ = self._coordinates
        diagonal = spread * square_sums(rates, self.steps) / self.steps
        if self.batch_size is not None:
            outputs = len(rates) // len(self.eigenvalues)
            kicks = self.alpha**2 / self.batch_size * np.repeat(self.eigenvalues, outputs) ** 2
            diagonal = diagonal + kicks * noise_average(rates, self.steps)
        return diagonal

    @property
    def P1_y(self) -> Float[np.ndarray, "n n"]:
        """Part due to the targets: (n, n)."""
        rates, _, targets = self._coordinates
        return targets[:, None] * targets * pair_sums(rates, self.steps) / self.steps

    @property
    def P1(self) -> Float[np.ndarray, "n n"]:
        """Second moment of the points, P₁^σ + P₁^y: (n, n)."""
        return self.P1_y + np.diag(self.P1_sigma)

    @property
    def mean(self) -> Float[np.ndarray, "n"]:
        """Mean residual K_T y up to its sign: (n,)."""
        rates, _, targets = self._coordinates
        return mean_powers(rates, self.steps) * targets

    @property
    def P2(self) -> Float[np.ndarray, "n n"]:
        """Outer product of the mean residual: (n, n), rank one."""
        return np.outer(self.mean, self.mean)

    @property
    def P(self) -> Float[np.ndarray, "n n"]:
        """Covariance of all points: (n, n), without the cancellation of P₁ − P₂ at small αT."""
        rates, _, targets = self._coordinates
        pull = targets[:, None] * targets * covariances(rates, self.steps)
        return pull + np.diag(self.P1_sigma)

    def spectrum(self, part: Part = "P") -> Float[np.ndarray, "n"]:
        """Return the eigenvalues of a part, descending: (n,)."""
        check_choice("part", part, _PARTS)
        if part == "P1_sigma":
            return np.sort(self.P1_sigma)[::-1]
        if part == "P2":
            only = np.zeros(len(self.mean))
            only[0] = self.mean @ self.mean
            return only
        return scipy.linalg.eigvalsh(getattr(self, part))[::-1]

    def dimensions(self, fraction: float = 0.95) -> int:
        """Return the number of principal components that carry `fraction` of the variance."""
        check_fraction("fraction", fraction)
        matrix = self.P
        found = count_dimensions(
            np.diagonal(matrix)[None],
            lambda _, kept: matrix[np.ix_(kept[0], kept[0])][None],
            fraction,
        )
        return int(found.dimensions[0])


def _matching(name: str, matrix: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    matrix = check_array(name, matrix, ndim=2)
    y = check_array("y", y, ndim=(1, 2))
    if len(matrix) != len(y):
        raise ArgumentError(
            name, matrix, f"there are {len(y)} targets", "Give one row for each target."
        )
    return matrix, y

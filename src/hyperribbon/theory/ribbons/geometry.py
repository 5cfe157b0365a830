"""Equations of [ribbons] beside the main one: manifolds of points, of Taylor series, of kernels."""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated as Float
from typing import Any

import numpy as np
import scipy.linalg

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_array, validate
from hyperribbon.core.result import Brief
from hyperribbon.theory.ribbons.bounds import Bound
from hyperribbon.theory.ribbons.ribbon import Ribbon


@validate(runs=checks.iterable)
def trajectory_covariance(runs: Iterable[Any]) -> Float[np.ndarray, "N N"]:
    r"""Return the geometry of trajectories: the covariance of all points, at any times.

    $$P(N,T) = \frac{1}{\sum_i T_i}\sum_{i=1}^N\sum_{t} (r_t^{(i)} - \bar r)
      (r_t^{(i)} - \bar r)^\top$$

    over N runs with T_i snapshots each, of residuals divided by √n. Targets only shift the points,
    so outputs may take the place of residuals. Implements Eq. (3) of [ribbons]; its limit of many
    runs is `Ribbon.P`, or `Ribbon.at(times)` for the same snapshots.

    Args:
        runs: For each run (T_i, n), or (T_i, n, C) for C outputs; the runs may differ in length.

    Returns:
        (n, n), or (nC, nC) with the outputs of one sample next to each other.

    Raises:
        ArgumentError: There is no run, or runs differ in the samples.

    >>> trajectory_covariance([np.array([[0.0, 0.0], [2.0, 0.0]])])
    array([[0.5, 0. ],
           [0. , 0. ]])
    """
    points = [check_array("runs", run, ndim=(2, 3)) for run in runs]
    shapes = {run.shape[1:] for run in points}
    if len(shapes) != 1:
        reason = (
            f"expected runs on the same samples; got {len(points)} runs of {len(shapes)} shapes"
        )
        raise ArgumentError("runs", f"{len(points)} runs", reason, "Give arrays (T, n) per run.")
    rows = np.concatenate([run.reshape(len(run), -1) for run in points])
    centred = rows - rows.mean(axis=0)
    return centred.T @ centred / (len(rows) * points[0].shape[1])


@dataclass(frozen=True)
class LyapunovForm(Brief):
    """The part due to the targets as the solution of a continuous Lyapunov equation.

    Attributes:
        A: (n,), diagonal of K̃_d = (K_d + I)⁻¹(K_d − I), in K's eigenbasis.
        Q: (n, n), BBᵀ = 2(K_d + I)⁻¹(yyᵀ − K_d^T yyᵀ K_d^T)(K_d + I)⁻¹, of rank two at most.
        gramian: (n, n), the solution T·P₁^y.
    """

    A: Float[np.ndarray, "n"]
    Q: Float[np.ndarray, "n n"]
    gramian: Float[np.ndarray, "n n"]


@validate(ribbon=checks.instance(Ribbon, "Give a Ribbon, such as Ribbon.exponential(50, 0.2)."))
def lyapunov_form(ribbon: Ribbon) -> LyapunovForm:
    r"""Return T·P₁^y as the finite-time reachability Gramian of the residuals (geometry).

    $$\tilde K_d\, G + G\, \tilde K_d^\top + BB^\top = 0,\qquad G = T P_1^y$$

    Solved without using the closed form of `Ribbon`. Implements the proof of Lemma 1 of [ribbons].

    Raises:
        ArgumentError: The ribbon has several outputs, or directions that do not move, along which
            the equation has no unique solution.
    """
    decayed = ribbon.eigenvalues + ribbon.weight_decay
    if ribbon.targets.ndim > 1 or decayed[-1] <= 0:
        reason = "the equation is for one output and positive eigenvalues"
        raise ArgumentError("ribbon", ribbon, reason, "Omit directions that do not move.")
    d = 1 - ribbon.alpha * decayed
    y = ribbon.targets * (ribbon.eigenvalues / decayed)
    late = d**ribbon.steps * y
    A = (d - 1) / (d + 1)
    Q = 2 * (np.outer(y, y) - np.outer(late, late)) / np.outer(d + 1, d + 1)
    return LyapunovForm(A, Q, scipy.linalg.solve_continuous_lyapunov(np.diag(A), -Q))


@dataclass(frozen=True)
class TargetNorm:
    """Distribution of the squared norm of targets from random true weights.

    Attributes:
        mean: σ*² tr K.
        std: σ*² √(2 tr K²).
        largest: σ*² λ₁.
    """

    mean: float
    std: float
    largest: float

    def tail(self, t: float) -> float:
        """Bound how likely the target's length ‖y‖² is off its mean by more than t (geometry).

            2 exp(−⅛ min{t²/(σ*⁴ tr K²), t/(σ*² λ₁)}),

        the Hanson–Wright inequality with the constant of Gaussian weights.

        Returns:
            A number up to 1.
        """
        least = min(2 * t**2 / self.std**2, t / self.largest)
        return float(min(1.0, 2 * np.exp(-least / 8)))


@validate(eigenvalues=checks.row, sigma_star=checks.positive)
def target_norm(eigenvalues: np.ndarray, sigma_star: float = 1.0) -> TargetNorm:
    """Return mean, spread and tails of the target's length ‖y‖², w* ~ N(0, σ*² I) (geometry).

    In the eigenbasis of K, ‖y‖² = σ*² Σᵢ λᵢ zᵢ² with independent standard normal z. Implements
    Eq. (10) of [ribbons] and the inequality behind it, which is printed with tr K in place of
    tr K²: valid for λ₁ ≤ 1, and looser. For sloppy data the relative spread is √(2 tanh(c/2)),
    which does not fall with n: the norm does not concentrate.

    Raises:
        ArgumentError: An eigenvalue is negative, or all are zero.

    >>> norm = target_norm(np.exp(-0.2 * np.arange(50)))
    >>> round(norm.mean, 3), round(norm.std / norm.mean, 3)
    (5.516, 0.446)
    """
    if eigenvalues.max() <= 0 or eigenvalues.min() < 0:
        reason = "expected eigenvalues of K, zero or more, not all zero"
        raise ArgumentError("eigenvalues", eigenvalues, reason, "Clip rounding errors to zero.")
    scale = sigma_star**2
    spread = np.sqrt(2 * (eigenvalues**2).sum())
    return TargetNorm(
        scale * float(eigenvalues.sum()), scale * float(spread), scale * float(eigenvalues.max())
    )


@validate(radius=checks.positive, terms=checks.count)
def taylor_ribbon(points: np.ndarray, radius: float, terms: int | None = None) -> Bound:
    r"""Return the widths, a geometric sequence, of the model manifold of a smooth function.

    Models f(x) = Σ_k φ_k x^k whose coefficients obey |φ_k| ≤ R^{−k} u_k with ‖u‖ ≤ 1 have
    predictions V diag(R^{−k}) u at the points, V the Vandermonde matrix: a hyper-ellipsoid whose
    semi-axes are the singular values. Dropping all but k columns bounds them,

    $$\sigma_{k+1} \le \sqrt{n}\, R^{-k}/\sqrt{1-R^{-2}},$$

    so widths fall geometrically whatever the points are. Implements the hyper-ribbon of Sec. I of
    [ribbons]. The squares are the eigenvalues of the Fisher information of u.

    Args:
        points: (n,), in [−1, 1].
        radius: R > 1, radius of convergence.
        terms: Terms of the series; None for n.

    Returns:
        The widths (n,), accurate to 1e-16 of the largest, and their upper bounds.

    Raises:
        ArgumentError: A point lies outside [−1, 1], or R is not above 1.

    >>> taylor_ribbon(np.linspace(-1, 1, 5), radius=3.0).truth.round(4)
    array([2.2396e+00, 5.2940e-01, 1.0460e-01, 1.7500e-02, 2.2000e-03])
    """
    x = check_array("points", points, ndim=1)
    if not x.size or np.abs(x).max() > 1:
        raise ArgumentError("points", points, "expected numbers in [−1, 1]", "Rescale them.")
    if radius <= 1:
        reason = "the series must converge beyond the points, at R > 1"
        raise ArgumentError("radius", radius, reason, "Choose R above 1.")
    power = np.arange(len(x) if terms is None else terms)
    widths = np.zeros(len(x))
    found = np.linalg.svd(x[:, None] ** power * radius ** (-power.astype(float)), compute_uv=False)
    widths[: len(found)] = found[: len(x)]
    upper = np.sqrt(len(x) / (1 - radius**-2)) * radius ** -np.arange(float(len(x)))
    return Bound(widths, upper, np.zeros(len(x)))


@validate(number=checks.count, length=checks.positive, sigma=checks.positive)
def gaussian_kernel_eigenvalues(
    number: int, length: float, sigma: float = 1.0
) -> Float[np.ndarray, "k"]:
    r"""Return the geometry, manifold widths, of a Gaussian kernel exp(−(x − x′)²/(2ℓ²)).

    $$\lambda_k = \sqrt{2a/A}\,(b/A)^k,\quad a = \tfrac{1}{4\sigma^2},\;
      b = \tfrac{1}{2\ell^2},\; A = a + b + \sqrt{a^2 + 2ab},\quad k = 0, 1, \dots$$

    (Zhu, Williams, Rohwer & Morciniec 1998), the limit of the eigenvalues of the Gram matrix over
    n: the kernel is sloppy although the inputs, of one dimension, are not. In d dimensions with
    independent coordinates they are products of these. The "decay exponentially" of Sec. III of
    [ribbons].

    Args:
        number: How many.
        length: ℓ.
        sigma: Standard deviation of the inputs.

    Returns:
        (number,), descending, with sum 1 over all k.
    """
    a = np.square(length / sigma) / 2  # in units of b, so that no length is too small
    A = 1 + a + np.sqrt(a**2 + 2 * a)
    return np.sqrt(2 * a / A) * (1 / A) ** np.arange(number)

"""The paper's inequalities on the eigenvalues of the PCA matrix, each beside the truth.

For C outputs the residuals live in n·C dimensions and move by K⊗I, whose eigenvalues are those of
K, C times each; with these, and ‖y‖² summed over the outputs, every inequality holds as printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as Bool
from typing import Annotated as Float

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_choice, validate
from hyperribbon.core.result import Brief
from hyperribbon.theory.ribbons.geometric_sums import mean_powers, square_sums
from hyperribbon.theory.ribbons.ribbon import Ribbon

_ribbon = checks.instance(Ribbon, "Give a Ribbon, such as Ribbon.exponential(50, 0.2).")


@dataclass(frozen=True)
class Bound(Brief):
    """A bound: numbers and the interval that theory gives for them.

    Attributes:
        truth: (k,), the exact values.
        upper: (k,), upper bounds.
        lower: (k,), lower bounds; 0 where there is none.
    """

    truth: Float[np.ndarray, "k"]
    upper: Float[np.ndarray, "k"]
    lower: Float[np.ndarray, "k"]

    def violations(self, rtol: float = 1e-12) -> Bool[np.ndarray, "k"]:
        """Return which entries leave their bounds by more than `rtol` of the largest truth.

        Eigenvalues of a matrix P come with absolute errors of about 1e-16·λ₁(P), so entries far
        below the largest cannot be held to a relative tolerance of their own.
        """
        slack = rtol * np.abs(self.truth).max()
        return (self.truth > self.upper + slack) | (self.truth < self.lower - slack)


@validate(ribbon=_ribbon)
def weyl_bound(ribbon: Ribbon) -> Bound:
    """Bound the eigenvalues of P by those of P₁ and the single one of P₂.

        max(λ_{i+1}(P₁), λᵢ(P₁) − λ(P₂)) ≤ λᵢ(P) ≤ λᵢ(P₁).

    Implements Eq. (7) of [ribbons].

    Returns:
        The eigenvalues (n,) of P, descending, with both bounds.
    """
    first = ribbon.spectrum("P1")
    following = np.append(first[1:], 0.0)
    lower = np.maximum(following, first - ribbon.spectrum("P2")[0])
    return Bound(ribbon.spectrum("P"), first, lower)


@validate(ribbon=_ribbon)
def mean_bound(ribbon: Ribbon) -> Bound:
    """Bound the norm of K_T, which carries the initial residual to the mean one: one entry.

        ‖K_T‖ = (1 − (1 − αλ_n)^T)/(αTλ_n) ≤ (1 − (1 − αλ₁)^T)/(αTλ_n).

    The bound is valid but says nothing below 1 until T exceeds 1/(αλ_n); the norm itself tends to
    1 for short training, so P₂ must not be dropped there. Implements Eq. (8) of [ribbons].

    Returns:
        The norm (1,) and its upper bound; the lower one is zero.
    """
    _require(ribbon)
    rates = ribbon.alpha * ribbon.eigenvalues
    powers = mean_powers(rates, ribbon.steps)
    with np.errstate(divide="ignore"):
        upper = powers[0] * rates[0] / rates[-1]
    return Bound(powers[-1:], np.atleast_1d(upper), np.zeros(1))


@validate(ribbon=_ribbon)
def weight_bound(ribbon: Ribbon) -> Bound:
    """Bound the eigenvalues of T·P₁^σ, the part due to the initial weights.

        λᵢ^σ = (σw²/α)(1 − (1 − αλᵢ)^{2T})/(2 − αλᵢ) ≤ (σw²/α)·min{1, 2Tαλᵢ}/(2 − αλᵢ).

    Implements Eq. (9) of [ribbons].

    Returns:
        The eigenvalues (n,) and their upper bounds; the lower ones are zero.

    >>> bound = weight_bound(Ribbon.exponential(50, 0.5, steps=100))
    >>> bound.truth[[0, 1, 10]].round(6)
    array([1.      , 0.717633, 0.371911])
    """
    _require(ribbon, start=True)
    x = ribbon.alpha * _repeat(ribbon)
    scale = ribbon.sigma_w**2 / ribbon.alpha
    upper = scale * np.minimum(1, 2 * ribbon.steps * x) / (2 - x)
    return Bound(ribbon.steps * ribbon.P1_sigma, upper, np.zeros_like(upper))


@validate(ribbon=_ribbon)
def target_decay_bound(ribbon: Ribbon) -> Bound:
    """Bound the odd eigenvalues λ^y_{1+2i} of P₁^y, relative to the first.

        λ^y_{1+2i}/λ^y_1 ≤ 4ρ^{−2i}/(1 + ρ^{−4i})²,   ρ = exp(π²/(2 ln(8λ₁/λ_n − 4))).

    Implements Lemma 1 of [ribbons]; the decay is about exp(−π²/(2nc)) an index.

    Returns:
        The ratios of the odd eigenvalues and their upper bounds; the lower ones are zero.
    """
    _require(ribbon)
    truth = ribbon.spectrum("P1_y")[::2]
    decay = decay_base(ribbon.eigenvalues) ** (-2.0 * np.arange(len(truth)))
    return Bound(truth / truth[0], 4 * decay / (1 + decay**2) ** 2, np.zeros_like(truth))


@validate(ribbon=_ribbon)
def target_norm_bound(ribbon: Ribbon) -> Bound:
    """Bound the target's norm: the largest eigenvalue of T·P₁^y, one entry.

        ‖y‖² ≤ λ^y_1 ≤ ‖y‖² Σ_{t<T} (1 − αλ_n)^{2t}.

    Implements Lemma 2 of [ribbons].

    Returns:
        The eigenvalue (1,) with both bounds.
    """
    _require(ribbon)
    norm = np.atleast_1d((ribbon.targets**2).sum())
    longest = square_sums(ribbon.alpha * ribbon.eigenvalues[-1:], ribbon.steps)
    return Bound(ribbon.steps * ribbon.spectrum("P1_y")[:1], norm * longest, norm)


@validate(ribbon=_ribbon)
def spectrum_bound(ribbon: Ribbon, form: str = "verified") -> Bound:
    """Bound the eigenvalues of P₁ relative to the first.

        λᵢ/λ₁ ≤ min{1, 4ρ^{−(i−1)} + w/‖y‖²}                              for i ≤ 2k*,
        λᵢ/λ₁ ≤ 4ρ^{−(k*−1)} + min{1, 2αTλ_{i−k*+1}}·w/‖y‖²               beyond,

    with w = σw²/α and k* = min{ln(2Tα)/(2c), n/2}. Implements Lemma 3 of [ribbons]. Eigenvalues
    descend, so the bound at an index holds for all later ones too: the running minimum is taken,
    without which the bound may jump up at 2k*.

    With a batch size b the noise adds T·(α/b)·λ to w (largest for λ₁); the paper prints α/b, which
    is too small by up to T. With weight decay μ, K + μI takes the place of K in ρ and k* and
    K(K + μI)⁻¹y that of y; the paper keeps y and adds μ to w.

    Args:
        ribbon: α(λ₁ + μ) ≤ 1, initial outputs with the covariance of linear regression.
        form: "verified", or "printed" for the text of the paper, without the running minimum.

    Returns:
        The ratios (n,) and their upper bounds; the lower ones are zero.
    """
    check_choice("form", form, ("verified", "printed"))
    _require(ribbon, variants=True, start=True)
    printed = form == "printed"
    eigenvalues = _repeat(ribbon)
    decayed = eigenvalues + ribbon.weight_decay
    n, T, alpha = len(decayed), ribbon.steps, ribbon.alpha
    targets = ribbon.targets.ravel()
    if ribbon.weight_decay and not printed:
        targets = targets * eigenvalues / decayed
    norm = targets @ targets
    noise = 0.0
    if ribbon.batch_size is not None:
        noise = alpha / ribbon.batch_size * (1 if printed else T)
    decay = ribbon.weight_decay if printed else 0.0
    rho, k = decay_base(decayed), split_index(decayed, alpha, T)
    index = np.arange(1, n + 1)
    partner = eigenvalues[np.clip(index - k, 0, n - 1)]
    head = 4 * rho ** -(index - 1.0) + (ribbon.sigma_w**2 / alpha + noise + decay) / norm
    reach = np.minimum(1, 2 * alpha * T * partner) * ribbon.sigma_w**2 / alpha
    beyond = 4 * rho ** -(k - 1.0) + (reach + noise * partner + decay) / norm
    upper = np.where(index <= 2 * k, np.minimum(1, head), beyond)
    if not printed:
        upper = np.minimum.accumulate(upper)
    truth = ribbon.spectrum("P1")
    return Bound(truth / truth[0], upper, np.zeros(n))


@validate(eigenvalues=checks.row)
def decay_base(eigenvalues: np.ndarray) -> float:
    """Return ρ = exp(π²/(2 ln(8λ₁/λ_n − 4))) of Lemma 1's bound; 1 when λ_n is zero."""
    if eigenvalues[-1] <= 0:
        return 1.0
    return float(np.exp(np.pi**2 / (2 * np.log(8 * eigenvalues[0] / eigenvalues[-1] - 4))))


@validate(eigenvalues=checks.row, alpha=checks.positive, steps=checks.count)
def split_index(eigenvalues: np.ndarray, alpha: float, steps: int) -> int:
    """Return k* = min{ln(2Tα)/(2c), n/2} of Lemma 3's bound, rounded down, at least 1.

    c is the mean slope ln(λ₁/λ_n)/(n − 1). Any whole number gives a valid bound by Weyl's
    inequality; this one gives nearly the tightest.
    """
    n = len(eigenvalues)
    if n == 1 or eigenvalues[-1] <= 0:
        return 1
    slope = np.log(eigenvalues[0] / eigenvalues[-1]) / (n - 1)
    best = n / 2 if slope == 0 else min(np.log(max(2 * steps * alpha, 1)) / (2 * slope), n / 2)
    return max(1, int(best))


def _repeat(ribbon: Ribbon) -> np.ndarray:
    """Return the eigenvalue of K of every coordinate that is bounded, once per output."""
    return np.repeat(ribbon.eigenvalues, ribbon.targets.size // len(ribbon.eigenvalues))


def _require(ribbon: Ribbon, *, variants: bool = False, start: bool = False) -> None:
    """Raise if a bound does not cover a ribbon: another variant, or a start of its own."""
    largest = ribbon.eigenvalues[0] + ribbon.weight_decay
    if ribbon.alpha * largest > 1 + 1e-12:
        reason = "the bound assumes alpha at most 1/λ₁ (assumption iii of the paper)"
        raise ArgumentError("alpha", ribbon.alpha, reason, f"Choose alpha up to {1 / largest:.4g}.")
    if (ribbon.weight_decay or ribbon.batch_size is not None) and not variants:
        reason = "the bound is for full-batch gradient descent without weight decay"
        raise ArgumentError("ribbon", ribbon, reason, "Give a ribbon without these.")
    if ribbon.start is not None and start:
        reason = "the bound assumes initial outputs of covariance σw²K, as of linear regression"
        raise ArgumentError("ribbon", ribbon, reason, "Give a ribbon without start=.")

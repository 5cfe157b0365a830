"""Variance along principal modes against the flatness of the loss along them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from typing import Annotated as Bool
from typing import Annotated as Float

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import stdtrit

from hyperribbon.core import checks
from hyperribbon.core.checks import (
    ArgumentError,
    check_absent,
    check_finite,
    check_fraction,
    validate,
)
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.generators import numpy_generator
from hyperribbon.core.result import Result, frame
from hyperribbon.noise.memory import fit_memory
from hyperribbon.noise.stationarity import Stationarity
from hyperribbon.noise.stationary import project
from hyperribbon.noise.weights import WeightCovariance, check_same_weights, weight_covariance
from hyperribbon.theory import fluctuations as theory

if TYPE_CHECKING:
    import pandas as pd

SEEN = 10  # times that the slowest mode must fit into the record, and into a window
_BATCHES = 8  # of each half
_MIXED = 400  # modes drawn for the bias of estimated ones
_EQUAL = 1e-6  # relative difference of curvatures below which it is rounding
_NOTHING = 1e-12  # part of the largest variance below which there is none


class FewSamplesWarning(UserWarning):
    """The exponent is inflated because its modes come from too few independent samples."""


class DriftWarning(UserWarning):
    """The mean of the weights moves, so part of their covariance is drift."""


@dataclass(frozen=True)
class VarianceFlatness(Result, plot="plot_variance_flatness"):
    """Variance against flatness, mode by mode, and the exponent ψ of variance ∝ F^(−ψ).

    Attributes:
        variances: (k,), variances along the principal modes, descending.
        curvatures: (k,), vᵀHv along them; flatness is F = curvature^(−1/2).
        widths: (k,), distance between the points at which the loss has risen e-fold, if a loss was
            given; infinite where it does not.
        exponent: ψ as fitted to the resolved modes.
        bias: Its excess over `corrected_exponent`: from few samples, and from what a mean or the
            lines of windows take off slow modes.
        corrected_exponent: ψ of variances in one half of the record along modes of the other.
        interval: Confidence interval of the corrected ψ; NaN where `doubt` says why.
        confidence: Its coverage.
        width_exponent: ψ fitted to the widths instead, or None.
        effective_samples: Independent samples behind the modes.
        too_few_samples: Whether the bias is more than a tenth of ψ, or the samples are fewer than
            ten a mode.
        stationarity: Test of the mean.
        times: (k,), correlation times of the modes in moments: 1 + 2Σρ, or 1 + 4Σρ² where that is
            larger, as for modes that oscillate.
        resolved: (k,), whether ten of these times fit into the record, and into a window.
        doubt: Why there is no interval; empty where there is one.
    """

    variances: Float[np.ndarray, "k"]
    curvatures: Float[np.ndarray, "k"]
    widths: Float[np.ndarray, "k"] | None
    exponent: float
    bias: float
    corrected_exponent: float
    interval: tuple[float, float]
    confidence: float
    width_exponent: float | None
    effective_samples: float
    too_few_samples: bool
    stationarity: Stationarity
    times: Float[np.ndarray, "k"]
    resolved: Bool[np.ndarray, "k"]
    doubt: str = ""

    @property
    def unresolved(self) -> int:
        """Modes not in the flatness exponent ψ: the record spans too few correlation times."""
        return int((~self.resolved).sum())

    def to_frame(self) -> pd.DataFrame:
        """Return variance, curvature and flatness F, one row per mode; NaN without a flatness."""
        positive = np.where(self.curvatures > 0, self.curvatures, np.nan)
        own = {"flatness": positive**-0.5, "variance": self.variances, "curvature": self.curvatures}
        own |= {"width": self.widths, "correlation_time": self.times, "resolved": self.resolved}
        return frame(own, "mode")

    def summary(self) -> str:
        """Return the flatness exponent ψ with its interval and modes, in one line."""
        low, high = self.interval
        where = f"{int(self.resolved.sum())} modes, {self.effective_samples:.0f} effective samples"
        if self.unresolved:
            where += f", {self.unresolved} modes too slow for this record"
        if self.doubt:
            return f"ψ = {self.exponent:.3g} as fitted, no interval: {self.doubt}; {where}"
        band = f"{self.confidence:.0%}: {low:.3g} to {high:.3g}"
        text = f"ψ = {self.corrected_exponent:.3g} ({band}); {where}"
        if not self.stationarity.stationary:
            text = f"not stationary: {self.stationarity.doubt}; {text}"
        return text

    _headline = summary


@validate(
    curvature=checks.operator,
    k=checks.count,
    start=checks.whole,
    window=checks.count,
    loss=checks.function,
)
@plain_arithmetic()
def variance_flatness(
    trajectory: Any,
    curvature: Any,
    *,
    k: int | None = None,
    start: int | None = None,
    params: Any = None,
    window: int | None = None,
    loss: Callable[[np.ndarray], float] | None = None,
    confidence: float = 0.95,
    warn: bool = True,
    strict: bool = True,
) -> VarianceFlatness:
    """Fit the variance–flatness relation: variance ∝ F^(−ψ).

    Principal modes of few samples mix true modes, and a mean or lines of windows that are taken off
    take variance of slow modes with them; both steepen the fit. So ψ is also fitted to variances of
    one half of the record along modes of the other half, corrected for what is taken off slow
    modes. The interval is about this ψ and holds for any memory: each mode has the spectrum of an
    autoregressive process of its own, and the error of a variance v over n moments is
    2v²Σρ²/n, so that modes that oscillate count too. Estimated modes mix true ones where their
    variances are close; what that makes of ψ is found by a parametric bootstrap, and removed, where
    H has positive eigenvalues only. Modes whose correlation time is more than a tenth of the
    record, or of a window, are not used; `resolved` and `unresolved` name them.

    Args:
        trajectory: What `weight_covariance` takes, or its result.
        curvature: H of the loss at the mean weights: a matrix or an operator on the same weights.
        k: Modes used; by default all, at most 50.
        start: First record that counts; by default the first of all.
        params: Parameters that count, for trajectories.
        window: Moments of a window, in which steady motion is removed; see `weight_covariance`.
        loss: Loss of a weight vector (P,), to measure the widths as well.
        confidence: Coverage of the interval.
        warn: Whether to warn about few samples and drift.
        strict: Whether to raise where there can be no interval; else it is NaN.

    Returns:
        The exponent ψ with its interval, and the variances and curvatures (k,) behind it.

    Raises:
        ArgumentError: Fewer than three modes of different, positive curvature were seen for ten
            correlation times; sizes differ.

    >>> rng = np.random.default_rng(0)
    >>> H = np.diag([1.0, 2.0, 3.0, 4.0])
    >>> weights = rng.normal(size=(20_000, 4)) * np.sqrt(np.diag(H))   # variance ∝ curvature
    >>> abs(variance_flatness(weights, H).exponent - 2) < 0.1
    True
    """
    confidence = check_fraction("confidence", confidence)
    if not 0 < confidence < 1:
        raise ArgumentError("confidence", confidence, "expected 0 < confidence < 1", "Give 0.95.")
    if isinstance(trajectory, WeightCovariance):
        asked = {"k": k, "start": start, "params": params, "window": window}
        for name, value in asked.items():
            check_absent(name, value, "the covariance is measured", "Give it to weight_covariance.")
        found = trajectory
    else:
        first = 0 if start is None else start
        found = weight_covariance(trajectory, k=k, start=first, params=params, window=window)
    size, space = int(curvature.shape[0]), getattr(curvature, "space", None)
    check_same_weights("curvature", size, space, found)
    H = check_finite("curvature", project(curvature, found.modes))
    options: Any = {"loss": loss, "confidence": confidence, "strict": strict}
    result = fit_flatness(found, H, mode_times(found), **options)
    if warn:
        _warn(result, found)
    return result


def mode_times(found: WeightCovariance) -> Float[np.ndarray, "k"]:
    """Return the correlation times of the fluctuations' modes; see `VarianceFlatness.times`."""
    times, moving = np.ones(len(found.eigenvalues)), _moving(found)
    if moving.any():
        window, lines = found.window or found.samples, found.window is not None
        times[moving] = fit_memory(found.projections[:, moving], window, lines=lines).times
    return times


def _moving(found: WeightCovariance) -> Bool[np.ndarray, "k"]:
    """Return along which modes of the fluctuations there are any."""
    largest = found.eigenvalues.max(initial=0.0)
    least = np.finfo(float).tiny / np.finfo(float).eps
    return found.eigenvalues > (_NOTHING * largest if largest > least else np.inf)


def fit_flatness(
    found: WeightCovariance,
    H: Float[np.ndarray, "k k"],
    times: Float[np.ndarray, "k"],
    *,
    loss: Callable[[np.ndarray], float] | None = None,
    confidence: float = 0.95,
    strict: bool = False,
) -> VarianceFlatness:
    """Fit the variance–flatness relation to the modes of a measured covariance.

    Args:
        found: The covariance.
        H: Curvature VᵀHV over its modes V.
        times: Their correlation times.
        loss: As for `variance_flatness`.
        confidence: Coverage of the interval.
        strict: Whether to raise where there can be no interval.

    Returns:
        The exponent; where there can be no interval it is NaN, and `doubt` says why.

    Raises:
        ArgumentError: Fewer than three modes move and have different, positive curvatures.
    """  # noqa: DOC501 - _refusal() returns an ArgumentError
    variances, curvatures, moving = found.eigenvalues, np.diag(H).copy(), _moving(found)
    if len(variances) < 3:
        reason = f"{len(variances)} of its modes are used, too few for a slope"
        raise ArgumentError("trajectory", found.modes, reason, "Use at least three modes.")
    if not moving.any():
        reason = f"its weights do not move: their largest variance is {variances.max():.3g}"
        raise ArgumentError("trajectory", found.modes, reason, "Record a training that goes on.")
    resolved = SEEN * times <= (found.window or found.samples)
    usable = (variances > 0) & (curvatures > 0)
    reason = "" if (resolved & usable).sum() >= 3 or usable.sum() < 3 else doubt(times, found)
    if reason and strict:
        raise _refusal(reason, found)
    used = np.ones_like(resolved) if reason else resolved
    try:
        exponent = theory.fit_exponent(variances[used], curvatures[used])
    except ArgumentError as error:
        error.rename("curvature")
        raise
    both = moving & used
    if both.sum() < 3:
        reason = f"{both.sum()} of its modes move and were seen long enough"
        remedy = "Record longer: a slope needs three."
        raise ArgumentError("trajectory", found.modes, reason, remedy)
    corrected, deviation, freedom = _cross_fit(found, both, H[np.ix_(both, both)])
    reach = np.nan if reason else float(stdtrit(freedom, (1 + confidence) / 2)) * deviation
    bias = exponent - corrected
    too_few = bool(abs(bias) > 0.1 * abs(exponent) or found.effective_samples < 10 * len(variances))
    widths = None if loss is None else _widths(loss, found)
    return VarianceFlatness(
        variances,
        curvatures,
        widths,
        exponent,
        bias,
        corrected,
        (float(corrected - reach), float(corrected + reach)),
        confidence,
        None if widths is None else _width_exponent(variances, widths),
        found.effective_samples,
        too_few,
        found.stationarity,
        times,
        resolved,
        reason,
    )


def _cross_fit(
    found: WeightCovariance, used: np.ndarray, H: np.ndarray
) -> tuple[float, float, float]:
    """Return ψ of variance and flatness along modes, each from another half of the record.

    Variances of a half along principal modes of the other one are not inflated by their choice.
    To first order such a ψ is off by 2 Σ_p a_p δv_p/v_p = xᵀBx − ⟨xᵀBx⟩ averaged over time, with
    the weights a_p of the fit. Along the eigenvectors of H, where modes relax on their own, each
    coordinate has a memory ρ_i of its own, and for the covariance M the average varies by

        (2/n) Σ_ij (BM)_ij (BM)_ji Σ_t ρ_i(t)ρ_j(t) + (1/n) Σ_i B_ii² M_ii² κ_i,

    κ_i the excess kurtosis of innovations. Where the averages over eight parts of each half scatter
    more than that, as for noise whose strength changes, their variance is taken.

    Returns:
        ψ, its standard error, and the degrees of freedom of that.
    """
    lines = found.window is not None
    rates, eigenvectors = np.linalg.eigh(H)
    x = found.projections[:, used] @ eigenvectors
    memory = fit_memory(x, found.window or len(x), lines=lines)
    products, M = memory.products(), x.T @ x / len(x)
    window = found.window or 1
    half = len(x) // window // 2 * window or len(x) // 2
    halves = x[:half], x[-half:]
    slopes, errors, batches = [], [], []
    for chosen, measured in (halves[::-1], halves):
        modes = np.linalg.eigh(chosen.T @ chosen)[1] if found.principal else eigenvectors.T
        squares = (measured @ modes) ** 2
        v = squares.mean(axis=0)
        share = np.maximum((modes.T @ M) * modes.T, 0.0)
        share /= share.sum(axis=1, keepdims=True)
        kept = share @ memory.kept
        bias = np.log(kept) - np.einsum("pi,pj,ij->p", share, share, products) / half
        a = _slope_weights(modes.T**2 @ rates)
        slopes.append(2 * a @ (np.log(v) - bias))
        a = a / kept  # the slower a mode appears, the more is added to its variance
        B = 2 * (modes * (a / v)) @ modes.T
        tails = (np.diag(B) * np.diag(M)) ** 2 @ memory.kurtosis
        q = 2 * (squares / v) @ a
        batches.append([part.mean() for part in np.array_split(q, min(_BATCHES, half))])
        errors.append((2 * np.sum((B @ M) * (B @ M).T * products) + tails) / len(x))
    seen = np.mean(np.var(batches, axis=1, ddof=1)) / np.size(batches)
    error = float(np.sqrt(max(np.mean(errors), seen)))
    psi = float(np.mean(slopes))
    if found.principal:
        psi -= _mixing_bias(psi, rates, products / half)
    return psi, error, max(half / float(memory.times.max()) - 1, 1.0)


def _mixing_bias(psi: float, rates: np.ndarray, spread: np.ndarray) -> float:
    """Return by how much modes from a half of a record change the exponent of flatness.

    They mix true modes, so that both variance and curvature are averages over these, whose
    logarithms do not lie on the line unless ψ = 2. A parametric bootstrap: the covariance would be
    M = H^(ψ/2), that of a half is drawn as M^(1/2) (1 + Z/2)² M^(1/2) with Var Z_ij of the measured
    memory, and ψ is fitted along its eigenvectors v to vᵀMv. It vanishes as the record grows, also
    where M and H do not commute. Zero where H has an eigenvalue that is not positive.

    Args:
        psi: ψ.
        rates: (k,), eigenvalues of H.
        spread: (k, k), Σρ_iρ_j over the moments of a half.
    """
    k = len(rates)
    if rates.min() <= _EQUAL * rates.max():
        return 0.0
    Z = numpy_generator(0, "mixing").normal(size=(_MIXED // k + 1, k, k))
    factors = np.eye(k) + (Z + Z.transpose(0, 2, 1)) * np.sqrt(np.maximum(spread, 0) / 8)
    scale = (rates / rates.max()) ** (psi / 4)
    drawn = factors * scale
    shares = np.linalg.eigh(drawn.transpose(0, 2, 1) @ drawn)[1] ** 2
    found = np.log([values @ shares for values in (rates, scale**2)])
    x, y = found - found.mean(axis=2, keepdims=True)
    bias = float(np.mean(2 * np.sum(x * y, axis=1) / np.sum(x**2, axis=1))) - psi
    return bias if np.isfinite(bias) else 0.0


def _slope_weights(curvatures: np.ndarray) -> np.ndarray:
    """Return a for the exponent of flatness: Σ a·y is y's slope on the curvatures' logarithms.

    Raises:
        ArgumentError: Fewer than three are positive, or they are equal.
    """
    use = curvatures > 0
    logs = np.log(np.where(use, curvatures, 1.0))
    if use.sum() < 3 or np.ptp(logs[use]) < _EQUAL:
        reason = f"{int(use.sum())} modes have positive curvatures that differ"
        remedy = "Give at least three modes of different curvature."
        raise ArgumentError("curvature", curvatures, reason, remedy)
    centred = np.where(use, logs - logs[use].mean(), 0.0)
    return centred / np.sum(centred**2)


def doubt(times: np.ndarray, found: WeightCovariance) -> str:
    """Return why the exponent of variance and flatness has no interval."""
    slowest = f"the third fastest mode decorrelates after about {np.sort(times)[2]:.0f} moments"
    if found.window is not None:
        return f"{slowest}, and lines through windows of {found.window} remove too much of it"
    return f"{slowest}, and {found.samples} are too few to know its variance"


def _refusal(reason: str, found: WeightCovariance) -> ArgumentError:
    few = "use fewer modes with k="
    drift = "" if found.stationarity.stationary else "train until the mean stays, "
    if found.window is not None:
        return ArgumentError(
            "window", found.window, reason, f"Give longer windows, {drift}or {few}."
        )
    remedy = (
        f"Record longer or at larger intervals, {drift}omit the beginning with start=, or {few}."
    )
    return ArgumentError("trajectory", f"{found.samples} moments", reason, remedy)


def _widths(loss: Callable[[np.ndarray], float], found: WeightCovariance) -> np.ndarray:
    """Return the flatness F by width: between the points where the loss is e times its value."""
    base = float(loss(found.mean))
    widths = []
    for variance, mode in zip(found.eigenvalues, found.modes.T, strict=True):

        def excess(theta: float, mode: np.ndarray = mode) -> float:
            return float(loss(found.mean + theta * mode)) - np.e * base

        sides = []
        for sign in (-1.0, 1.0):
            reach = max(float(np.sqrt(variance)), 1e-8)
            for _ in range(60):
                if excess(sign * reach) > 0:
                    break
                reach *= 2
            else:
                sides.append(np.inf)
                continue
            crossing = root_scalar(excess, bracket=(0.0, sign * reach), xtol=1e-6 * reach)
            sides.append(abs(crossing.root))
        widths.append(sum(sides))
    return np.array(widths)


def _width_exponent(variances: np.ndarray, widths: np.ndarray) -> float | None:
    known = np.isfinite(widths) & (widths > 0)
    if known.sum() < 3:
        return None
    return theory.fit_exponent(variances[known], widths[known] ** -2.0)


def _warn(result: VarianceFlatness, found: WeightCovariance) -> None:
    if result.too_few_samples:
        warnings.warn(
            f"ψ = {result.exponent:.2f} is based on {result.effective_samples:.0f} independent "
            f"samples for {len(result.variances)} modes and is too large by about "
            f"{result.bias:.2f}. Record longer or at larger intervals, or use fewer modes.",
            FewSamplesWarning,
            stacklevel=3,
        )
    if not result.stationarity.stationary:
        shortest = int(np.ceil(SEEN * result.times[result.resolved].max(initial=1)))
        fits = found.window is None and 2 * shortest <= found.samples
        window = f"remove steady motion with window= of at least {shortest}, " if fits else ""
        warnings.warn(
            f"The mean of the weights moved by {result.stationarity.drift:.2f} standard deviations "
            "between the first and the last third: the covariance measures drift too. Leave the "
            f"beginning out with start=, {window}or train longer first.",
            DriftWarning,
            stacklevel=3,
        )

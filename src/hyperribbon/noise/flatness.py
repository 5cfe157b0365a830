"""Variance along principal modes against the flatness of the loss along them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from typing import Annotated as Float

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import stdtrit

from hyperribbon.core.checks import (
    ArgumentError,
    check_absent,
    check_finite,
    check_fraction,
    check_positive_int,
    count,
    flag,
    function,
    operator,
    seed_number,
    validate,
    whole,
)
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.generators import numpy_generator
from hyperribbon.core.result import Result, frame
from hyperribbon.noise.stationarity import Stationarity, autocorrelation_time
from hyperribbon.noise.stationary import project
from hyperribbon.noise.surrogates import Surrogate, kept_share, match_surrogate, principal
from hyperribbon.noise.weights import WeightCovariance, check_same_weights, weight_covariance
from hyperribbon.theory import fluctuations as theory

if TYPE_CHECKING:
    import pandas as pd

_SEEN = 10  # times that the slowest mode must fit into the record, and into a window
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
        exponent: ψ as fitted.
        bias: Expected excess of such a fit: from few samples, and from what a mean or the lines of
            windows take off slow modes.
        corrected_exponent: ψ − bias.
        interval: Confidence interval of ψ, its bias removed; NaN where `doubt` says why.
        confidence: Its coverage.
        width_exponent: ψ fitted to the widths instead, or None.
        effective_samples: Independent samples behind the modes.
        too_few_samples: Whether the bias is more than a tenth of ψ, or the samples are fewer than
            ten a mode.
        stationarity: Test of the mean.
        times: (k,), integrated autocorrelation times of the modes, in moments, with what a mean or
            lines take off added.
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
    times: Float[np.ndarray, "_"] = field(default_factory=lambda: np.ones(0))
    doubt: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return variance, curvature and flatness F, one row per mode; NaN without a flatness."""
        positive = np.where(self.curvatures > 0, self.curvatures, np.nan)
        own = {"flatness": positive**-0.5, "variance": self.variances, "curvature": self.curvatures}
        times = self.times if len(self.times) else None
        own |= {"width": self.widths, "autocorrelation_time": times}
        return frame(own, "mode")

    def _headline(self) -> str:
        low, high = self.interval
        where = f"{len(self.variances)} modes, {self.effective_samples:.0f} effective samples"
        if self.doubt:
            return f"ψ = {self.exponent:.3g} as fitted, no interval: {self.doubt}; {where}"
        band = f"{self.confidence:.0%}: {low:.3g} to {high:.3g}"
        return f"ψ = {self.corrected_exponent:.3g} ({band}); {where}"


@validate(
    curvature=operator,
    k=count,
    start=whole,
    window=count,
    loss=function,
    resamples=count,
    warn=flag,
    strict=flag,
    seed=seed_number,
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
    resamples: int = 50,
    confidence: float = 0.95,
    seed: int = 0,
    warn: bool = True,
    strict: bool = True,
) -> VarianceFlatness:
    """Fit the variance–flatness relation: variance ∝ F^(−ψ).

    Principal modes of few samples mix true modes, and a mean or lines of windows that are taken off
    take variance of slow modes with them; both steepen the fit. Surrogate series with the same
    variances and autocorrelation times (see `Surrogate`), analysed the same way, estimate this
    bias; their spread, with that of the times, gives the interval. The record, and every window,
    must span at least ten autocorrelation times of the slowest mode.

    Args:
        trajectory: What `weight_covariance` takes, or its result.
        curvature: H of the loss at the mean weights: a matrix or an operator on the same weights.
        k: Modes used; by default all, at most 50.
        start: First record that counts; by default the first of all.
        params: Parameters that count, for trajectories.
        window: Moments of a window, in which steady motion is removed; see `weight_covariance`.
        loss: Loss of a weight vector (P,), to measure the widths as well.
        resamples: Synthetic repetitions for bias and interval.
        confidence: Coverage of the interval.
        seed: Seed of the synthetic samples.
        warn: Whether to warn about few samples and drift.
        strict: Whether to raise where there can be no interval; else it is NaN.

    Returns:
        The exponent ψ with its interval, and the variances and curvatures (k,) behind it.

    Raises:
        ArgumentError: Fewer than three modes have positive variance and curvature; the slowest
            autocorrelation time is more than a tenth of the record or of a window; sizes differ.

    >>> rng = np.random.default_rng(0)
    >>> H = np.diag([1.0, 2.0, 3.0, 4.0])
    >>> weights = rng.normal(size=(20_000, 4)) * np.sqrt(np.diag(H))   # variance ∝ curvature
    >>> abs(variance_flatness(weights, H).exponent - 2) < 0.1
    True
    """  # noqa: DOC501 - _refusal() returns an ArgumentError
    confidence = check_fraction("confidence", confidence)
    if not 0 < confidence < 1:
        raise ArgumentError("confidence", confidence, "expected 0 < confidence < 1", "Give 0.95.")
    check_positive_int("resamples", resamples)
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
    if len(found.eigenvalues) < 3:
        reason = f"{len(found.eigenvalues)} of its modes are used, too few for a slope"
        raise ArgumentError("trajectory", found.modes, reason, "Use at least three modes.")
    H = check_finite("curvature", project(curvature, found.modes))
    variances, curvatures = found.eigenvalues, np.diag(H).copy()
    try:
        exponent = theory.fit_exponent(variances, curvatures)
    except ArgumentError as error:
        error.rename("curvature")
        raise
    rng = numpy_generator(seed, "variance flatness")
    usable = variances > _NOTHING * variances[0]
    surrogate = match_surrogate(
        variances[usable], found.times[usable], found.samples, found.window, rng
    )
    doubt = _doubt(float(surrogate.times.max()), found)
    if doubt and strict:
        raise _refusal(doubt, found)
    bias, deviation = _calibrate(surrogate, H[np.ix_(usable, usable)], found, resamples, rng)
    independent = found.samples / float(surrogate.times.max())  # moments behind the deviation
    freedom = max(min(resamples, independent) - 1, 1)
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * deviation
    reach = np.nan if doubt else reach
    low, high = exponent - bias - reach, exponent - bias + reach
    too_few = bool(abs(bias) > 0.1 * abs(exponent) or found.effective_samples < 10 * len(variances))
    widths = None if loss is None else _widths(loss, found)
    result = VarianceFlatness(
        variances,
        curvatures,
        widths,
        exponent,
        bias,
        exponent - bias,
        (float(low), float(high)),
        confidence,
        None if widths is None else _width_exponent(variances, widths),
        found.effective_samples,
        too_few,
        found.stationarity,
        surrogate.times,
        doubt,
    )
    if warn:
        _warn(result, found)
    return result


def _calibrate(
    surrogate: Surrogate,
    H: np.ndarray,
    found: WeightCovariance,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return how far ψ of surrogates is from theirs on average, and the deviation of the corrected.

    The deviation holds that of the average, which is taken over so many surrogates only.
    That a correction rests on measured times makes it uncertain too. So the variances of every
    series are divided by what its own times say is kept of them. Times behind measured ones vary
    about twice as much (in logarithms), since the slower a mode is, the more of it is taken off.

    Raises:
        ArgumentError: The surrogates span too few modes of positive curvature.
    """
    n, window = found.samples, found.window
    raw, variances, curvatures, times = [], [], [], []
    for _ in range(resamples):
        values, modes, along = principal(surrogate.draw(n, rng), window)
        rows = np.einsum("ik,ij,jk->k", modes, H, modes)
        try:
            raw.append(theory.fit_exponent(values, rows))
        except ArgumentError:  # in this one fewer than three modes have a positive curvature
            continue
        variances.append(values)
        curvatures.append(rows)
        times.append(autocorrelation_time(along))
    if len(raw) < max(resamples / 2, 2):
        reason = "they span too few modes of positive curvature for an error of the exponent"
        remedy = "Record longer or at larger intervals, or use fewer modes with k=."
        raise ArgumentError("trajectory", f"{n} moments", reason, remedy)
    logs = np.log(times)
    behind = surrogate.times * np.exp(2 * (logs - logs.mean(axis=0)))
    behind = np.clip(behind, 1.0, (window or n) / 3)
    corrected = [
        theory.fit_exponent(v / kept_share(t, n, window), c)
        for v, c, t in zip(variances, curvatures, behind, strict=True)
    ]
    truth = theory.fit_exponent(surrogate.variances, np.diag(H))
    deviation = max(np.std(corrected, ddof=1), np.std(raw, ddof=1))
    return float(np.mean(raw) - truth), float(deviation * np.sqrt(1 + 1 / len(raw)))


def _doubt(slowest: float, found: WeightCovariance) -> str:
    """Return why there is no interval; empty if there is one."""
    if found.window is not None and found.window < _SEEN * slowest:
        return (
            f"the slowest mode used decorrelates after about {slowest:.0f} moments, and "
            f"lines through windows of {found.window} take off a part of it that is not known"
        )
    if found.samples < _SEEN * slowest:
        return (
            f"the slowest mode used decorrelates after about {slowest:.0f} moments, and "
            f"{found.samples} are too few to know its variance"
        )
    return ""


def _refusal(doubt: str, found: WeightCovariance) -> ArgumentError:
    few = "use fewer modes with k="
    drift = "" if found.stationarity.stationary else "train until the mean stays, "
    if found.window is not None:
        return ArgumentError(
            "window", found.window, doubt, f"Give longer windows, {drift}or {few}."
        )
    remedy = (
        f"Record longer or at larger intervals, {drift}omit the beginning with start=, or {few}."
    )
    return ArgumentError("trajectory", f"{found.samples} moments", doubt, remedy)


def _widths(loss: Callable[[np.ndarray], float], found: WeightCovariance) -> np.ndarray:
    """Return the distance between the points on both sides where the loss is e times its value."""
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
        shortest = int(np.ceil(_SEEN * result.times.max()))
        fits = found.window is None and 2 * shortest <= found.samples
        window = f"remove steady motion with window= of at least {shortest}, " if fits else ""
        warnings.warn(
            f"The mean of the weights moved by {result.stationarity.drift:.2f} standard deviations "
            "between the first and the last third: the covariance measures drift too. Leave the "
            f"beginning out with start=, {window}or train longer first.",
            DriftWarning,
            stacklevel=3,
        )

"""Stationarity of weights: autocorrelation, effective samples, and a test for drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from typing import Annotated as Float

import numpy as np
from scipy.stats import chi2

from hyperribbon.core.checks import ArgumentError, check_array, check_shape, validate
from hyperribbon.core.result import Result, frame

if TYPE_CHECKING:
    import pandas as pd


_FIXED = 1e-3  # p-value from which a mean may be fixed


def _columns(argument: str, value: Any) -> np.ndarray:
    found = check_array(argument, value, ndim=2, empty=True)
    if not len(found):
        raise ArgumentError(argument, found, "it is empty", "Give one row per record.")
    return found


@dataclass(frozen=True)
class Stationarity(Result):
    """Whether a series of weights fluctuates about a fixed mean.

    Attributes:
        p_value: Probability of so large a difference between the means of the first and the last
            third, had the mean been fixed (Geweke's test over all modes).
        drift: That difference in units of the fluctuations' standard deviation, root mean square
            over modes.
        effective_samples: Independent samples that carry as much information, the least over modes.
        stationary: Whether p ≥ 0.001 and the record covers at least ten autocorrelation times.
    """

    p_value: float
    drift: float
    effective_samples: float
    stationary: bool

    @property
    def doubt(self) -> str:
        """Why the weights are not stationary; empty where they may be."""
        if self.stationary:
            return ""
        if self.p_value < _FIXED:
            return f"the mean weights still move, by {self.drift:.1f} standard deviations"
        seen = f"the slowest mode was seen for {self.effective_samples:.1f} correlation times only"
        return f"{seen}, over which the mean weights moved by {self.drift:.1f} standard deviations"

    def to_frame(self) -> pd.DataFrame:
        """Return the stationarity test in one row."""
        return frame(vars(self))


@validate(series=_columns)
def autocorrelation_time(series: np.ndarray) -> Float[np.ndarray, "k"]:
    """Return how long each column needs to be stationary: 1 + 2 Σ ρ(t), at least one.

    The sum ends at Sokal's window, the first t ≥ 5 times the time found so far.

    Args:
        series: (n, k), n moments of k quantities.
    """
    series = np.asarray(series, dtype=np.float64)
    n = len(series)
    centered = series - series.mean(axis=0)
    power = abs(np.fft.rfft(centered, 2 * n, axis=0)) ** 2
    correlation = np.fft.irfft(power, axis=0)[:n]
    correlation = correlation / np.where(correlation[0] > 0, correlation[0], 1.0)
    times = 2 * np.cumsum(correlation, axis=0) - 1
    inside = np.arange(n)[:, None] >= 5 * times
    window = np.where(inside.any(axis=0), inside.argmax(axis=0), n - 1)
    return np.maximum(1.0, times[window, np.arange(series.shape[1])])


@validate(projections=_columns)
def stationarity(projections: np.ndarray, *, times: np.ndarray | None = None) -> Stationarity:
    """Test stationarity: whether the mean of weights along given modes is fixed.

    Args:
        projections: (n, k), weights along k modes at n moments, in order of time.
        times: (k,), their correlation times, where they are known.

    Returns:
        The p-value of a fixed mean, the drift, and whether the series may be trusted.

    Raises:
        ArgumentError: Fewer than 12 records.
    """
    series = np.asarray(projections, dtype=np.float64)
    known = None if times is None else check_array("times", times, ndim=1)
    if known is not None:
        check_shape("times", known, (series.shape[1],), f"there are {series.shape[1]} modes")
    n = len(series)
    if n < 12:
        reason = "a test of the mean needs at least 12 records"
        raise ArgumentError("projections", series, reason, "Record more.")
    third = n // 3
    variance = series.var(axis=0)
    moving = variance > 0
    if not moving.any():
        return Stationarity(1.0, 0.0, float(n), True)
    series, variance = series[:, moving], variance[moving]
    times = autocorrelation_time(series) if known is None else known[moving]
    difference = series[-third:].mean(axis=0) - series[:third].mean(axis=0)
    expected = 2 * variance * times / third
    statistic = float(np.sum(difference**2 / expected))
    p_value = float(chi2.sf(statistic, series.shape[1]))
    drift = float(np.sqrt(np.mean(difference**2 / variance)))
    effective = float(n / times.max())
    return Stationarity(p_value, drift, effective, p_value >= _FIXED and effective >= 10)

"""The slope of a data set's spectrum, with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as Float

import numpy as np

from hyperribbon.core.checks import ArgumentError, check_array, validate, whole, zero_or_more
from hyperribbon.core.result import Brief

_ROW = "Give one row of eigenvalues; of a data matrix X, np.linalg.eigvalsh(X.T @ X / len(X))."


@dataclass(frozen=True)
class Slope(Brief):
    """A straight line through log λᵢ against i.

    Attributes:
        value: c, the mean logarithm of the ratio of successive eigenvalues.
        stderr: Its standard error, allowing for correlated residuals (Newey–West).
        intercept: Value of the line at the first index fitted.
        first: First index fitted, counted from 0.
        last: One past the last index fitted.
        local: (3,), slopes of the first, middle and last third of the range: how straight it is.
        r_squared: Share of the variance of log λ that the line explains.
    """

    value: float
    stderr: float
    intercept: float
    first: int
    last: int
    local: Float[np.ndarray, "3"]
    r_squared: float

    def line(self) -> Float[np.ndarray, "n"]:
        """Return the eigenvalues on the line fitted to a sloppy spectrum, first … last − 1."""
        return np.exp(self.intercept - self.value * np.arange(self.last - self.first))


@validate(first=whole, last=whole, floor=zero_or_more)
def slope(
    eigenvalues: np.ndarray, *, first: int = 0, last: int | None = None, floor: float = 1e-10
) -> Slope:
    """Return the sloppiness c of data: the slope of −log λᵢ against i.

    Residuals of a spectrum about a line are smooth, not independent, so the standard error is that
    of Newey and West with a bandwidth of a tenth of the points; the slopes of the three thirds show
    what a single line hides. Implements the "slope: c" of Sec. I.A of [ribbons].

    Args:
        eigenvalues: (n,), of the input correlation matrix; sorted here.
        first: First index fitted.
        last: One past the last index; None for all eigenvalues above `floor`.
        floor: Eigenvalues below floor·λ₁ are rounding errors of zero and never fitted.

    Raises:
        ArgumentError: A matrix is given instead of its eigenvalues, or too few are usable.

    >>> fit = slope(np.exp(-0.3 * np.arange(40)))
    >>> round(fit.value, 6), fit.first, fit.last
    (0.3, 0, 40)
    """
    given = check_array("eigenvalues", eigenvalues, ndim=1, remedy=_ROW)
    values = np.sort(given)[::-1]
    usable = int((values > max(floor * values[0], 0)).sum()) if values.size else 0
    stop = usable if last is None else min(last, usable)
    if first < 0 or stop - first < 6:
        reason = f"only {max(stop - first, 0)} of them lie in the range fitted and above the floor"
        raise ArgumentError("eigenvalues", values, reason, "Give at least 6, or lower floor.")
    logs = np.log(values[first:stop])
    c, stderr, intercept, r_squared = _fit(logs)
    local = np.array([_fit(part)[0] for part in np.array_split(logs, 3)])
    return Slope(c, stderr, intercept, first, stop, local, r_squared)


def _fit(logs: np.ndarray) -> tuple[float, float, float, float]:
    index = np.arange(len(logs), dtype=float)
    centered = index - index.mean()
    weight = centered @ centered
    tilt = centered @ logs / weight
    residuals = logs - logs.mean() - tilt * centered
    scores = centered * residuals
    bandwidth = max(1, len(logs) // 10)
    variance = scores @ scores
    for lag in range(1, min(bandwidth, len(logs) - 1) + 1):
        variance += 2 * (1 - lag / (bandwidth + 1)) * (scores[lag:] @ scores[:-lag])
    total = ((logs - logs.mean()) ** 2).sum()
    r_squared = 1 - residuals @ residuals / total if total > 0 else 1.0
    stderr = np.sqrt(max(variance, 0.0)) / weight
    return float(-tilt), float(stderr), float(logs.mean() + tilt * centered[0]), float(r_squared)

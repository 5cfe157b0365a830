"""Differences between two networks on the same samples, with what the choice of samples adds."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.special import stdtrit

__all__ = ["Difference", "Shared", "paired"]

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """One quantity of two networks, measured on the same disjoint groups of samples.

    The difference is that of the two values; its standard error is that of the mean of the
    differences group by group, d_g = a_g − b_g, so that what a sample does to both cancels:

        stderr² = Σ (d_g − d̄)² / (G (G − 1)),    interval = a − b ± (t·stderr + rounding)

    with t of Student's distribution with G − 1 degrees of freedom.

    Attributes:
        key: Short name, such as "sharpness".
        name: What it is.
        a: Value of the first network.
        b: Value of the second.
        groups: (G,) differences of the groups; empty where there is one value for all samples.
        rounding: How far the arithmetic, such as an eigenvalue's bound, may move the difference.
        stderr: Standard error over the samples; NaN when it is not known.
        freedom: Degrees of freedom of it where there are no groups.
    """

    key: str
    name: str
    a: float
    b: float
    groups: tuple[float, ...]
    rounding: float
    stderr: float
    freedom: float = inf

    @property
    def difference(self) -> float:
        """The first minus the second."""
        return self.a - self.b

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper edge of the interval that covers the difference with 0.95."""
        freedom = max(len(self.groups) - 1, 1) if self.groups else self.freedom
        reach = float(stdtrit(freedom, (1 + LEVEL) / 2)) * self.stderr + self.rounding
        return self.difference - reach, self.difference + reach

    @property
    def lower(self) -> str | None:
        """Which has the lower value, "a" or "b"; None where the interval holds zero."""
        low, high = self.interval
        if high < 0:
            return "a"
        return "b" if low > 0 else None

    @property
    def agreeing(self) -> int:
        """Groups whose difference has the sign of the whole."""
        return sum(value * self.difference > 0 for value in self.groups)


@dataclass(frozen=True)
class Shared:
    """A number that two networks have together, such as the share of samples they agree on.

    Attributes:
        key: Short name.
        name: What it is.
        value: The number.
        stderr: Standard error over the samples; 0 where no samples enter.
    """

    key: str
    name: str
    value: float
    stderr: float


def paired(
    key: str, name: str, a: np.ndarray, b: np.ndarray, shares: np.ndarray, rounding: float = 0.0
) -> Difference:
    """Return the difference of two rows of values, one for each group of samples.

    Args:
        key: Short name.
        name: What it is.
        a: (G,) values of the first network.
        b: (G,) values of the second.
        shares: (G,) shares of the groups in the whole, with sum 1.
        rounding: How far the arithmetic may move the difference.

    >>> found = paired("x", "x", np.array([3.0, 5.0]), np.array([1.0, 2.0]), np.full(2, 0.5))
    >>> found.difference, found.stderr, found.agreeing, found.lower
    (2.5, 0.5, 2, None)
    """
    steps = a - b
    stderr = float(steps.std(ddof=1) / len(steps) ** 0.5)
    return Difference(
        key, name, float(shares @ a), float(shares @ b), tuple(map(float, steps)), rounding, stderr
    )

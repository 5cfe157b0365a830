"""How much a number would change with other samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hyperribbon.inspection.clock import OutOfTimeError
from hyperribbon.inspection.subject import Subject

__all__ = ["standard_error"]

_GROUPS = 8


def standard_error(
    subject: Subject, measure: Callable[[Subject], float], seed: int
) -> float | None:
    """Return the standard error of a mean over samples, from its values on disjoint groups.

    With g groups of equally many samples it is s/√g, s the standard deviation over groups. None
    where there are fewer than eight samples, or no time.

    Args:
        subject: The model on all samples.
        measure: A number that is a mean over samples.
        seed: Seed of the division into groups.
    """
    groups = _GROUPS if subject.samples >= 2 * _GROUPS else _GROUPS // 2
    try:
        values = np.array([measure(group) for group in subject.groups(groups, seed)])
    except OutOfTimeError:
        return None
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None

"""How much a number would change with other samples."""

from __future__ import annotations

from collections.abc import Callable
from math import hypot

import numpy as np
import torch

from hyperribbon.inspection.clock import OutOfTimeError
from hyperribbon.inspection.subject import Subject
from hyperribbon.spectra import eigsh

__all__ = ["sharpness_error", "standard_error"]

_GROUPS = 8
_PRODUCTS = 30  # with a half of the samples


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


def sharpness_error(subject: Subject, v: torch.Tensor, seed: int) -> float | None:
    """Return the standard error of the largest eigenvalue of the Hessian over samples.

    Beside the scatter of vᵀHv there is an excess: v fits the samples it was found on, so their
    largest eigenvalue is too large, most where several are nearly equal. It is seen on two halves A
    and B of the samples with top eigenvectors a and b,

        δ = ½ (aᵀH_A a + bᵀH_B b − aᵀH_B a − bᵀH_A b).

    Each half exceeds by about twice what the whole does, and falls short on the other half by as
    much: the whole exceeds by about δ/4, which is added to the scatter in squares.

    Args:
        subject: The model on all samples.
        v: The top eigenvector on all of them.
        seed: Seed of the divisions.
    """
    spread = standard_error(subject, lambda group: float(v @ (group.hessian @ v)), seed)
    if spread is None:
        return None
    try:
        halves = [half.hessian for half in subject.groups(2, seed)]
        tops = [
            eigsh(half, 1, tol=1e-2, method="lanczos", v0=v, seed=seed, max_matvecs=_PRODUCTS)
            for half in halves
        ]
        excess = 0.0
        for own, other, top in zip(halves, reversed(halves), tops, strict=True):
            assert top.eigenvectors is not None
            a = top.eigenvectors[:, 0]
            excess += float(a @ (own @ a) - a @ (other @ a)) / 2
    except OutOfTimeError:
        return None
    return hypot(spread, max(excess, 0.0) / 4)

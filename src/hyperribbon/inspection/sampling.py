"""How much a number would change with other samples."""

from __future__ import annotations

from collections.abc import Callable
from math import hypot
from typing import Any

import numpy as np
import torch

from hyperribbon.inspection.clock import OutOfTimeError
from hyperribbon.inspection.subject import Subject

__all__ = ["noise_scale_error", "sharpness_error", "spread_of_sum", "standard_error"]

_GROUPS = 8
_CLIMB = 6  # products with a half of the samples that look for its own sharpest direction


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
        excess = 0.0
        for own, other in zip(halves, reversed(halves), strict=True):
            value, a = _climbed(own, v)
            excess += (value - float(a @ (other @ a))) / 2
    except OutOfTimeError:
        return None
    return hypot(spread, max(excess, 0.0) / 4)


def _climbed(hessian: Any, v: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return the largest Ritz value and its vector in the Krylov space of v."""
    basis, images = [v / torch.linalg.vector_norm(v)], []
    for _ in range(_CLIMB):
        images.append(hessian @ basis[-1])
        row = images[-1].clone()
        for _ in range(2):
            for q in basis:
                row -= (q @ row) * q
        length = torch.linalg.vector_norm(row)
        if not float(length) > 1e-6 * float(torch.linalg.vector_norm(images[-1])):
            break
        basis.append(row / length)
    Q, AQ = torch.stack(basis[: len(images)]), torch.stack(images)
    projected = (Q @ AQ.T).double()
    values, vectors = torch.linalg.eigh((projected + projected.T) / 2)
    a = vectors[:, -1].to(Q) @ Q
    return float(values[-1]), a / torch.linalg.vector_norm(a)


def spread_of_sum(parts: torch.Tensor) -> float | None:
    """Return the standard error of a sum of parts (N,), one a sample: √N times their spread."""
    return float(parts.std() * len(parts) ** 0.5) if len(parts) > 1 else None


def noise_scale_error(scale: float, subject: Subject, seed: int) -> float:
    """Return the standard error of tr C / ‖∇L‖² that comes from the mean gradient's.

    With g groups the mean of ⟨∇L_i, ∇L⟩ is ‖∇L‖², and its relative error is that of the scale.
    """
    gradient = subject.gradient
    square = float(gradient.double() @ gradient.double())
    if not square > 0:
        return float("nan")
    spread = standard_error(subject, lambda group: float(gradient @ group.gradient), seed)
    return float("nan") if spread is None else 2 * scale * spread / square

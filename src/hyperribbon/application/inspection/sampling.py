"""How much a number would change with other samples."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import hypot
from typing import Any

import numpy as np
import torch

from hyperribbon.application.inspection.engine.clock import OutOfTimeError
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.core.checks import ArgumentError

_GROUPS = 8
_SCALE_CERTAINTY = "standard error over samples; grows without bound towards a minimum"
_SCALE_BOUND = "a lower bound: the mean gradient of so few samples is partly noise itself"
_FEW = 0.2
"""Noise scale over samples beyond which it is a lower bound. The mean gradient of N samples has a
squared length that is too large by tr C / N, so a scale B comes out as B/(1 + B/N)."""
_CANCELLED = 0.1  # part of a vector below which it is made orthogonal once more
_PIECE = 2**16  # entries that are brought to float64 together
_CLIMB = 6  # products with a half of the samples that look for its own sharpest direction


def standard_error(
    subject: Subject, measure: Callable[[Subject], float], seed: int, mean: float | None = None
) -> float | None:
    """Return the sampling error of a mean, from its values on disjoint groups of samples.

    With g groups of equally many samples it is s/√g, s the standard deviation over groups. None
    where there are fewer than eight samples, no time, or a group that has no loss (every label is
    ignored).

    Args:
        subject: The model on all samples.
        measure: A number that is a mean over samples.
        seed: Seed of the division into groups.
        mean: The number on all samples, if it is known. Where these count alike and each is in a
            group, it is the mean over groups, and the last of them need not be measured.
    """
    groups = groups_for(subject.samples)
    last_follows = (
        mean is not None
        and subject.source.total == subject.samples
        and subject.samples % groups == 0
        and subject.has_equal_samples
    )
    try:
        some = islice(subject.groups(groups, seed), groups - last_follows)
        values = [measure(group) for group in some]
    except (OutOfTimeError, ArgumentError):
        return None
    if last_follows and values:
        values.append(groups * float(mean or 0.0) - sum(values))
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None


def groups_for(samples: int) -> int:
    """Return into how many groups samples are divided to find sampling errors."""
    return _GROUPS if samples >= 2 * _GROUPS else _GROUPS // 2


def sharpness_error(
    subject: Subject,
    v: torch.Tensor,
    seed: int,
    on: Callable[[Any], Any] = lambda hessian: hessian,
    value: float | None = None,
) -> float | None:
    """Return the sampling error of the Hessian's largest eigenvalue.

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
        on: Gives the Hessian on the coordinates that v has; all of them when left out.
        value: The eigenvalue, if it is known.
    """
    spread = standard_error(subject, lambda group: float(v @ (on(group.hessian) @ v)), seed, value)
    if spread is None:
        return None
    try:
        halves = [on(half.hessian) for half in subject.groups(2, seed)]
        excess = 0.0
        for own, other in zip(halves, reversed(halves), strict=True):
            value, a = _climb(own, v)
            excess += (value - float(a @ (other @ a))) / 2
    except (OutOfTimeError, ArgumentError):
        return None
    return hypot(spread, max(excess, 0.0) / 4)


def _climb(hessian: Any, v: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return the largest Ritz value in the Krylov space of v, for the sampling error of sharpness.

    Images are not kept: of long vectors these would be most of the memory.
    """
    basis = [v / torch.linalg.vector_norm(v)]
    upper = torch.zeros(_CLIMB, _CLIMB, dtype=torch.float64, device="cpu")
    for step in range(_CLIMB):
        image = hessian @ basis[-1]
        upper[: step + 1, step] = torch.stack([q @ image for q in basis]).cpu()
        if step + 1 == _CLIMB:
            break
        size = float(torch.linalg.vector_norm(image))
        row = torch.sub(image, basis[0], alpha=float(upper[0, step]))
        del image
        for q, part in zip(basis[1:], upper[1 : step + 1, step].tolist(), strict=True):
            row.sub_(q, alpha=part)
        length = float(torch.linalg.vector_norm(row))
        if length < _CANCELLED * size:
            for q in basis:
                row.sub_(q, alpha=float(q @ row))
            length = float(torch.linalg.vector_norm(row))
        if not length > 1e-6 * size:
            break
        basis.append(row.div_(length))
    count = len(basis)
    values, vectors = torch.linalg.eigh(upper[:count, :count].triu(), UPLO="U")
    a = torch.zeros_like(v)
    for q, weight in zip(basis, vectors[:, -1].tolist(), strict=True):
        a.add_(q, alpha=weight)
    return float(values[-1]), a / torch.linalg.vector_norm(a)


def squared_length(vector: torch.Tensor) -> float:
    """Return a gradient's squared length for its sampling error, in float64 without a copy."""
    return sum(float(piece.double().square().sum()) for piece in vector.split(_PIECE))


def spread_of_sum(parts: torch.Tensor) -> float | None:
    """Return the sampling error of a sum of one part (N,) per sample: √N times their spread."""
    return float(parts.std() * len(parts) ** 0.5) if len(parts) > 1 else None


def is_lower_bound(scale: float, samples: int) -> bool:
    """Whether sampling leaves a noise scale only a lower bound: it is near the sample count.

    >>> is_lower_bound(80, 512), is_lower_bound(300, 512)
    (False, True)
    """
    return bool(samples) and scale > _FEW * samples


def scale_certainty(scale: float, samples: int) -> str:
    """Return what is known of a noise scale's sampling error beside its value."""
    return _SCALE_BOUND if is_lower_bound(scale, samples) else _SCALE_CERTAINTY


def noise_scale_error(scale: float, subject: Subject, seed: int) -> float:
    """Return the sampling error of tr C / ‖∇L‖², which comes from the mean gradient's.

    With g groups the mean of ⟨∇L_i, ∇L⟩ is ‖∇L‖², and its relative error is that of the scale.
    """
    gradient = subject.gradient
    square = squared_length(gradient)
    if not square > 0:
        return float("nan")
    spread = standard_error(subject, lambda group: float(gradient @ group.gradient), seed)
    return float("nan") if spread is None else 2 * scale * spread / square

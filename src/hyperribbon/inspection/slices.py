"""Slices through the loss: along a line or a plane, with the quadratic prediction beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError, check_positive_int
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.inspection.evaluating import loss_at

__all__ = ["LineSlice", "PlaneSlice", "line_slice", "plane_slice", "random_direction", "reach"]

_TOLERATED = 0.1


@dataclass(frozen=True)
class LineSlice:
    """The loss along a line θ + t·d with ‖d‖ = 1.

    Attributes:
        name: What the direction is.
        t: (n,) distances.
        loss: (n,) measured losses.
        quadratic: (n,) L + t·gᵀd + ½t²·dᵀHd.
        curvature: dᵀHd.
        slope: gᵀd.
        range: Distance, on the worse side, up to which the loss is within a tenth of its predicted
            rise, interpolated between the points.
    """

    name: str
    t: np.ndarray
    loss: np.ndarray
    quadratic: np.ndarray
    curvature: float
    slope: float
    range: float


@dataclass(frozen=True)
class PlaneSlice:
    """The loss on a plane θ + s·d₁ + t·d₂ with orthonormal d₁, d₂.

    Attributes:
        names: What the directions are.
        s: (n,) distances along the first.
        t: (m,) distances along the second.
        loss: (m, n) measured losses.
        quadratic: (m, n) quadratic prediction.
    """

    names: tuple[str, str]
    s: np.ndarray
    t: np.ndarray
    loss: np.ndarray
    quadratic: np.ndarray


def line_slice(
    subject: Subject, direction: torch.Tensor, name: str, *, extent: float, points: int = 21
) -> LineSlice:
    """Measure the loss along a line through the present weights.

    Raises:
        ArgumentError: The direction is zero.
    """
    unit = _normalised(direction)
    points = check_positive_int("points", points) // 2 * 2 + 1
    t = np.linspace(-extent, extent, points)
    losses = np.array([loss_at(subject, _moved(subject, (unit, x))) for x in t])
    slope = float(subject.gradient.to(unit) @ unit)
    curvature = float(unit @ (subject.hessian @ unit))
    here = losses[points // 2]
    quadratic = here + slope * t + curvature * t**2 / 2
    return LineSlice(name, t, losses, quadratic, curvature, slope, _range(t, losses, quadratic))


def plane_slice(
    subject: Subject,
    directions: tuple[torch.Tensor, torch.Tensor],
    names: tuple[str, str],
    *,
    extents: tuple[float, float],
    points: int = 15,
) -> PlaneSlice:
    """Measure the loss on a plane of two directions (P,), which are made orthogonal."""
    first = _normalised(directions[0])
    second = _normalised(directions[1] - (first @ directions[1]) * first)
    points = check_positive_int("points", points) // 2 * 2 + 1
    s, t = (np.linspace(-extent, extent, points) for extent in extents)
    losses = np.array(
        [[loss_at(subject, _moved(subject, (first, a), (second, b))) for a in s] for b in t]
    )
    units = first, second
    g = [float(unit @ subject.gradient.to(unit)) for unit in units]
    h = np.array([[float(unit @ image) for unit in units] for image in _images(subject, units)])
    grid_s, grid_t = np.meshgrid(s, t)
    quadratic = losses[points // 2, points // 2] + g[0] * grid_s + g[1] * grid_t
    bent = h[0, 0] * grid_s**2 + 2 * h[0, 1] * grid_s * grid_t + h[1, 1] * grid_t**2
    return PlaneSlice(names, s, t, losses, quadratic + bent / 2)


def random_direction(space: ParameterSpace, weights: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a Gaussian direction scaled, parameter by parameter, to the norms of the weights.

    So that layers of large and of small weights are moved in proportion, as Li et al. (2018) do by
    filter.
    """
    noise = torch.randn(
        len(weights), generator=torch_generator(seed, "slice"), dtype=weights.dtype, device="cpu"
    )
    noise = noise.to(weights.device)
    for window in space.slices().values():
        norm = torch.linalg.vector_norm(noise[window])
        noise[window] *= torch.linalg.vector_norm(weights[window]) / norm.clamp(min=1e-30)
    return noise if bool(noise.any()) else torch.ones_like(noise)


def reach(curvature: float, rise: float, weights_norm: float) -> float:
    """Return how far to look: where the quadratic rises by `rise`, at most half of ‖θ‖.

    >>> round(reach(8.0, 1.0, 100.0), 3), reach(-1.0, 1.0, 10.0)
    (0.5, 5.0)
    """
    cap = 0.5 * weights_norm if weights_norm > 0 else 1.0
    return min((2 * rise / curvature) ** 0.5, cap) if curvature > 0 else cap


def _moved(subject: Subject, *steps: tuple[torch.Tensor, float]) -> torch.Tensor:
    """Return the weights after steps along directions, without a further vector."""
    weights = subject.vector.clone()
    for unit, distance in steps:
        weights.add_(unit, alpha=float(distance))
    return weights


def _images(subject: Subject, units: tuple[torch.Tensor, ...]) -> Iterator[torch.Tensor]:
    """Yield Hessian products one by one, which takes less memory than together."""
    for unit in units:
        yield subject.hessian @ unit


def _normalised(direction: torch.Tensor) -> torch.Tensor:
    norm = torch.linalg.vector_norm(direction)
    if not float(norm) > 0:
        raise ArgumentError("direction", direction, "it is zero", "Give another direction.")
    return direction / norm


def _range(t: np.ndarray, loss: np.ndarray, quadratic: np.ndarray) -> float:
    middle = len(t) // 2
    rise = np.maximum(np.abs(quadratic - loss[middle]), 1e-7 * abs(loss[middle]))
    error = np.abs(loss - quadratic) / np.where(rise > 0, rise, 1.0)
    worse = np.maximum(error[middle:], error[middle::-1])
    worse[0] = 0.0
    distances = t[middle:]
    beyond = np.flatnonzero(worse > _TOLERATED)
    if len(beyond) == 0:
        return float(distances[-1])
    last = beyond[0]
    share = (_TOLERATED - worse[last - 1]) / (worse[last] - worse[last - 1])
    return float(distances[last - 1] + share * (distances[last] - distances[last - 1]))

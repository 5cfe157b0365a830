"""Slices through the loss along sharp, fluctuating and random directions, beside the quadratic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hyperribbon.application.inspection.engine.clock import OutOfTimeError
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.evaluating import loss_at
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.core.checks import ArgumentError, check_positive_int
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.plots import Chart, Curve, Surface

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
    """Slice the loss landscape along a line through the present weights.

    Raises:
        ArgumentError: The direction is zero.
    """
    unit = _normalise(direction)
    points = check_positive_int("points", points) // 2 * 2 + 1
    t = np.linspace(-extent, extent, points)
    losses = np.array([loss_at(subject, _move(subject, (unit, x))) for x in t])
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
    """Slice the loss landscape on a plane of two directions (P,), made orthogonal."""
    first = _normalise(directions[0])
    second = _normalise(directions[1] - (first @ directions[1]) * first)
    points = check_positive_int("points", points) // 2 * 2 + 1
    s, t = (np.linspace(-extent, extent, points) for extent in extents)
    losses = np.array(
        [[loss_at(subject, _move(subject, (first, a), (second, b))) for a in s] for b in t]
    )
    units = first, second
    g = [float(unit @ subject.gradient.to(unit)) for unit in units]
    h = np.array([[float(unit @ image) for unit in units] for image in _images(subject, units)])
    grid_s, grid_t = np.meshgrid(s, t)
    quadratic = losses[points // 2, points // 2] + g[0] * grid_s + g[1] * grid_t
    bent = h[0, 0] * grid_s**2 + 2 * h[0, 1] * grid_s * grid_t + h[1, 1] * grid_t**2
    return PlaneSlice(names, s, t, losses, quadratic + bent / 2)


def random_direction(space: ParameterSpace, weights: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a Gaussian direction of the landscape, scaled to the norms of the parameters.

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
    """Return how far a slice of the landscape reaches: where the quadratic rises by `rise`.

    >>> round(reach(8.0, 1.0, 100.0), 3), reach(-1.0, 1.0, 10.0)
    (0.5, 5.0)
    """
    cap = 0.5 * weights_norm if weights_norm > 0 else 1.0
    return min((2 * rise / curvature) ** 0.5, cap) if curvature > 0 else cap


def _move(subject: Subject, *steps: tuple[torch.Tensor, float]) -> torch.Tensor:
    """Return the weights of a point of the landscape, after steps along directions."""
    weights = subject.vector.clone()
    for unit, distance in steps:
        weights.add_(unit, alpha=float(distance))
    return weights


def _images(subject: Subject, units: tuple[torch.Tensor, ...]) -> Iterator[torch.Tensor]:
    """Yield Hessian products of landscape directions one by one, which takes less memory."""
    for unit in units:
        yield subject.hessian @ unit


def _normalise(direction: torch.Tensor) -> torch.Tensor:
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


_MODES = 32
"""Part of the memory for the recorded weights whose principal components are taken."""
_VECTORS = 8
"""Vectors beside a product: the weights, where they are moved to, the gradient, directions."""
_POINTS, _SIDE = 41, 15
"""Losses on a line, and on each side of a plane."""


def slices_part(level: Level, notebook: Notebook) -> Part:
    """Slice the landscape along leading eigenvectors, fluctuation modes and a random direction."""
    subject = level.subject
    notebook.clock.heap.check_room(subject.hessian, _VECTORS)
    directions = _directions(subject, notebook)
    here = subject.hessian.risk.value()
    rise = max(1.0, abs(here))
    norm = float(torch.linalg.vector_norm(subject.vector))
    lines: list[LineSlice] = []
    planes: list[PlaneSlice] = []
    part = Part("slices", "Slices of the loss", "Landscape")
    try:
        for name, direction in directions.items():
            unit = direction / torch.linalg.vector_norm(direction)
            curvature = float(unit @ (subject.hessian @ unit))
            extent = reach(curvature, rise, norm)
            lines.append(line_slice(subject, unit, name, extent=extent, points=_POINTS))
        if subject.dimension > 1:
            first, second = tuple(directions)[:2]
            both = directions[first], directions[second]
            extents = float(lines[0].t[-1]), float(lines[1].t[-1])
            plane = plane_slice(subject, both, (first, second), extents=extents, points=_SIDE)
            planes.append(plane)
    except OutOfTimeError:
        if not lines:
            raise
        done = f"{len(lines)} of {len(directions)} lines and {len(planes)} of 1 planes are done."
        part.shortened.append(done)
    for i, line in enumerate(lines, 1):
        name = f"Curvature along {_named(line.name)}"
        part.exact(f"slices.{i}.curvature", name, line.curvature, "one Hessian product")
    for i, line in enumerate(lines, 1):
        name = f"Reach of the quadratic along {_named(line.name)}"
        part.exact(f"slices.{i}.range", name, line.range, f"{len(line.t)} losses on a line")
    part.readings.append(_read(lines[0]))
    part.charts += [_line_chart(line) for line in lines]
    part.charts += [chart for plane in planes for chart in _plane_charts(plane)]
    for line in lines:
        part.arrays |= {f"{line.name} {kind}": getattr(line, kind) for kind in ("t", "loss")}
    part.notes.append("Distances are Euclidean distances of the weights, ‖Δθ‖.")
    return part


def _directions(subject: Subject, notebook: Notebook) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    other = None if notebook.gauss_newton is None else notebook.gauss_newton.spectrum
    for spectrum, label in (
        (notebook.hessian, "eigenvector"),
        (other, "Gauss-Newton eigenvector"),
    ):
        if spectrum is not None and spectrum.eigenvectors is not None and not found:
            for index in range(min(2, len(spectrum))):
                found[f"{_ordinal(index)} {label}"] = spectrum.eigenvectors[:, index]
    modes = _fluctuation_modes(subject, notebook)
    for index in range(0 if modes is None else min(2, modes.shape[1])):
        assert modes is not None
        found[f"{_ordinal(index)} fluctuation mode"] = modes[:, index]
    space = subject.hessian.space
    found["random direction"] = random_direction(space, subject.vector, notebook.seed)
    if len(found) == 1:
        other = random_direction(space, subject.vector, notebook.seed + 1)
        found["second random direction"] = other
    return found


def _fluctuation_modes(subject: Subject, notebook: Notebook) -> torch.Tensor | None:
    """Return landscape directions: last principal components of the recorded weights."""
    trajectory, space = notebook.trajectory, subject.hessian.space
    if trajectory is None:
        return None
    late = [record for record in list(trajectory)[len(trajectory) // 2 :] if record.weights]
    room = int(notebook.memory / _MODES // (4 * subject.dimension))
    late = late[:: max(1, -(-len(late) // max(room, 1)))]
    if len(late) < 4:
        return None
    states = [trajectory.weights(record.index) for record in late]
    if any(name not in states[0] for name in space.names):
        return None
    rows = torch.stack([space.flatten(state).to(subject.vector) for state in states])
    rows = rows - rows.mean(0)
    if not float(rows.abs().max()) > 0:
        return None
    return torch.linalg.svd(rows, full_matrices=False).Vh.T


def _line_chart(line: LineSlice) -> Chart:
    smooth = np.linspace(line.t[0], line.t[-1], 101)
    here = line.loss[len(line.t) // 2]
    prediction = here + line.slope * smooth + line.curvature * smooth**2 / 2
    marks = (
        Curve(line.t, line.loss, "measured", "both"),
        Curve(smooth, prediction, "quadratic prediction", dashed=True),
    )
    name, title = f"slice-{line.name.replace(' ', '-')}", f"Loss along {_named(line.name)}"
    holds = f"The quadratic holds to a tenth up to a distance of {line.range:.2g}."
    caption = f"Curvature {line.curvature:.3g}. {holds}"
    return Chart(name, title, "distance", "loss", marks, toggles=("y",), caption=caption)


def _named(direction: str) -> str:
    return f"{'a' if direction.startswith('random') else 'the'} {direction}"


def _plane_charts(plane: PlaneSlice) -> list[Chart]:
    x, y = (f"distance along {_named(name)}" for name in plane.names)
    kinds = (
        ("plane-measured", "Loss on the plane of two directions", plane.loss),
        ("plane-quadratic", "The same plane, quadratic prediction", plane.quadratic),
    )
    return [Chart(k, t, x, y, (Surface(plane.s, plane.t, z, "loss"),)) for k, t, z in kinds]


def _read(line: LineSlice) -> str:
    far = f"up to a distance of {line.range:.2g}"
    if line.range >= line.t[-1]:
        far = f"as far as it was looked at (distance {line.t[-1]:.2g})"
    return f"Along the {line.name} the loss is quadratic {far}."


def _ordinal(index: int) -> str:
    return ("first", "second", "third")[index]


MEASUREMENTS = (Measurement("slices", "Slices of the loss", 70, slices_part, lambda level, n: 200),)

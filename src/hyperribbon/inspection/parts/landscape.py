"""The step that slices the loss along sharp, fluctuating and random directions."""

from __future__ import annotations

import numpy as np
import torch

from hyperribbon.inspection.engine.clock import OutOfTimeError
from hyperribbon.inspection.engine.notebook import Notebook
from hyperribbon.inspection.engine.planning import Step
from hyperribbon.inspection.engine.quantities import Part, Sheet
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.inspection.slices import (
    LineSlice,
    PlaneSlice,
    line_slice,
    plane_slice,
    random_direction,
    reach,
)
from hyperribbon.plots import Chart, Curve, Surface

__all__ = ["STEP", "slices_part"]

_MODES = 32
"""Part of the memory for the recorded weights whose principal components are taken."""
_VECTORS = 8
"""Vectors beside a product: the weights, where they are moved to, the gradient, directions."""
_FORWARDS_PER_PRODUCT = 3
"""A forward pass is about a third of a Hessian product."""


def slices_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Slice the loss along leading eigenvectors, fluctuation modes and a random direction."""
    notebook.clock.heap.check_room(subject.hessian, _VECTORS)
    directions = _directions(subject, notebook)
    forwards = max(products * _FORWARDS_PER_PRODUCT, 30)
    points = int(np.clip(forwards // (2 * len(directions)), 7, 41))
    side = int(np.clip(np.sqrt(forwards / 2), 5, 21))
    here = subject.hessian.risk.value()
    rise = max(1.0, abs(here))
    norm = float(torch.linalg.vector_norm(subject.vector))
    lines: list[LineSlice] = []
    planes: list[PlaneSlice] = []
    sheet = Sheet("slices", "Slices of the loss", "Landscape")
    try:
        for name, direction in directions.items():
            unit = direction / torch.linalg.vector_norm(direction)
            curvature = float(unit @ (subject.hessian @ unit))
            extent = reach(curvature, rise, norm)
            lines.append(line_slice(subject, unit, name, extent=extent, points=points))
        if subject.dimension > 1:
            first, second = tuple(directions)[:2]
            both = directions[first], directions[second]
            extents = float(lines[0].t[-1]), float(lines[1].t[-1])
            plane = plane_slice(subject, both, (first, second), extents=extents, points=side)
            planes.append(plane)
    except OutOfTimeError:
        if not lines:
            raise
        late = f"{len(lines)} of {len(directions)} lines and {len(planes)} of 1 planes are done."
        sheet.shortened.append(late)
    for i, line in enumerate(lines, 1):
        name = f"Curvature along the {line.name}"
        sheet.exact(f"slices.{i}.curvature", name, line.curvature, "one Hessian product")
    for i, line in enumerate(lines, 1):
        name = f"Reach of the quadratic along the {line.name}"
        sheet.exact(f"slices.{i}.range", name, line.range, f"{len(line.t)} losses on a line")
    sheet.readings.append(_read(lines[0]))
    sheet.charts += [_line_chart(line) for line in lines]
    sheet.charts += [chart for plane in planes for chart in _plane_charts(plane)]
    for line in lines:
        sheet.arrays |= {f"{line.name} {kind}": getattr(line, kind) for kind in ("t", "loss")}
    sheet.notes.append("Distances are Euclidean distances of the weights, ‖Δθ‖.")
    return sheet.part()


def _directions(subject: Subject, notebook: Notebook) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for kind, label in (("hessian", "eigenvector"), ("gauss_newton", "Gauss-Newton eigenvector")):
        spectrum = notebook.spectra.get(kind)
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
    """Return the principal components of the last half of the recorded weights, (P, r)."""
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
    name, title = f"slice-{line.name.replace(' ', '-')}", f"Loss along the {line.name}"
    holds = f"The quadratic holds to a tenth up to a distance of {line.range:.2g}."
    caption = f"Curvature {line.curvature:.3g}. {holds}"
    return Chart(name, title, "distance", "loss", marks, toggles=("y",), caption=caption)


def _plane_charts(plane: PlaneSlice) -> list[Chart]:
    x, y = (f"distance along the {name}" for name in plane.names)
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


STEP = Step(
    "slices", "Slices of the loss", order=70, run=slices_part, wish=lambda s, n: 150, least=10
)

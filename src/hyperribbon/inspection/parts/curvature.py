"""Curvature as parts of an inspection: what the rounds have found, the trace, the density."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hyperribbon.inspection.engine.looks import FEW
from hyperribbon.inspection.engine.notebook import Notebook
from hyperribbon.inspection.engine.planning import Step
from hyperribbon.inspection.engine.quantities import (
    Part,
    Quantity,
    Sheet,
    as_array,
    exact,
    from_estimate,
)
from hyperribbon.inspection.engine.rounds import Rounds
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.inspection.parts.matrices import (
    eigenpair,
    how_traced,
    pairs_arrays,
    pairs_table,
    spectrum_chart,
)
from hyperribbon.plots import Chart, Curve

__all__ = [
    "STEPS",
    "density_part",
    "found_parts",
    "gauss_newton_part",
    "hessian_part",
    "network_part",
    "noise_found",
    "spectrum_part",
    "trace_part",
]

_KEYS = {
    "loss": "model.loss",
    "gradient": "model.gradient",
    "accuracy": "model.accuracy",
    "sharpness": "hessian.largest",
    "bound": "hessian.least",
    "smallest": "hessian.smallest",
    "negativity": "hessian.negativity",
    "ratio10": "hessian.ratio10",
    "trace": "gauss_newton.trace",
    "share10": "gauss_newton.share10",
    "share50": "gauss_newton.share50",
    "rank50": "gauss_newton.rank50",
    "noise_scale": "noise.scale",
}


def found_parts(rounds: Rounds) -> list[Part]:
    """Return what the rounds have found so far as parts, those with nothing left out."""
    parts = (network_part(rounds), hessian_part(rounds), gauss_newton_part(rounds))
    return [part for part in parts if part.quantities]


def network_part(rounds: Rounds) -> Part:
    """Return the loss, the gradient and the accuracy on the most samples."""
    found = _finest(rounds, "loss", "gradient", "accuracy")
    if not found and rounds.plain_loss is not None:
        loss = exact("model.loss", "Loss", rounds.plain_loss, "one forward pass")
        found = [replace(loss, samples=rounds.looks[0].samples)]
    sheet = Sheet("basics", "The network")
    if rounds.refusal:
        sheet.notes.append(rounds.refusal)
    else:
        size, most = rounds.looks[-1].subject.dimension, max((q.samples for q in found), default=0)
        sheet.exact("model.parameters", "Parameters", size, "counted, shared ones once")
        how = "the largest number of samples used here"
        sheet.exact("model.samples", "Samples used", most, how)
    sheet.quantities += found
    return sheet.part()


def noise_found(rounds: Rounds, part: Part | None, samples: int) -> Part | None:
    """Return the part on gradient noise with the noise scale of the most samples."""
    found = _finest(rounds, "noise_scale")
    if part is None:
        return Part("noise", "Gradient noise", "Noise", tuple(found)) if found else None
    finer = {scale.key: scale for scale in found if scale.samples > samples}
    return replace(part, quantities=tuple(finer.get(q.key, q) for q in part.quantities))


def hessian_part(rounds: Rounds) -> Part:
    """Return the ends of the Hessian's spectrum."""
    sheet = Sheet("hessian", "Hessian")
    sharpness = "sharpness" if rounds.finest("sharpness") else "bound"
    sheet.quantities += _finest(rounds, sharpness, "smallest", "negativity", "ratio10")
    look = rounds.finest("hessian") or rounds.finest("top")
    top = None if look is None else look.spectra.get("hessian", look.spectra.get("top"))
    if top is not None:
        title = "Leading Hessian eigenvalues"
        sheet.charts.append(spectrum_chart("hessian-spectrum", title, {"H": top}))
        sheet.tables["Leading eigenvalues of the Hessian"] = pairs_table(top)
        sheet.arrays |= pairs_arrays(top)
    low = rounds.finest("smallest")
    if low is not None and "smallest" in low.spectra:
        sheet.arrays["smallest"] = as_array(low.spectra["smallest"].eigenvalues)
    sheet.readings += _read_ends(sheet.quantities)
    sheet.shortened += _missing(rounds, "sharpness", "ends")
    return sheet.part()


def gauss_newton_part(rounds: Rounds) -> Part:
    """Return the trace of the Gauss-Newton matrix and how few directions hold it."""
    sheet = Sheet("gauss_newton", "Gauss-Newton matrix")
    sheet.quantities += _finest(rounds, "trace", "share10", "share50", "rank50")
    sheet.shortened += _missing(rounds, "trace", "shares")
    look = next((entry for entry in reversed(rounds.looks) if entry.gauss_newton), None)
    if look is None or look.gauss_newton is None:
        return sheet.part()
    spectrum, shown = look.gauss_newton.spectrum, {"Gauss-Newton": look.gauss_newton.spectrum}
    name = "Largest eigenvalue of the Gauss-Newton matrix"
    found = [eigenpair("gauss_newton.largest", name, spectrum, 0)]
    if "hessian" in look.spectra:
        shown["Hessian"] = look.spectra["hessian"]
    if look.alignment is not None:
        name = f"Overlap of the {FEW} sharpest directions with the Hessian's"
        how = "mean squared cosine of principal angles"
        found.append(exact("gauss_newton.alignment", name, look.alignment, how))
    sheet.quantities += [replace(quantity, samples=look.samples) for quantity in found]
    sheet.charts.append(spectrum_chart("spectrum", "Leading eigenvalues", shown))
    sheet.tables["Leading eigenvalues of the Gauss-Newton matrix"] = pairs_table(spectrum)
    sheet.arrays |= pairs_arrays(spectrum)
    return sheet.part()


def spectrum_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure all leading eigenpairs of the Hessian that were asked for."""
    number = min(notebook.k, subject.dimension, notebook.most_pairs(subject.hessian))
    most = max(products, number + 2)
    found = notebook.eigsh(subject.hessian, number, tol=1e-3, max_matvecs=most)
    sizes = found.eigenvalues.abs()
    late = int((found.residuals > 1e-3 * sizes.clamp(min=0.1 * float(sizes.max()))).sum())
    sheet = Sheet("spectrum", "Leading eigenvalues of the Hessian")
    if number < notebook.k:
        room = f"Only {number} of {notebook.k} eigenpairs fit in memory."
        sheet.shortened.append(room)
    if late:
        told = f"{late} of {number} eigenpairs have residuals above a thousandth."
        sheet.shortened.append(told)
    elif not bool(found.converged.all()):
        told = "That no further copy of a repeated eigenvalue exists was not shown."
        sheet.shortened.append(told)
    title = f"{number} leading Hessian eigenvalues"
    sheet.charts.append(spectrum_chart("hessian-all", title, {"H": found}))
    sheet.arrays |= pairs_arrays(found)
    sheet.tables[f"The {number} leading eigenvalues of the Hessian"] = pairs_table(found)
    return sheet.part()


def trace_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Estimate the trace of the Hessian."""
    whole, size = notebook.trace(subject.hessian, max_matvecs=120), subject.dimension
    sheet = Sheet("trace", "Trace of the Hessian")
    trace = from_estimate("hessian.trace", "Trace of the Hessian", whole, how_traced(whole))
    sheet.quantities.append(trace)
    told = whole.value / size, whole.stderr / size, trace.method, trace.certainty
    sheet.number("hessian.mean", "Mean eigenvalue of the Hessian", *told)
    return sheet.part()


def density_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Estimate the density of the Hessian's eigenvalues."""
    steps = int(min(60, max(12, products // 3)))
    probes = int(min(10, max(2, products // steps)))
    found = notebook.density(subject.hessian, probes=probes, steps=steps)
    grid, values = as_array(found.grid), as_array(found.values)
    floor, width = 1e-9 * values.max(), 3 * found.width
    low, high = (np.maximum(as_array(edge), floor) for edge in (found.low, found.high))
    bulk = float(np.trapezoid(np.where(np.abs(grid) < width, values, 0), grid))
    curve = Curve(grid, np.maximum(values, floor), low=low, high=high)
    title, axes = "Density of Hessian eigenvalues", ("eigenvalue", "density")
    caption = (
        f"{found.method.capitalize()}, {probes} probes of {steps} steps, smoothed with a width of "
        f"{found.width:.2g}; the band is ± 2 standard errors."
    )
    sheet = Sheet("density", "Spectral density", arrays={"grid": grid, "values": values})
    scales = {"log_y": True, "toggles": ("y",)}
    sheet.charts.append(Chart("density", title, *axes, (curve,), **scales, caption=caption))
    how = f"mass of the density within ± {width:.2g}"
    told = float("nan"), how, f"{probes} random probes; see the band of the chart"
    sheet.number("density.bulk", "Share of eigenvalues next to zero", bulk, *told)
    return sheet.part()


def _finest(rounds: Rounds, *keys: str) -> list[Quantity]:
    """Return each statistic on the most samples it is known on, under the inspection's names."""
    looks = {key: rounds.finest(key) for key in keys}
    known = {key: look.statistics for key, look in looks.items() if look is not None}
    return [replace(found[key], key=_KEYS[key]) for key, found in known.items() if key in found]


def _missing(rounds: Rounds, *tasks: str) -> tuple[str, ...]:
    """Say which looks at more samples did not fit, and the time they need."""
    return tuple(
        f"On {look.samples:,} samples this needs about {look.missing[task]:.0f} s more."
        for task in tasks
        for look in rounds.with_absent()
        if task in look.missing
    )


def _read_ends(found: list[Quantity]) -> tuple[str, ...]:
    by_key = {quantity.key: quantity for quantity in found}
    smallest, ratio = by_key.get("hessian.smallest"), by_key.get("hessian.negativity")
    if smallest is None or ratio is None:
        return ()
    if smallest.value + smallest.error >= 0:
        return ("No direction of negative curvature was found.",)
    lowest = f"the lowest {smallest.value:.3g}, {abs(ratio.value):.1%} of the sharpest"
    return (f"There are directions of negative curvature, {lowest}.",)


_LATE: dict[str, Any] = {"is_fixed": True, "is_late": True}
STEPS = (
    Step("trace", "Trace of the Hessian", 100, trace_part, lambda s, n: 120, **_LATE),
    Step("density", "Spectral density", 110, density_part, lambda s, n: 300, 24, is_late=True),
    Step(
        "spectrum",
        "Leading eigenvalues of the Hessian",
        order=120,
        run=spectrum_part,
        wish=lambda s, n: 8 * min(n.k, s.dimension) + 40,
        obstacle=lambda s, n: "" if n.k > FEW else "all that were asked for are known",
        **_LATE,
    ),
)

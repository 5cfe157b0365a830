"""Curvature as parts of an inspection: the headline numbers, the trace, the density."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite, prod

import numpy as np

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.parts import headlines
from hyperribbon.application.inspection.parts.matrices import (
    COUNTS,
    eigenpair,
    how_traced,
    pairs_arrays,
    pairs_table,
    spectrum_chart,
)
from hyperribbon.application.inspection.quantities import (
    Part,
    Quantity,
    as_array,
    exact,
    from_estimate,
)
from hyperribbon.plots import Chart, Curve

_DENSITY = 5, 60
"""Probes and Lanczos steps of the spectral density."""
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


def headline_parts(notebook: Notebook) -> list[Part]:
    """Return the parts of loss and curvature (Hessian, Gauss-Newton), without empty ones."""
    parts = (network_part(notebook), hessian_part(notebook), gauss_newton_part(notebook))
    return [part for part in parts if part.quantities]


def network_part(notebook: Notebook) -> Part:
    """Return the curvature report's first part: loss, gradient and accuracy on the most samples."""
    found = _finest(notebook, "loss", "gradient", "accuracy")
    if not found:
        value = notebook.levels[0].subject.plain_loss()
        loss = exact("model.loss", "Loss", value, "one forward pass")
        found = [replace(loss, samples=notebook.levels[0].samples)] if isfinite(value) else []
    part = Part("basics", "The network")
    if notebook.refusal:
        part.notes.append(notebook.refusal)
    else:
        size = notebook.levels[-1].subject.dimension
        most = max((q.samples for q in found), default=0)
        part.exact("model.parameters", "Parameters", size, "counted, shared ones once")
        how = "the largest number of samples used here"
        part.exact("model.samples", "Samples used", most, how)
    part.quantities += found
    return part


def refine_noise_part(notebook: Notebook, part: Part | None) -> Part | None:
    """Return the noise part again, with curvature's noise scale of the most samples."""
    found = _finest(notebook, "noise_scale")
    if part is None:
        return Part("noise", "Gradient noise", "Noise", found) if found else None
    finer = {q.key: q for q in found if q.samples > part[q.key].samples}
    return replace(part, quantities=[finer.get(q.key, q) for q in part.quantities])


def hessian_part(notebook: Notebook) -> Part:
    """Return the curvature part on the ends of the Hessian's spectrum."""
    part = Part("hessian", "Hessian")
    sharpness = "sharpness" if notebook.finest("sharpness") else "bound"
    part.quantities += _finest(notebook, sharpness, "smallest", "negativity", "ratio10")
    top = notebook.hessian
    if top is not None:
        title = "Leading Hessian eigenvalues"
        part.charts.append(spectrum_chart("hessian-spectrum", title, {"H": top}))
        part.tables["Leading eigenvalues of the Hessian"] = pairs_table(top)
        part.arrays |= pairs_arrays(top)
    low = notebook.finest("smallest")
    if low is not None and "smallest" in low.spectra:
        part.arrays["smallest"] = as_array(low.spectra["smallest"].eigenvalues)
    part.readings += _read_ends(part.quantities)
    part.shortened += _missing(notebook, "sharpness", "ends")
    return part


def gauss_newton_part(notebook: Notebook) -> Part:
    """Return the curvature part on the Gauss-Newton trace and how few directions hold it."""
    part = Part("gauss_newton", "Gauss-Newton matrix")
    part.quantities += _finest(notebook, "trace", "share10", "share50", "rank50")
    part.shortened += _missing(notebook, "trace", "shares")
    level = notebook.finest("gauss_newton")
    if level is None or level.gauss_newton is None:
        return part
    spectrum, shown = level.gauss_newton.spectrum, {"Gauss-Newton": level.gauss_newton.spectrum}
    name = "Largest eigenvalue of the Gauss-Newton matrix"
    found = [eigenpair("gauss_newton.largest", name, spectrum, 0)]
    if "hessian" in level.spectra:
        shown["Hessian"] = level.spectra["hessian"]
    if level.alignment is not None:
        name = f"Overlap of the {COUNTS[0]} sharpest directions with the Hessian's"
        how = "mean squared cosine of principal angles"
        found.append(exact("gauss_newton.alignment", name, level.alignment, how))
    part.quantities += [replace(quantity, samples=level.samples) for quantity in found]
    part.charts.append(spectrum_chart("spectrum", "Leading eigenvalues", shown))
    part.tables["Leading eigenvalues of the Gauss-Newton matrix"] = pairs_table(spectrum)
    part.arrays |= pairs_arrays(spectrum)
    return part


def spectrum_part(level: Level, notebook: Notebook) -> Part:
    """Curvature part: measure the k largest asked for, leading eigenpairs of the Hessian."""
    hessian = level.subject.hessian
    wanted = min(notebook.k, level.subject.dimension)
    number = min(wanted, notebook.most_pairs(hessian))
    limits = {"max_matvecs": 8 * number + 40, "partial": True}
    found = notebook.eigsh(hessian, number, tol=1e-3, **limits)
    sizes = found.eigenvalues.abs()
    late = int((found.residuals > 1e-3 * sizes.clamp(min=0.1 * float(sizes.max()))).sum())
    part = Part("spectrum", "Leading eigenvalues of the Hessian")
    if number < wanted:
        part.shortened.append(f"Only {number} of {wanted} eigenpairs fit in memory.")
    if late:
        part.shortened.append(f"{late} of {number} eigenpairs have residuals above a thousandth.")
    if found.certificate != "full":
        part.notes.append("One of them may be missing in between: a copy of a repeated eigenvalue.")
    title = f"{number} leading Hessian eigenvalues"
    part.charts.append(spectrum_chart("hessian-all", title, {"H": found}))
    part.arrays |= pairs_arrays(found)
    part.tables[f"The {number} leading eigenvalues of the Hessian"] = pairs_table(found)
    return part


def trace_part(level: Level, notebook: Notebook) -> Part:
    """Curvature part: estimate the Hessian's trace, the mean curvature."""
    subject = level.subject
    whole, size = notebook.trace(subject.hessian, max_matvecs=120), subject.dimension
    part = Part("trace", "Trace of the Hessian")
    trace = from_estimate("hessian.trace", "Trace of the Hessian", whole, how_traced(whole))
    part.quantities.append(trace)
    mean = whole.value / size, whole.stderr / size, trace.method, trace.certainty
    part.number("hessian.mean", "Mean eigenvalue of the Hessian", *mean)
    return part


def density_part(level: Level, notebook: Notebook) -> Part:
    """Curvature part: estimate the density of the Hessian's eigenvalues."""
    probes, steps = _DENSITY
    found = notebook.density(level.subject.hessian, probes=probes, steps=steps)
    done = max(found.matvecs // steps, 1)
    grid, values = as_array(found.grid), as_array(found.values)
    floor, width = 1e-9 * values.max(), 3 * found.width
    low, high = (np.maximum(as_array(edge), floor) for edge in (found.low, found.high))
    bulk = float(np.trapezoid(np.where(np.abs(grid) < width, values, 0), grid))
    curve = Curve(grid, np.maximum(values, floor), low=low, high=high)
    title, axes = "Density of Hessian eigenvalues", ("eigenvalue", "density")
    caption = (
        f"{found.method.capitalize()}, {done} probes of {steps} steps, smoothed with a width of "
        f"{found.width:.2g}; the band is two standard errors to either side."
    )
    part = Part("density", "Spectral density", arrays={"grid": grid, "values": values})
    scales = {"log_y": True, "toggles": ("y",)}
    part.charts.append(Chart("density", title, *axes, (curve,), **scales, caption=caption))
    how = f"mass of the density closer to zero than {width:.2g}"
    bulk = bulk, float("nan"), how, f"{done} random probes; see the band of the chart"
    part.number("density.bulk", "Share of eigenvalues next to zero", *bulk)
    if done < probes and found.matvecs < level.subject.dimension:
        part.shortened.append(f"The density is of {done} of {probes} random probes.")
    return part


def _finest(notebook: Notebook, *keys: str) -> list[Quantity]:
    """Return each statistic of curvature on the most samples it is known on, by its name."""
    levels = {key: notebook.finest(key) for key in keys}
    known = {key: level.statistics for key, level in levels.items() if level is not None}
    return [replace(found[key], key=_KEYS[key]) for key, found in known.items() if key in found]


def _missing(notebook: Notebook, *names: str) -> list[str]:
    """Return on how many samples curvature did not fit, and the time it would need."""
    titles = {measurement.name: measurement.title for measurement in headlines.MEASUREMENTS}
    parts = [(*key.split("@"), seconds) for key, seconds in notebook.missing.items()]
    return [
        f"{titles[name]} on {int(samples):,} samples: about {max(seconds, 1):.0f} s more."
        for name, samples, seconds in parts
        if name in names
    ]


def _read_ends(found: list[Quantity]) -> tuple[str, ...]:
    by_key = {quantity.key: quantity for quantity in found}
    smallest, ratio = by_key.get("hessian.smallest"), by_key.get("hessian.negativity")
    if smallest is None or ratio is None:
        return ()
    if smallest.value + smallest.error >= 0:
        return ("No direction of negative curvature was found.",)
    lowest = f"the lowest {smallest.value:.3g}, {abs(ratio.value):.1%} of the sharpest"
    return (f"There are directions of negative curvature, {lowest}.",)


def _trace_products(level: Level, notebook: Notebook) -> float:
    risk = level.subject.risk  # a Hessian would check its derivatives first
    return 10 if risk.is_piecewise_linear and risk.criterion.is_convex else 120


def _spectrum_products(level: Level, notebook: Notebook) -> float:
    """Return the cost of a curvature spectrum: an orthogonalisation counts as a product."""
    return 12 * min(notebook.k, level.subject.dimension) + 40


def _all_known(level: Level, notebook: Notebook) -> str:
    known = notebook.finest("hessian")
    wanted = min(notebook.k, level.subject.dimension)
    is_known = known is not None and len(known.spectra["hessian"]) >= wanted
    return "all that were asked for are known" if is_known else ""


MEASUREMENTS = (
    Measurement("hessian_trace", "Trace of the Hessian", 100, trace_part, _trace_products),
    Measurement("density", "Spectral density", 110, density_part, lambda level, n: prod(_DENSITY)),
    Measurement(
        "spectrum",
        "Leading eigenvalues of the Hessian",
        order=120,
        run=spectrum_part,
        products=_spectrum_products,
        obstacle=_all_known,
    ),
)

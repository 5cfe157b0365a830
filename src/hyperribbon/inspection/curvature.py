"""Curvature as parts of an inspection: what the rounds have found, the trace, the density."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hyperribbon.core.results import Spectrum
from hyperribbon.inspection.looks import FEW
from hyperribbon.inspection.matrices import (
    eigenpair,
    how_traced,
    pairs_table,
    spectrum_chart,
)
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity, as_array, exact, from_estimate
from hyperribbon.inspection.rounds import Rounds
from hyperribbon.inspection.subject import Subject
from hyperribbon.plots import Chart, Curve
from hyperribbon.spectra import alignment, density, eigsh, trace

__all__ = [
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
        found = (replace(loss, samples=rounds.looks[0].samples),)
    if rounds.refusal:
        return Part("basics", "The network", "Curvature", found, notes=(rounds.refusal,))
    subject = rounds.looks[-1].subject
    sizes = (
        exact("model.parameters", "Parameters", subject.dimension, "counted, shared ones once"),
        exact("model.samples", "Samples used", max(q.samples for q in found) if found else 0,
              "the most that any number here is of"),
    )  # fmt: skip
    return Part("basics", "The network", "Curvature", (*sizes, *found))


def noise_found(rounds: Rounds, part: Part | None, samples: int) -> Part | None:
    """Return the part on gradient noise with the noise scale of the most samples.

    Args:
        rounds: What was found on growing numbers of samples.
        part: What the step on noise has measured; None when it had no time.
        samples: How many that is of.
    """
    found = _finest(rounds, "noise_scale")
    if part is None:
        return Part("noise", "Gradient noise", "Noise", found) if found else None
    finer = {scale.key: scale for scale in found if scale.samples > samples}
    return replace(part, quantities=tuple(finer.get(q.key, q) for q in part.quantities))


def hessian_part(rounds: Rounds) -> Part:
    """Return the ends of the Hessian's spectrum."""
    sharpness = "sharpness" if rounds.finest("sharpness") else "bound"
    found = _finest(rounds, sharpness, "smallest", "negativity", "ratio10")
    look = rounds.finest("hessian") or rounds.finest("top")
    top = None if look is None else look.spectra.get("hessian", look.spectra.get("top"))
    charts, tables, arrays = (), {}, {}
    if top is not None:
        charts = (spectrum_chart("hessian-spectrum", "Leading Hessian eigenvalues", {"H": top}),)
        tables = {"Leading eigenvalues of the Hessian": pairs_table(top)}
        arrays = {"eigenvalues": as_array(top.eigenvalues), "residuals": as_array(top.residuals)}
    low = rounds.finest("smallest")
    if low is not None and "smallest" in low.spectra:
        arrays["smallest"] = as_array(low.spectra["smallest"].eigenvalues)
    return Part(
        "hessian", "Hessian", "Curvature", found, _read_ends(found), charts, tables, arrays,
        shortened=_missing(rounds, "sharpness", "ends"),
    )  # fmt: skip


def gauss_newton_part(rounds: Rounds) -> Part:
    """Return the trace of the Gauss-Newton matrix and how few directions hold it."""
    found = list(_finest(rounds, "trace", "share10", "share50", "rank50"))
    look = next((entry for entry in reversed(rounds.looks) if entry.gauss_newton), None)
    charts, tables, arrays = [], {}, {}
    if look is not None and look.gauss_newton is not None:
        spectrum = look.gauss_newton.spectrum
        largest = eigenpair("gauss_newton.largest", "Largest eigenvalue of the Gauss-Newton matrix",
                            spectrum, 0)  # fmt: skip
        found.append(replace(largest, samples=look.samples))
        shown = {"Gauss-Newton": spectrum}
        hessian = look.spectra.get("hessian")
        if hessian is not None:
            shown["Hessian"] = hessian
            if min(_columns(spectrum), _columns(hessian)) >= FEW:
                overlap = exact(
                    "gauss_newton.alignment",
                    f"Overlap of the {FEW} sharpest directions with the Hessian's",
                    _overlap(hessian, spectrum, FEW), "mean squared cosine of principal angles",
                )  # fmt: skip
                found.append(replace(overlap, samples=look.samples))
        charts = [spectrum_chart("spectrum", "Leading eigenvalues", shown)]
        tables = {"Leading eigenvalues of the Gauss-Newton matrix": pairs_table(spectrum)}
        arrays = {"eigenvalues": as_array(spectrum.eigenvalues),
                  "residuals": as_array(spectrum.residuals)}  # fmt: skip
    return Part(
        "gauss_newton", "Gauss-Newton matrix", "Curvature", tuple(found), (), tuple(charts), tables,
        arrays, shortened=_missing(rounds, "trace", "shares"),
    )  # fmt: skip


def spectrum_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure all leading eigenpairs of the Hessian that were asked for."""
    number = min(notebook.k, subject.dimension, notebook.most_pairs(subject.hessian))
    found = eigsh(subject.hessian, number, tol=1e-3, seed=notebook.seed,
                  max_matvecs=max(products, number + 2),
                  memory=notebook.solver_memory)  # fmt: skip
    late = int((found.residuals > 1e-3 * found.eigenvalues.abs().clamp(
        min=0.1 * float(found.eigenvalues.abs().max()))).sum())  # fmt: skip
    notes = []
    if number < notebook.k:
        notes.append(f"The memory has room for {number} of {notebook.k} eigenpairs.")
    if late:
        notes.append(f"{late} of {number} eigenpairs have residuals above a thousandth.")
    elif not bool(found.converged.all()):
        notes.append("That no further copy of a repeated eigenvalue exists was not shown.")
    return Part(
        "spectrum", "Leading eigenvalues of the Hessian", "Curvature",
        charts=(spectrum_chart("hessian-all", f"{number} leading Hessian eigenvalues",
                               {"H": found}),),
        arrays={"eigenvalues": as_array(found.eigenvalues),
                "residuals": as_array(found.residuals)},
        tables={f"The {number} leading eigenvalues of the Hessian": pairs_table(found)},
        shortened=tuple(notes),
    )  # fmt: skip


def trace_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Estimate the trace of the Hessian."""
    whole = trace(
        subject.hessian, precision=0.02, seed=notebook.seed, max_matvecs=120,
        memory=notebook.solver_memory,
    )  # fmt: skip
    quantity = from_estimate("hessian.trace", "Trace of the Hessian", whole, how_traced(whole))
    mean = whole.value / subject.dimension
    return Part(
        "trace", "Trace of the Hessian", "Curvature",
        (quantity, Quantity("hessian.mean", "Mean eigenvalue of the Hessian", mean,
                            whole.stderr / subject.dimension, quantity.method, quantity.certainty)),
    )  # fmt: skip


def density_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Estimate the density of the Hessian's eigenvalues."""
    steps = int(min(60, max(12, products // 3)))
    probes = int(min(10, max(2, products // steps)))
    found = density(subject.hessian, probes=probes, steps=steps, seed=notebook.seed,
                    memory=notebook.solver_memory)  # fmt: skip
    grid, values = as_array(found.grid), as_array(found.values)
    floor = 1e-9 * values.max()
    low, high = (np.maximum(as_array(edge), floor) for edge in (found.low, found.high))
    bulk = float(np.trapezoid(np.where(np.abs(grid) < 3 * found.width, values, 0), grid))
    chart = Chart(
        "density", "Density of Hessian eigenvalues", "eigenvalue", "density",
        (Curve(grid, np.maximum(values, floor), low=low, high=high),), log_y=True, toggles=("y",),
        caption=f"{found.method.capitalize()}, {probes} probes of {steps} steps, smoothed with a "
        f"width of {found.width:.2g}; the band is ± 2 standard errors.",
    )  # fmt: skip
    return Part(
        "density", "Spectral density", "Curvature", charts=(chart,),
        quantities=(Quantity("density.bulk", "Share of eigenvalues next to zero", bulk,
                             float("nan"), f"mass of the density within ± {3 * found.width:.2g}",
                             f"{probes} random probes; see the band of the chart"),),
        arrays={"grid": grid, "values": values},
    )  # fmt: skip


def _finest(rounds: Rounds, *keys: str) -> tuple[Quantity, ...]:
    """Return each statistic on the most samples it is known on, under the inspection's names."""
    found = []
    for key in keys:
        look = rounds.finest(key)
        if look is not None and key in look.statistics:
            found.append(replace(look.statistics[key], key=_KEYS[key]))
    return tuple(found)


def _missing(rounds: Rounds, *tasks: str) -> tuple[str, ...]:
    """Say which looks at more samples did not fit, and the time they need."""
    absent = [rounds.absent] if rounds.absent is not None else []
    return tuple(
        f"On {look.samples:,} samples this needs about {look.missing[task]:.0f} s more."
        for task in tasks
        for look in (*rounds.looks, *absent)
        if task in look.missing
    )


def _read_ends(found: tuple[Quantity, ...]) -> tuple[str, ...]:
    by_key = {quantity.key: quantity for quantity in found}
    smallest, ratio = by_key.get("hessian.smallest"), by_key.get("hessian.negativity")
    if smallest is None or ratio is None:
        return ()
    if smallest.value + smallest.error < 0:
        return (
            f"There are directions of negative curvature, the lowest {smallest.value:.3g}, "
            f"{abs(ratio.value):.1%} of the sharpest.",
        )
    return ("No direction of negative curvature was found.",)


def _columns(spectrum: Spectrum) -> int:
    return 0 if spectrum.eigenvectors is None else spectrum.eigenvectors.shape[1]


def _overlap(first: Spectrum, second: Spectrum, k: int) -> float:
    assert first.eigenvectors is not None
    assert second.eigenvectors is not None
    return alignment(first.eigenvectors[:, :k], second.eigenvectors[:, :k]).overlap

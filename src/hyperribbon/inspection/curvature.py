"""Curvature: ends of the Hessian's spectrum, Gauss-Newton matrix, trace, density."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hyperribbon.core.results import Spectrum
from hyperribbon.inspection.clock import OutOfTimeError
from hyperribbon.inspection.matrices import (
    affordable_pairs,
    eigenpair,
    how_traced,
    matrix_quantities,
    measure_matrix,
    pairs_table,
    shortened,
    spectrum_chart,
)
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity, as_array, exact, from_estimate
from hyperribbon.inspection.subject import Subject
from hyperribbon.plots import Chart, Curve
from hyperribbon.spectra import alignment, density, eigsh, trace

__all__ = [
    "density_part",
    "gauss_newton_part",
    "hessian_part",
    "trace_part",
]

_SMALLEST = 3
_GROUPS = 8


def hessian_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure the two ends of the Hessian's spectrum."""
    hessian = subject.hessian
    low_share = products // 4
    k = affordable_pairs(notebook.k, products - low_share, subject.dimension)
    k = min(k, notebook.most_pairs(hessian))
    top = eigsh(
        hessian, k, seed=notebook.seed, max_matvecs=max(products - low_share, k + 2),
        max_seconds=0.75 * notebook.clock.share_left, memory=notebook.solver_memory,
    )  # fmt: skip
    top = notebook.keep("hessian", top)
    count = min(_SMALLEST, subject.dimension)
    bottom = eigsh(
        hessian, count, "SA", tol=1e-3, seed=notebook.seed, eigenvectors=False,
        max_matvecs=max(low_share, 2 * count + 20), max_seconds=notebook.clock.share_left,
        memory=notebook.solver_memory,
    )  # fmt: skip
    largest = eigenpair("hessian.largest", "Largest eigenvalue of the Hessian", top, 0)
    spread = _sampling_error(subject, top, notebook.seed)
    if spread is not None:
        certainty = (
            "standard error over samples; on these samples an eigenvalue lies within "
            f"{largest.error:.1g}"
        )
        largest = replace(largest, error=spread, certainty=certainty)
    smallest = eigenpair("hessian.smallest", "Smallest eigenvalue of the Hessian", bottom, -1)
    ratio = smallest.value / largest.value if largest.value else float("nan")
    quantities = (
        largest,
        smallest,
        Quantity("hessian.negativity", "Smallest over largest eigenvalue", ratio,
                 smallest.error / abs(largest.value) if largest.value else float("nan"),
                 "from the two ends", "residuals of the eigenpairs"),
    )  # fmt: skip
    reading = f"The sharpest direction has curvature {largest.value:.4g}"
    if spread is not None:
        reading += f" (± {spread:.2g} from the choice of samples)"
    if smallest.value + smallest.error < 0:
        reading += (
            f"; there are directions of negative curvature, the lowest {smallest.value:.3g}, "
            f"{abs(ratio):.1%} of it."
        )
    else:
        reading += "; no direction of negative curvature was found."
    values = as_array(top.eigenvalues)
    return Part(
        "hessian", "Hessian", "Curvature", quantities, (reading,),
        charts=(spectrum_chart("hessian-spectrum", "Leading Hessian eigenvalues", {"H": top}),),
        arrays={"eigenvalues": values, "residuals": as_array(top.residuals),
                "smallest": as_array(bottom.eigenvalues)},
        tables={"Leading eigenvalues of the Hessian": pairs_table(top)},
        shortened=shortened(top, notebook.k),
    )  # fmt: skip


def gauss_newton_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure the Gauss-Newton matrix and its trace."""
    found = measure_matrix(subject.ggn, notebook.k, notebook, products)
    spectrum = notebook.keep("gauss_newton", found.spectrum)
    notebook.matrices["gauss_newton"] = found = replace(found, spectrum=spectrum)
    quantities = matrix_quantities("gauss_newton", "Gauss-Newton matrix", found)
    shown = {"Gauss-Newton": spectrum}
    hessian = notebook.spectra.get("hessian")
    if hessian is not None:
        shown["Hessian"] = hessian
        common = min(_columns(spectrum), _columns(hessian), 10)
        quantities.append(
            exact("gauss_newton.alignment",
                  f"Overlap of the {common} sharpest directions with the Hessian's",
                  _overlap(hessian, spectrum, common), "mean squared cosine of principal angles")
        )  # fmt: skip
    return Part(
        "gauss_newton", "Gauss-Newton matrix", "Curvature", tuple(quantities),
        charts=(spectrum_chart("spectrum", "Leading eigenvalues", shown),),
        arrays={"eigenvalues": as_array(spectrum.eigenvalues),
                "residuals": as_array(spectrum.residuals)},
        tables={"Leading eigenvalues of the Gauss-Newton matrix": pairs_table(spectrum)},
        shortened=shortened(spectrum, notebook.k),
    )  # fmt: skip


def trace_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Estimate the trace of the Hessian."""
    whole = trace(
        subject.hessian, precision=0.02, seed=notebook.seed, max_matvecs=max(products, 16),
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


def _sampling_error(subject: Subject, spectrum: Spectrum, seed: int) -> float | None:
    """Return the standard error of vᵀHv over disjoint groups of samples, v the top eigenvector."""
    assert spectrum.eigenvectors is not None
    v = spectrum.eigenvectors[:, 0]
    try:
        values = np.array([float(v @ (g.hessian @ v)) for g in subject.groups(_GROUPS, seed)])
    except OutOfTimeError:
        return None
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) else None


def _columns(spectrum: Spectrum) -> int:
    return 0 if spectrum.eigenvectors is None else spectrum.eigenvectors.shape[1]


def _overlap(first: Spectrum, second: Spectrum, k: int) -> float:
    assert first.eigenvectors is not None
    assert second.eigenvectors is not None
    return alignment(first.eigenvectors[:, :k], second.eigenvectors[:, :k]).overlap

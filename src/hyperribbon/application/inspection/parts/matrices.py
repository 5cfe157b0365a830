"""Measured for every positive semidefinite matrix: spectrum, trace, concentration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hyperribbon.application.inspection.engine.notebook import Notebook
from hyperribbon.application.inspection.quantities import (
    Measured,
    Quantity,
    as_array,
    exact,
    from_estimate,
)
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.spectral_results import Estimate, Spectrum
from hyperribbon.plots import Chart, Curve
from hyperribbon.spectra import effective_rank

COUNTS = (10, 50)
"""Directions that statistics speak of, whatever the budget."""
_DENSE = 2048
"""Size up to which a matrix, or a Gram matrix, is written out."""
_COPIES = 5
"""Copies of the eigenvectors that there are at once while a Gram matrix's are lifted."""


def eigenpairs(
    op: Any, k: int, which: str, tol: float, notebook: Notebook, *, partial: bool = False
) -> Spectrum:
    """Return a matrix's eigenpairs by a route that depends on sizes alone, never on speed."""
    size, rows = op.shape[0], getattr(op, "gram_size", None)
    method, few = "lanczos", COUNTS[0]
    if k > few and rows is not None and k <= rows <= min(_DENSE, size):
        method = "gram"
    elif size <= (_DENSE if k > few else _DENSE // 4):
        method = "dense"
    if method != "lanczos":
        room = notebook.solver_memory
        wanted = method == "dense" or _COPIES * k * size * op.dtype.itemsize <= room
        options = {"method": method, "eigenvectors": wanted}
        options["memory"] = room if wanted else notebook.counted_memory
        try:
            return notebook.eigsh(op, k, which, tol=tol, **options)
        except ArgumentError as error:
            if error.argument != "memory":
                raise
            method = "lanczos"
    memory = notebook.counted_memory if k == 1 else notebook.solver_memory
    options = {"max_matvecs": max(400, 6 * k), "memory": memory, "partial": partial}
    return notebook.eigsh(op, k, which, tol=tol, method=method, **options)


def measure_matrix(operator: Any, k: int, notebook: Notebook) -> Measured:
    """Measure a positive semidefinite matrix: its leading eigenpairs and its trace."""
    k = min(k, operator.shape[0])
    spectrum = notebook.eigsh(operator, k, tol=1e-3, max_matvecs=20 * k + 100)
    whole = notebook.trace(operator, max_matvecs=200)
    return Measured(spectrum, whole, operator.shape[0])


def how_traced(found: Estimate) -> str:
    """Return how a matrix's trace was found, in words."""
    if found.exact and found.matvecs == 0:
        return "one pass over the samples"
    return how_found(found)


def how_found(found: Spectrum | Estimate) -> str:
    """Return how a matrix's number was found, in words."""
    return f"{found.method}, {found.matvecs} products"


def matrix_quantities(key: str, name: str, found: Measured, how: str = "") -> list[Quantity]:
    """Return the numbers that describe a positive semidefinite matrix, and how they were found."""
    values, whole, shares = as_array(found.spectrum.eigenvalues), found.trace, found.shares
    relative = whole.stderr / abs(whole.value) if whole.value else 0.0
    certainty = "standard error of the trace"
    if whole.exact:
        certainty = "exact trace, eigenvalues to their residuals"
    quantities = [
        eigenpair(f"{key}.largest", f"Largest eigenvalue of the {name}", found.spectrum, 0, how),
        from_estimate(f"{key}.trace", f"Trace of the {name}", whole, how or how_traced(whole)),
    ]
    told = "leading eigenvalues over trace", certainty
    for count in COUNTS:
        if count <= len(values):
            share, title = float(shares[count - 1]), f"Share of its trace in {count} directions"
            error = share * relative
            quantities.append(Quantity(f"{key}.share{count}", title, share, error, *told))
    if len(values) >= COUNTS[-1]:
        quantities.append(rank_quantity(f"{key}.rank{COUNTS[-1]}", "its", values))
    return [replace(quantity, samples=found.samples) for quantity in quantities]


def rank_quantity(key: str, whose: str, values: np.ndarray) -> Quantity:
    """Return the effective rank of a matrix's first fifty eigenvalues as a quantity."""
    rank = effective_rank(np.clip(values[: COUNTS[-1]], 0.0, None))
    name = f"Effective rank of {whose} first {COUNTS[-1]} directions"
    return exact(key, name, rank, "exp of the entropy of their eigenvalues")


def eigenpair(key: str, name: str, spectrum: Spectrum, index: int, how: str = "") -> Quantity:
    """Return one eigenvalue of a matrix, with its certificate, as a quantity."""
    certainty = "an eigenvalue lies within the residual"
    if not bool(spectrum.converged[index]):
        certainty += "; not converged to the tolerance"
    value, error = float(spectrum.eigenvalues[index]), float(spectrum.residuals[index])
    return Quantity(key, name, value, error, how or how_found(spectrum), certainty)


def pairs_arrays(spectrum: Spectrum) -> dict[str, np.ndarray]:
    """Return a matrix's eigenvalues and residuals as arrays for a part to store."""
    return {name: as_array(getattr(spectrum, name)) for name in ("eigenvalues", "residuals")}


def pairs_table(spectrum: Spectrum) -> pd.DataFrame:
    """Return the table of a matrix's eigenvalues and residuals for a part."""
    values, residuals = pairs_arrays(spectrum).values()
    columns = {"index": np.arange(1, len(values) + 1), "eigenvalue": values}
    columns |= {"residual": residuals, "converged": spectrum.converged.cpu().numpy()}
    return pd.DataFrame(columns)


def unconverged_note(spectrum: Spectrum) -> tuple[str, ...]:
    """Return the note on which of a matrix's eigenpairs have not settled, if any."""
    late = int((~spectrum.converged).sum())
    return (f"{late} of {len(spectrum)} eigenpairs did not settle.",) if late else ()


def spectral_chart(name: str, title: str, marks: list[Curve], caption: str) -> Chart:
    """Return a chart of one matrix's eigenvalues against their index."""
    axes, scales = ("index", "eigenvalue"), {"log_y": True, "toggles": ("x", "y")}
    return Chart(name, title, *axes, tuple(marks), **scales, caption=caption)


def spectrum_chart(name: str, title: str, spectra: dict[str, Spectrum]) -> Chart:
    """Return a chart of several matrices' positive eigenvalues against their index."""
    marks = []
    for label, spectrum in spectra.items():
        values = as_array(spectrum.eigenvalues)
        kept = values > 0
        index = np.arange(1, len(values) + 1)[kept]
        marks.append(Curve(index, values[kept], label if len(spectra) > 1 else "", "both"))
    caption = (
        "Positive eigenvalues, largest first; each lies within its residual (see the table) of an "
        "eigenvalue of the matrix."
    )
    return spectral_chart(name, title, marks, caption)


def share_chart(shares: np.ndarray) -> Chart:
    """Return the chart of a matrix's trace shares against the number of directions."""
    line = Curve(np.arange(1, len(shares) + 1), shares, style="both")
    texts = "Share of the trace in the leading directions", "directions", "share of the trace"
    caption = "How many directions carry how much of the curvature."
    return Chart("trace-share", *texts, (line,), toggles=("x",), caption=caption)


def share_reading(shares: np.ndarray, matrix: str) -> str:
    """Return a sentence on how much of a matrix's trace a few directions hold."""
    k = min(COUNTS[0], len(shares))
    leading = "leading direction holds" if k == 1 else f"{k} leading directions hold"
    return f"The {leading} {shares[k - 1]:.0%} of the {matrix} trace."

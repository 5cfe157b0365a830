"""What is measured alike of every positive semidefinite matrix: spectrum, trace, concentration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hyperribbon.core.results import Estimate, Spectrum
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import (
    Measured,
    Quantity,
    as_array,
    exact,
    from_estimate,
)
from hyperribbon.plots import Chart, Curve
from hyperribbon.spectra import effective_rank, eigsh, trace

COUNTS = (10, 50)
"""Directions that statistics speak of, whatever the budget."""

__all__ = [
    "COUNTS",
    "eigenpair",
    "how_traced",
    "matrix_quantities",
    "measure_matrix",
    "pairs_table",
    "share_chart",
    "share_reading",
    "shortened",
    "spectrum_chart",
]


def measure_matrix(operator: Any, k: int, notebook: Notebook) -> Measured:
    """Return the leading eigenpairs and the trace of a positive semidefinite operator.

    Args:
        operator: The matrix.
        k: Pairs wanted.
        notebook: The request.
    """
    k = min(k, operator.shape[0])
    spectrum = eigsh(operator, k, tol=1e-3, seed=notebook.seed, max_matvecs=20 * k + 100,
                     memory=notebook.solver_memory)  # fmt: skip
    whole = trace(operator, precision=0.02, seed=notebook.seed, max_matvecs=200,
                  memory=notebook.solver_memory)  # fmt: skip
    return Measured(spectrum, whole, operator.shape[0])


def how_traced(found: Estimate) -> str:
    """Return how a trace was found, in words."""
    if found.exact and found.matvecs == 0:
        return "one pass over the samples"
    return f"{found.method}, {found.matvecs} products"


def matrix_quantities(key: str, name: str, found: Measured, how: str = "") -> list[Quantity]:
    """Return the numbers that describe a positive semidefinite matrix.

    Args:
        key: First part of their keys.
        name: What the matrix is called.
        found: What was measured.
        how: Where the numbers come from, when not from products with the matrix itself.
    """
    values, whole, shares = as_array(found.spectrum.eigenvalues), found.trace, found.shares
    method = how_traced(whole)
    certainty = "exact trace, eigenvalues to their residuals"
    relative = whole.stderr / abs(whole.value) if whole.value else 0.0
    quantities = [
        eigenpair(f"{key}.largest", f"Largest eigenvalue of the {name}", found.spectrum, 0, how),
        from_estimate(f"{key}.trace", f"Trace of the {name}", whole, how or method),
    ]
    for count in COUNTS:
        if count <= len(values):
            quantities.append(
                Quantity(f"{key}.share{count}", f"Share of its trace in {count} directions",
                         float(shares[count - 1]), float(shares[count - 1]) * relative,
                         "leading eigenvalues over trace",
                         certainty if whole.exact else "standard error of the trace")
            )  # fmt: skip
    if len(values) >= COUNTS[-1]:
        rank = effective_rank(np.clip(values[: COUNTS[-1]], 0.0, None))
        quantities.append(
            exact(f"{key}.rank{COUNTS[-1]}", f"Effective rank of its first {COUNTS[-1]} directions",
                  rank, "exp of the entropy of their eigenvalues")
        )  # fmt: skip
    return quantities


def eigenpair(key: str, name: str, spectrum: Spectrum, index: int, how: str = "") -> Quantity:
    """Return one eigenvalue with its certificate."""
    good = bool(spectrum.converged[index])
    certainty = "an eigenvalue lies within the residual"
    return Quantity(
        key, name, float(spectrum.eigenvalues[index]), float(spectrum.residuals[index]),
        how or f"{spectrum.method}, {spectrum.matvecs} products",
        certainty if good else f"{certainty}; not converged to the tolerance",
    )  # fmt: skip


def pairs_table(spectrum: Spectrum) -> pd.DataFrame:
    """Return eigenvalues with their residuals, one a row."""
    return pd.DataFrame(
        {
            "index": np.arange(1, len(spectrum) + 1),
            "eigenvalue": as_array(spectrum.eigenvalues),
            "residual": as_array(spectrum.residuals),
            "converged": spectrum.converged.cpu().numpy(),
        }
    )


def shortened(spectrum: Spectrum) -> tuple[str, ...]:
    """Return the note that says which eigenpairs have not settled, if any."""
    late = int((~spectrum.converged).sum())
    return (f"{late} of {len(spectrum)} eigenpairs did not settle.",) if late else ()


def spectrum_chart(name: str, title: str, spectra: dict[str, Spectrum]) -> Chart:
    """Return eigenvalues against their index."""
    marks = []
    for label, spectrum in spectra.items():
        values = as_array(spectrum.eigenvalues)
        kept = values > 0
        index = np.arange(1, len(values) + 1)[kept]
        marks.append(Curve(index, values[kept], label if len(spectra) > 1 else "", "both"))
    return Chart(
        name, title, "index", "eigenvalue", tuple(marks), log_y=True, toggles=("x", "y"),
        caption="Positive eigenvalues, largest first; each lies within its residual (see the "
        "table) of an eigenvalue of the matrix.",
    )  # fmt: skip


def share_chart(shares: np.ndarray) -> Chart:
    """Return the shares of the trace against the number of directions."""
    return Chart(
        "trace-share", "Share of the trace in the leading directions", "directions",
        "share of the trace", (Curve(np.arange(1, len(shares) + 1), shares, style="both"),),
        toggles=("x",), caption="How many directions carry how much of the curvature.",
    )  # fmt: skip


def share_reading(shares: np.ndarray, matrix: str) -> str:
    """Say how much of the trace a fixed number of directions holds."""
    k = min(COUNTS[0], len(shares))
    leading = "leading direction holds" if k == 1 else f"{k} leading directions hold"
    return f"The {leading} {shares[k - 1]:.0%} of the {matrix} trace."

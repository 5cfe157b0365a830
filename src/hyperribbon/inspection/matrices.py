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
from hyperribbon.spectra import eigsh, trace

__all__ = [
    "affordable_pairs",
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


def affordable_pairs(k: int, products: int, dimension: int) -> int:
    """Return how many eigenpairs a number of products pays for, at 3 products a pair."""
    return max(1, min(k, (products - 12) // 3, dimension))


def measure_matrix(operator: Any, k: int, notebook: Notebook, products: int) -> Measured:
    """Return the leading eigenpairs and the trace of a positive semidefinite operator.

    Args:
        operator: The matrix.
        k: Pairs wanted; fewer are measured when the products do not suffice.
        notebook: The request; its clock bounds the time.
        products: Products that may be spent.
    """
    dimension = operator.shape[0]
    k = min(affordable_pairs(k, products, dimension), notebook.most_pairs(operator))
    spectrum = eigsh(
        operator, k, seed=notebook.seed, max_matvecs=max(products, k + 2),
        max_seconds=notebook.clock.share_left, memory=notebook.solver_memory,
    )  # fmt: skip
    whole = trace(
        operator, precision=0.02, seed=notebook.seed, max_matvecs=max(products // 2, 20),
        memory=notebook.solver_memory,
    )  # fmt: skip
    return Measured(spectrum, whole, dimension)


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
    low, high = _rank_bounds(values, whole.value, found.dimension)
    squares = float((values**2).sum())
    method = how_traced(whole)
    certainty = "exact trace, eigenvalues to their residuals"
    return [
        eigenpair(f"{key}.largest", f"Largest eigenvalue of the {name}", found.spectrum, 0, how),
        from_estimate(f"{key}.trace", f"Trace of the {name}", whole, how or method),
        Quantity(f"{key}.trace_ratio", f"Share of its trace in {len(values)} directions",
                 float(shares[-1]), whole.stderr / abs(whole.value) if whole.value else 0.0,
                 "leading eigenvalues over trace",
                 certainty if whole.exact else "standard error of the trace"),
        Quantity(f"{key}.effective_rank", f"Effective rank of the {name}", low, 0.0,
                 "exp of the entropy of eigenvalues over their sum",
                 f"between {low:.4g} and {high:.4g}: the tail is not resolved"),
        exact(f"{key}.participation", "Participation ratio (at least)",
              whole.value**2 / (squares + max(whole.value - values.sum(), 0.0) * float(values[-1]))
              if whole.value else 0.0, "(tr A)² / tr A²"),
    ]  # fmt: skip


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


def shortened(spectrum: Spectrum, wanted: int) -> tuple[str, ...]:
    """Return the note that says what the budget cut short, if it did."""
    notes = []
    if len(spectrum) < wanted:
        notes.append(f"{len(spectrum)} of {wanted} eigenpairs fit in the budget.")
    late = int((~spectrum.converged).sum())
    if late:
        share = "within the step's share of the budget"
        notes.append(f"{late} of {len(spectrum)} eigenpairs did not converge {share}.")
    return tuple(notes)


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
    """Say how few directions hold most of the trace."""
    for threshold in (0.8, 0.5):
        enough = np.flatnonzero(shares >= threshold)
        if len(enough):
            number = int(enough[0]) + 1
            noun = "direction holds" if number == 1 else "directions hold"
            return f"{number} {noun} {shares[number - 1]:.0%} of the {matrix} trace."
    k = len(shares)
    leading = "leading direction holds" if k == 1 else f"{k} leading directions hold"
    return f"The {leading} {shares[-1]:.0%} of the {matrix} trace."


def _rank_bounds(values: np.ndarray, total: float, dimension: int) -> tuple[float, float]:
    """Return bounds of exp(entropy) of a spectrum whose tail is known by its sum alone."""
    shares = np.clip(values, 1e-300, None) / total
    known = -(shares * np.log(shares)).sum()
    tail, rest = max(1 - shares.sum(), 0.0), dimension - len(values)
    if tail < 1e-12 or rest == 0:
        return float(np.exp(known)), float(np.exp(known))
    low = known - tail * np.log(shares[-1])
    high = known - tail * np.log(tail / rest)
    return float(np.exp(min(low, high))), float(np.exp(high))

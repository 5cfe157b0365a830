"""Curvature: leading eigenvalues of Hessian and Gauss-Newton matrix, trace, density."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from hyperribbon.core.results import Spectrum
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity, exact, from_estimate
from hyperribbon.inspection.subject import Subject
from hyperribbon.plots import Chart, Curve
from hyperribbon.spectra import alignment, density, eigsh, summarize, trace

__all__ = [
    "affordable_pairs",
    "density_part",
    "gauss_newton_part",
    "hessian_part",
    "trace_part",
]

_SMALLEST = 3
_GROUPS = 8


def affordable_pairs(k: int, products: int, dimension: int) -> int:
    """Return how many eigenpairs a number of products pays for, at 3 products a pair."""
    return max(1, min(k, (products - 12) // 3, dimension))


def hessian_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure the two ends of the Hessian's spectrum."""
    hessian = subject.hessian
    low_share = products // 4
    k = affordable_pairs(notebook.k, products - low_share, subject.dimension)
    top = eigsh(hessian, k, seed=notebook.seed, max_matvecs=max(products - low_share, k + 2))
    notebook.spectra["hessian"] = top
    count = min(_SMALLEST, subject.dimension)
    bottom = eigsh(
        hessian, count, "SA", tol=1e-3, seed=notebook.seed, eigenvectors=False,
        max_matvecs=max(low_share, 2 * count + 20),
    )  # fmt: skip
    largest = _pair("hessian.largest", "Largest eigenvalue of the Hessian", top, 0)
    spread = _sampling_error(subject, top, notebook.seed)
    if spread is not None:
        certainty = (
            "standard error over samples; on these samples an eigenvalue lies within "
            f"{largest.error:.1g}"
        )
        largest = replace(largest, error=spread, certainty=certainty)
    smallest = _pair("hessian.smallest", "Smallest eigenvalue of the Hessian", bottom, -1)
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
    values = _array(top.eigenvalues)
    return Part(
        "hessian", "Hessian", "Curvature", quantities, (reading,),
        charts=(_spectrum_chart("hessian-spectrum", "Leading Hessian eigenvalues", {"H": top}),),
        arrays={"eigenvalues": values, "residuals": _array(top.residuals),
                "smallest": _array(bottom.eigenvalues)},
        tables={"Leading eigenvalues of the Hessian": _pairs_table(top)},
        notes=() if k == notebook.k else (f"{k} of {notebook.k} eigenpairs fit in the budget.",),
    )  # fmt: skip


def gauss_newton_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure the Gauss-Newton matrix (the Fisher information of a likelihood) and its trace."""
    ggn = subject.ggn
    k = affordable_pairs(notebook.k, products, subject.dimension)
    spectrum = eigsh(ggn, k, seed=notebook.seed, max_matvecs=max(products, k + 2))
    notebook.spectra["gauss_newton"] = spectrum
    whole = trace(ggn, precision=0.02, seed=notebook.seed, max_matvecs=max(products // 2, 20))
    values = _array(spectrum.eigenvalues)
    summary = summarize(values, whole)
    shares = np.cumsum(values) / whole.value if whole.value else np.full(k, np.nan)
    low, high = _rank_bounds(values, whole.value, subject.dimension)
    how = "one pass over the samples" if whole.exact else f"XTrace, {whole.matvecs} products"
    quantities = [
        _pair("gauss_newton.largest", "Largest eigenvalue of the Gauss-Newton matrix", spectrum, 0),
        from_estimate("gauss_newton.trace", "Trace of the Gauss-Newton matrix", whole, how),
        Quantity("gauss_newton.trace_ratio", f"Share of the trace in {k} directions",
                 float(shares[-1]), whole.stderr / abs(whole.value) if whole.value else 0.0,
                 "leading eigenvalues over trace", _ratio_certainty(whole.exact)),
        Quantity("gauss_newton.effective_rank", "Effective rank", low, 0.0,
                 "exp of the entropy of eigenvalues over their sum",
                 f"between {low:.4g} and {high:.4g}: the tail is not resolved"),
        exact("gauss_newton.participation", "Participation ratio (at least)",
              summary.trace**2 / _squares(values, summary.trace)[1], "(tr G)² / tr G²"),
    ]  # fmt: skip
    matrix, note = _fisher(subject)
    readings = [_share_reading(shares, k, matrix)]
    if "hessian" in notebook.spectra:
        common = min(k, len(notebook.spectra["hessian"]), 10)
        overlap = _overlap(notebook.spectra["hessian"], spectrum, common)
        quantities.append(
            exact("gauss_newton.alignment",
                  f"Overlap of the {common} sharpest directions with the Hessian's", overlap,
                  "mean squared cosine of principal angles")
        )  # fmt: skip
    shown = {"Gauss-Newton": spectrum}
    if "hessian" in notebook.spectra:
        shown["Hessian"] = notebook.spectra["hessian"]
    charts = (
        _spectrum_chart("spectrum", "Leading eigenvalues", shown),
        Chart("trace-share", "Share of the trace in the leading directions", "directions",
              "share of the trace", (Curve(np.arange(1, k + 1), shares, style="both"),),
              toggles=("x",),
              caption="How many directions carry how much of the curvature."),
    )  # fmt: skip
    return Part(
        "gauss_newton", "Gauss-Newton matrix", "Curvature", tuple(quantities), tuple(readings),
        charts=charts, arrays={"eigenvalues": values, "residuals": _array(spectrum.residuals)},
        tables={"Leading eigenvalues of the Gauss-Newton matrix": _pairs_table(spectrum)},
        notes=(note,),
    )  # fmt: skip


def trace_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Estimate the trace of the Hessian."""
    whole = trace(
        subject.hessian, precision=0.02, seed=notebook.seed, max_matvecs=max(products, 16)
    )
    quantity = from_estimate(
        "hessian.trace", "Trace of the Hessian", whole, f"XTrace, {whole.matvecs} products"
    )
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
    found = density(subject.hessian, probes=probes, steps=steps, seed=notebook.seed)
    grid, values = _array(found.grid), _array(found.values)
    floor = 1e-9 * values.max()
    low, high = (np.maximum(_array(edge), floor) for edge in (found.low, found.high))
    bulk = float(np.trapezoid(np.where(np.abs(grid) < 3 * found.width, values, 0), grid))
    chart = Chart(
        "density", "Density of Hessian eigenvalues", "eigenvalue", "density",
        (Curve(grid, np.maximum(values, floor), low=low, high=high),), log_y=True, toggles=("y",),
        caption=f"Stochastic Lanczos quadrature, {probes} probes of {steps} steps, smoothed with a "
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
    values = np.array([float(v @ (g.hessian @ v)) for g in subject.groups(_GROUPS, seed)])
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) else None


def _pair(key: str, name: str, spectrum: Spectrum, index: int) -> Quantity:
    good = bool(spectrum.converged[index])
    certainty = "an eigenvalue lies within the residual"
    return Quantity(
        key, name, float(spectrum.eigenvalues[index]), float(spectrum.residuals[index]),
        f"{spectrum.method}, {spectrum.matvecs} products",
        certainty if good else f"{certainty}; not converged to the tolerance",
    )  # fmt: skip


def _pairs_table(spectrum: Spectrum) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "index": np.arange(1, len(spectrum) + 1),
            "eigenvalue": _array(spectrum.eigenvalues),
            "residual": _array(spectrum.residuals),
            "converged": spectrum.converged.cpu().numpy(),
        }
    )


def _spectrum_chart(name: str, title: str, spectra: dict[str, Spectrum]) -> Chart:
    marks = []
    for label, spectrum in spectra.items():
        values = _array(spectrum.eigenvalues)
        kept = values > 0
        index = np.arange(1, len(values) + 1)[kept]
        marks.append(Curve(index, values[kept], label if len(spectra) > 1 else "", "both"))
    return Chart(
        name, title, "index", "eigenvalue", tuple(marks), log_y=True, toggles=("x", "y"),
        caption="Positive eigenvalues, largest first; each lies within its residual (see the "
        "table) of an eigenvalue of the matrix.",
    )  # fmt: skip


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


def _squares(values: np.ndarray, total: float) -> tuple[float, float]:
    """Return bounds of tr A² from leading eigenvalues and the trace."""
    known = float((values**2).sum())
    return known, known + max(total - values.sum(), 0.0) * float(values[-1])


def _share_reading(shares: np.ndarray, k: int, matrix: str) -> str:
    for threshold in (0.8, 0.5):
        enough = np.flatnonzero(shares >= threshold)
        if len(enough):
            number = int(enough[0]) + 1
            noun = "direction holds" if number == 1 else "directions hold"
            return f"{number} {noun} {shares[number - 1]:.0%} of the {matrix} trace."
    leading = "leading direction holds" if k == 1 else f"{k} leading directions hold"
    return f"The {leading} {shares[-1]:.0%} of the {matrix} trace."


def _ratio_certainty(is_exact: bool) -> str:
    return (
        "exact trace, eigenvalues to their residuals" if is_exact else "standard error of the trace"
    )


def _overlap(first: Spectrum, second: Spectrum, k: int) -> float:
    assert first.eigenvectors is not None
    assert second.eigenvectors is not None
    return alignment(first.eigenvectors[:, :k], second.eigenvectors[:, :k]).overlap


def _fisher(subject: Subject) -> tuple[str, str]:
    """Return what to call the Gauss-Newton matrix of the loss, and why."""
    loss = subject.hessian.risk.loss
    kind = type(loss).__name__
    if kind == "CrossEntropy" and subject.hessian.risk.amount == subject.samples:
        return "Fisher", "For cross-entropy this matrix is the Fisher information of the model."
    if kind == "SquaredError":
        return "Fisher", (
            "For squared error this matrix is, but for a constant factor, the Fisher information "
            "of a Gaussian around the outputs."
        )
    return "Gauss-Newton", "For this loss the matrix is not known to be a Fisher information."


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()

"""Gradient noise: its size, its directions against the curvature, and detailed balance."""

from __future__ import annotations

import numpy as np

from hyperribbon.core.results import Spectrum
from hyperribbon.inspection.matrices import how_traced, measure_matrix, shortened
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity, exact, from_estimate
from hyperribbon.inspection.sampling import noise_scale_error
from hyperribbon.inspection.subject import Subject
from hyperribbon.noise import detailed_balance_defect, proportionality
from hyperribbon.plots import Chart, Curve
from hyperribbon.spectra import alignment

__all__ = ["noise_part"]

_COMPARED = 10
"""Directions that statistics speak of, whatever the budget."""


def noise_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure the covariance of single-sample gradients and lay it beside the Hessian."""
    covariance = subject.covariance
    found = measure_matrix(covariance, min(notebook.k, _COMPARED), notebook)
    spectrum, whole, k = found.spectrum, found.trace, len(found.spectrum)
    spectrum = notebook.keep("noise", spectrum)
    square = float(subject.gradient.double() @ subject.gradient.double())
    scale = whole.value / square if square > 0 else float("inf")
    how = how_traced(whole)
    quantities = [
        from_estimate("noise.trace", "Trace of the gradient covariance", whole, how),
        exact("noise.gradient", "Norm of the mean gradient", square**0.5, "one pass"),
        Quantity("noise.scale", "Noise scale tr C / ‖∇L‖²", scale,
                 noise_scale_error(scale, subject, notebook.seed), "trace over squared gradient",
                 "standard error over samples; grows without bound towards a minimum",
                 subject.samples),
        exact("noise.share", f"Share of the noise in {k} directions",
              float(spectrum.eigenvalues.double().sum()) / whole.value if whole.value else 0.0,
              f"{spectrum.method}, {spectrum.matvecs} products"),
    ]  # fmt: skip
    readings = []
    charts = []
    values = spectrum.eigenvalues.double().cpu().numpy()
    marks = [Curve(np.arange(1, k + 1), np.maximum(values, 1e-300), "gradient noise", "both")]
    hessian = notebook.spectra.get("hessian")
    if hessian is not None and hessian.eigenvectors is not None:
        positive = int((hessian.eigenvalues > 0).sum())
        common = min(_COMPARED, positive, hessian.eigenvectors.shape[1])
        found, readings_more, projected = _against_curvature(subject, spectrum, hessian, common)
        quantities += found
        readings += readings_more
        curvature = hessian.eigenvalues[:common].double().cpu().numpy()
        marks.append(Curve(np.arange(1, common + 1), curvature, "Hessian", "both"))
        charts.append(_scatter(curvature, np.diag(projected)))
    charts.insert(
        0,
        Chart("noise-spectrum", "Eigenvalues of the gradient noise", "index", "eigenvalue",
              tuple(marks), log_y=True, toggles=("x", "y"),
              caption="Covariance of single-sample gradients; a minibatch of S samples has 1/S."),
    )  # fmt: skip
    return Part(
        "noise", "Gradient noise", "Noise", tuple(quantities), tuple(readings), tuple(charts),
        arrays={"eigenvalues": values},
        notes=("Detailed balance and alignment speak of the subspace of the leading Hessian "
               "eigenvectors.",),
        shortened=shortened(spectrum),
    )  # fmt: skip


def _against_curvature(
    subject: Subject, spectrum: Spectrum, hessian: Spectrum, common: int
) -> tuple[list[Quantity], list[str], np.ndarray]:
    assert hessian.eigenvectors is not None
    assert spectrum.eigenvectors is not None
    V = hessian.eigenvectors[:, :common]
    projected = (V.T @ (subject.covariance @ V)).double().cpu().numpy()
    curvature = hessian.eigenvalues[:common].double().cpu().numpy()
    defect = detailed_balance_defect(np.diag(curvature), projected)
    factor, unlike = proportionality(np.diag(curvature), projected)
    directions = min(10, common, len(spectrum))
    angles = alignment(V[:, :directions], spectrum.eigenvectors[:, :directions])
    diagonal = np.maximum(np.diag(projected), 1e-300)
    quantities = [
        exact("noise.alignment", f"Overlap of the {directions} noisiest and sharpest directions",
              angles.overlap, f"mean squared cosine; {angles.chance:.1g} by chance"),
        exact("noise.balance_defect", "Detailed-balance defect ‖Q‖/‖C‖", defect,
              f"projected on {common} leading Hessian eigenvectors"),
        exact("noise.proportionality", "Part of the noise that is not proportional to the Hessian",
              unlike, f"‖C − αH‖/‖C‖ there, α = {factor:.3g}"),
    ]  # fmt: skip
    readings = [
        f"The noisiest and the sharpest directions overlap by {angles.overlap:.0%} "
        f"({angles.chance:.1g} by chance)."
    ]
    if common >= 6:
        exponent, error = _power(curvature, diagonal)
        quantities.append(
            Quantity("noise.exponent", "Exponent of noise against curvature", exponent, error,
                     f"line through logarithms, {common} directions", "standard error of the fit")
        )  # fmt: skip
        readings.append(
            f"Noise grows with curvature as the power {exponent:.2f} ± {error:.2f} "
            "(1 where noise is proportional to the Hessian)."
        )
    return quantities, readings, projected


def _power(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    coefficients, covariance = np.polyfit(np.log(x), np.log(y), 1, cov=True)
    return float(coefficients[0]), float(np.sqrt(covariance[0, 0]))


def _scatter(curvature: np.ndarray, noise: np.ndarray) -> Chart:
    noise = np.maximum(noise, 1e-300)
    scale = float(np.exp(np.mean(np.log(noise / curvature))))
    ordered = np.sort(curvature)
    return Chart(
        "noise-against-curvature", "Noise against curvature", "Hessian eigenvalue",
        "variance of the gradient along its eigenvector",
        (Curve(curvature, noise, "measured", "points"),
         Curve(ordered, scale * ordered, "proportional", dashed=True)),
        log_x=True, log_y=True, toggles=("x", "y"),
    )  # fmt: skip

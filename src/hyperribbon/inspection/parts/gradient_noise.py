"""Gradient noise: its size, its directions against the curvature, and detailed balance."""

from __future__ import annotations

import numpy as np

from hyperribbon.core.results import Spectrum
from hyperribbon.inspection.engine.notebook import Notebook
from hyperribbon.inspection.engine.planning import Step
from hyperribbon.inspection.engine.quantities import Part, Sheet, as_array, from_estimate
from hyperribbon.inspection.engine.sampling import (
    noise_scale_error,
    scale_certainty,
    squared_length,
)
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.inspection.parts.matrices import (
    how_found,
    how_traced,
    measure_matrix,
    shortened,
    spectral_chart,
)
from hyperribbon.noise import detailed_balance_defect, proportionality
from hyperribbon.plots import Chart, Curve
from hyperribbon.spectra import alignment

__all__ = ["STEP", "noise_part"]

_COMPARED = 10
"""Directions that statistics speak of, whatever the budget."""
_FEWEST = 64
"""Samples: the gradients of n span n − 1 directions, which hold all of their noise."""


def noise_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure the covariance of single-sample gradients and lay it beside the Hessian."""
    found = measure_matrix(subject.covariance, min(notebook.k, _COMPARED), notebook)
    whole, k = found.trace, len(found.spectrum)
    spectrum = notebook.keep("noise", found.spectrum)
    values = as_array(spectrum.eigenvalues)
    square = squared_length(subject.gradient)
    scale = whole.value / square if square > 0 else float("inf")
    error = noise_scale_error(scale, subject, notebook.seed)
    share = float(spectrum.eigenvalues.double().sum()) / whole.value if whole.value else 0.0
    sheet = Sheet("noise", "Gradient noise", "Noise")
    trace = from_estimate(
        "noise.trace", "Trace of the gradient covariance", whole, how_traced(whole)
    )
    sheet.quantities.append(trace)
    sheet.exact("noise.gradient", "Norm of the mean gradient", square**0.5, "one pass")
    certainty = scale_certainty(scale, subject.samples)
    how = ("trace over squared gradient", certainty, subject.samples)
    sheet.number("noise.scale", "Noise scale tr C / ‖∇L‖²", scale, error, *how)
    sheet.exact("noise.share", f"Share of the noise in {k} directions", share, how_found(spectrum))
    marks = [Curve(np.arange(1, k + 1), np.maximum(values, 1e-300), "gradient noise", "both")]
    hessian = notebook.spectra.get("hessian")
    wanted = min(_COMPARED, notebook.k, subject.dimension)
    known = 0 if hessian is None or hessian.eigenvectors is None else hessian.eigenvectors.shape[1]
    positive = 0 if hessian is None else int((hessian.eigenvalues > 0).sum())
    if known < wanted:
        late = (
            f"Noise against curvature needs {wanted} directions of the Hessian; {known} are known."
        )
        sheet.shortened.append(late)
    elif positive:
        assert hessian is not None
        assert hessian.eigenvectors is not None
        common = min(_COMPARED, positive, hessian.eigenvectors.shape[1])
        curvature = as_array(hessian.eigenvalues[:common])
        marks.append(Curve(np.arange(1, common + 1), curvature, "Hessian", "both"))
        sheet.charts.append(_against_curvature(subject, spectrum, hessian, curvature, sheet))
    title = "Eigenvalues of the gradient noise"
    caption = "Covariance of single-sample gradients; a minibatch of S samples has 1/S."
    shown = spectral_chart("noise-spectrum", title, marks, caption)
    sheet.charts.insert(0, shown)
    sheet.arrays["eigenvalues"] = values
    sheet.notes.append(
        "Detailed balance and alignment speak of the subspace of the leading Hessian eigenvectors."
    )
    sheet.shortened += shortened(spectrum)
    return sheet.part()


def _against_curvature(
    subject: Subject, spectrum: Spectrum, hessian: Spectrum, curvature: np.ndarray, sheet: Sheet
) -> Chart:
    """Add what the noise is along the sharpest directions, and return the chart of it."""
    assert hessian.eigenvectors is not None
    assert spectrum.eigenvectors is not None
    common = len(curvature)
    V = hessian.eigenvectors[:, :common]
    projected = as_array(V.T @ (subject.covariance @ V))
    defect = detailed_balance_defect(np.diag(curvature), projected)
    factor, unlike = proportionality(np.diag(curvature), projected)
    k = min(10, common, len(spectrum))
    angles = alignment(V[:, :k], spectrum.eigenvectors[:, :k])
    noise = np.maximum(np.diag(projected), 1e-300)
    name = f"Overlap of the {k} noisiest and sharpest directions"
    how = f"mean squared cosine; {angles.chance:.1g} by chance"
    sheet.exact("noise.alignment", name, angles.overlap, how)
    how = f"projected on {common} leading Hessian eigenvectors"
    sheet.exact("noise.balance_defect", "Detailed-balance defect ‖Q‖/‖C‖", defect, how)
    name = "Part of the noise that is not proportional to the Hessian"
    sheet.exact("noise.proportionality", name, unlike, f"‖C − αH‖/‖C‖ there, α = {factor:.3g}")
    sheet.readings.append(
        f"The noisiest and the sharpest directions overlap by {angles.overlap:.0%} "
        f"({angles.chance:.1g} by chance)."
    )
    if common >= 6:
        power, error = _power(curvature, noise)
        how = f"line through logarithms, {common} directions", "standard error of the fit"
        name = "Exponent of noise against curvature"
        sheet.number("noise.exponent", name, power, error, *how)
        sheet.readings.append(
            f"Noise grows with curvature as the power {power:.2f} ± {error:.2f} "
            "(1 where noise is proportional to the Hessian)."
        )
    return _scatter(curvature, noise)


def _power(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    coefficients, covariance = np.polyfit(np.log(x), np.log(y), 1, cov=True)
    return float(coefficients[0]), float(np.sqrt(covariance[0, 0]))


def _scatter(curvature: np.ndarray, noise: np.ndarray) -> Chart:
    scale = float(np.exp(np.mean(np.log(noise / curvature))))
    ordered = np.sort(curvature)
    measured = Curve(curvature, noise, "measured", "points")
    line = Curve(ordered, scale * ordered, "proportional", dashed=True)
    axes = "Hessian eigenvalue", "variance of the gradient along its eigenvector"
    named = "noise-against-curvature", "Noise against curvature"
    return Chart(*named, *axes, (measured, line), log_x=True, log_y=True, toggles=("x", "y"))


STEP = Step(
    "noise",
    "Gradient noise",
    order=20,
    run=noise_part,
    wish=lambda s, n: 4 * min(n.k, _COMPARED) + 25,
    is_fixed=True,
    fewest=_FEWEST,
)

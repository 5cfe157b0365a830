"""Gradient noise and the Fisher information, beside the curvature."""

from __future__ import annotations

import numpy as np
import torch

from hyperribbon.application.inspection.engine.clock import DeclinedError
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.evaluating import class_axis
from hyperribbon.application.inspection.parts.matrices import (
    COUNTS,
    how_found,
    how_traced,
    matrix_quantities,
    measure_matrix,
    pairs_arrays,
    pairs_table,
    share_chart,
    share_reading,
    spectral_chart,
    unconverged_note,
)
from hyperribbon.application.inspection.quantities import (
    Part,
    as_array,
    from_estimate,
)
from hyperribbon.application.inspection.sampling import (
    noise_scale_error,
    scale_certainty,
    squared_length,
)
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.spectral_results import Spectrum
from hyperribbon.noise import detailed_balance_defect, proportionality
from hyperribbon.operators.risk import Risk
from hyperribbon.operators.risk.likelihoods import Categorical, Gaussian
from hyperribbon.plots import Chart, Curve
from hyperribbon.spectra import alignment

_MODELS = {
    "categorical": "classes drawn from the softmax of the outputs",
    "gaussian": "unit Gaussian noise around the outputs",
    "bernoulli": "independent coins of probability sigmoid(output)",
}
_EQUAL = 1e-3
"""Relative difference at which two curvatures in single precision count as proportional."""


def fisher_part(level: Level, notebook: Notebook) -> Part:
    """Report the Fisher information of the outputs, as part of the gradient noise.

    Where the loss is minus its log-likelihood, F is a known multiple of the Gauss-Newton matrix and
    is read off it; else it is measured by products with F itself.
    """
    subject, measured = level.subject, notebook.gauss_newton
    known = gauss_newton_factor(subject)
    how = ""
    if known is not None and measured is not None:
        likelihood, factor = known
        found = measured.scaled(factor)
        times = "" if abs(factor - 1) < _EQUAL else f"{factor:.4g} times "
        how = f"{times}the Gauss-Newton matrix, which it is for this loss"
        note = f"Fisher information of {_MODELS[likelihood]}: {how}."
    else:
        axis = class_axis(subject)
        if axis not in (None, 1):
            reason = "it takes class scores (n, C, …), and those of this loss are on the last axis"
            remedy = "Move the axis in forward=, and give the loss of such outputs."
            raise DeclinedError("loss", subject.loss, reason, remedy)
        likelihood = "gaussian" if axis is None else "categorical"
        found = measure_matrix(subject.fisher(likelihood), min(notebook.k, COUNTS[-1]), notebook)
        other = "the Gauss-Newton matrix of this loss is another matrix"
        note = f"Fisher information of {_MODELS[likelihood]}; {other}."
    part = Part("fisher", "Fisher information", notes=[note])
    part.quantities += matrix_quantities("fisher", "Fisher information", found, how)
    part.readings.append(share_reading(found.shares, "Fisher"))
    part.charts.append(share_chart(found.shares))
    part.arrays |= pairs_arrays(found.spectrum)
    if not how:
        part.tables["Leading eigenvalues of the Fisher information"] = pairs_table(found.spectrum)
        part.shortened += unconverged_note(found.spectrum)
    return part


def gauss_newton_factor(subject: Subject) -> tuple[str, float] | None:
    """Return for the gradient noise the likelihood whose Fisher information is G times a factor.

    The loss's curvature in the outputs is compared with that of three likelihoods, sample by
    sample along a random direction. With one ratio c = I(f)u / ∂²ℓ u throughout, F = c·(a/N)·G for
    a loss that divides by a (the samples, the elements, or one).
    """
    risk = subject.hessian.risk
    axis = class_axis(subject)
    likelihoods = ["bernoulli", "gaussian"] if axis is None else ["categorical"]
    for likelihood in likelihoods:
        with subject.processes.together("a comparison of curvatures"):
            own = _ratios(risk, likelihood, axis or 1)
        found = subject.processes.gather(own)
        ratios = [ratio for share in found for ratio in share or ()]
        if None not in found and max(ratios) - min(ratios) <= _EQUAL * max(ratios):
            return likelihood, ratios[0] * risk.amount / risk.samples
    return None


def _ratios(risk: Risk, likelihood: str, axis: int) -> list[float] | None:
    """Return the ratio of Fisher (gradient noise) to Gauss-Newton matrix, chunk by chunk."""
    ratios = []
    for chunk in risk.chunks():
        outputs = chunk.point.outputs
        generator = torch_generator(0, "fisher", chunk.start)
        u = torch.randn(1, *outputs.shape, generator=generator, dtype=outputs.dtype, device="cpu")
        u = u.to(outputs.device)
        curved = risk.criterion.curvature(outputs, chunk.targets, u)
        if axis > 1:  # likelihoods have the class axis second
            outputs = outputs.movedim(axis, 1)
            u, curved = (block.movedim(axis + 1, 2) for block in (u, curved))
        information = _information(likelihood, outputs, chunk.inputs, u)
        size = float(information.abs().max())
        ratio = float((information * curved).sum() / (curved * curved).sum())
        if not float((information - ratio * curved).abs().max()) <= _EQUAL * size:
            return None
        ratios.append(ratio)
    return ratios


def _information(likelihood: str, outputs: torch.Tensor, inputs: object, u: torch.Tensor):
    if likelihood == "bernoulli":
        return torch.sigmoid(outputs) * torch.sigmoid(-outputs) * u
    model = Categorical() if likelihood == "categorical" else Gaussian(1.0, "model")
    return model.information(outputs, inputs, u)


def _products(level: Level, notebook: Notebook) -> float:
    return 5 if notebook.gauss_newton is not None else 3 * min(notebook.k, COUNTS[-1]) + 30


_COMPARED = 10
"""Directions that statistics speak of, whatever the budget."""
_FEWEST = 64
"""Samples: the gradients of n span n − 1 directions, which hold all of their noise; those of C
outputs each span n·C, which hold all of the Fisher trace."""


def noise_part(level: Level, notebook: Notebook) -> Part:
    """Gradient-noise part: measure single-sample gradients' covariance beside the Hessian."""
    subject = level.subject
    found = measure_matrix(subject.covariance, min(notebook.k, _COMPARED), notebook)
    whole, k = found.trace, len(found.spectrum)
    spectrum = notebook.trim(found.spectrum)
    values = as_array(spectrum.eigenvalues)
    square = squared_length(subject.gradient)
    scale = whole.value / square if square > 0 else float("inf")
    error = noise_scale_error(scale, subject, notebook.seed)
    share = float(spectrum.eigenvalues.double().sum()) / whole.value if whole.value else 0.0
    part = Part("noise", "Gradient noise", "Noise")
    trace = from_estimate(
        "noise.trace", "Trace of the gradient covariance", whole, how_traced(whole)
    )
    part.quantities.append(trace)
    part.exact("noise.gradient", "Norm of the mean gradient", square**0.5, "one pass")
    certainty = scale_certainty(scale, subject.samples)
    how = ("trace over squared gradient", certainty, subject.samples)
    part.number("noise.scale", "Noise scale tr C / ‖∇L‖²", scale, error, *how)
    part.exact("noise.share", f"Share of the noise in {k} directions", share, how_found(spectrum))
    marks = [Curve(np.arange(1, k + 1), np.maximum(values, 1e-300), "gradient noise", "both")]
    hessian = notebook.hessian
    wanted = min(_COMPARED, notebook.k, subject.dimension)
    known = 0 if hessian is None or hessian.eigenvectors is None else hessian.eigenvectors.shape[1]
    positive = 0 if hessian is None else int((hessian.eigenvalues > 0).sum())
    if known < wanted:
        computed = f"{known} {'was' if known == 1 else 'were'} computed"
        late = f"Comparing it with curvature needs {wanted} eigenvectors; {computed}."
        part.shortened.append(late)
    elif positive:
        assert hessian is not None
        assert hessian.eigenvectors is not None
        common = min(_COMPARED, positive, hessian.eigenvectors.shape[1])
        curvature = as_array(hessian.eigenvalues[:common])
        marks.append(Curve(np.arange(1, common + 1), curvature, "Hessian", "both"))
        part.charts.append(_against_curvature(subject, spectrum, hessian, curvature, part))
    title = "Eigenvalues of the gradient noise"
    caption = "Covariance of single-sample gradients; a minibatch of S samples has 1/S."
    shown = spectral_chart("noise-spectrum", title, marks, caption)
    part.charts.insert(0, shown)
    part.arrays["eigenvalues"] = values
    part.notes.append(
        "Detailed balance and alignment speak of the subspace of the leading Hessian eigenvectors."
    )
    part.shortened += unconverged_note(spectrum)
    return part


def _against_curvature(
    subject: Subject, spectrum: Spectrum, hessian: Spectrum, curvature: np.ndarray, part: Part
) -> Chart:
    """Add the gradient noise along the sharpest directions, and return its chart."""
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
    part.exact("noise.alignment", name, angles.overlap, how)
    how = f"projected on {common} leading Hessian eigenvectors"
    part.exact("noise.balance_defect", "Detailed-balance defect ‖Q‖/‖C‖", defect, how)
    name = "Part of the noise that is not proportional to the Hessian"
    part.exact("noise.proportionality", name, unlike, f"‖C − αH‖/‖C‖ there, α = {factor:.3g}")
    part.readings.append(
        f"The noisiest and the sharpest directions overlap by {angles.overlap:.0%} "
        f"({angles.chance:.1g} by chance)."
    )
    if common >= 6:
        power, error = _power(curvature, noise)
        how = f"line through logarithms, {common} directions", "standard error of the fit"
        name = "Exponent of noise against curvature"
        part.number("noise.exponent", name, power, error, *how)
        part.readings.append(
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


MEASUREMENTS = (
    Measurement(
        "noise",
        "Gradient noise",
        order=20,
        run=noise_part,
        products=lambda level, n: 4 * min(n.k, _COMPARED) + 25,
        fewest=_FEWEST,
    ),
    Measurement(
        "fisher",
        "Fisher information",
        order=40,
        run=fisher_part,
        products=_products,
        fewest=_FEWEST,
    ),
)

"""Theory beside the measurement: where it applies, and the assumption that breaks where not."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.linear.chains import find_layers
from hyperribbon.application.inspection.linear.theory import TheoryComparison, compare_with_theory
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.core.checks import ArgumentError

__all__ = ["MEASUREMENTS", "no_chain", "theory_bytes", "theory_part"]

_SAMPLES = 256
_PRECISION = 0.05
"""Relative standard error of the measured trace: that of a hundredth takes 400 products."""
_SQUARES = 6
"""Matrices of the size of the inputs' second moment that there are at once in its eigenproblem."""
_CHECKED = 16
"""Copies of all weights that the check of derivatives has at once, those in float64 twice."""
_COPIES = 6
"""Copies of the layers' weights: whitened ones, products with vectors, gradients."""


def no_chain(level: Level, notebook: Notebook) -> str:
    """Return why linear-network theory cannot be laid beside the model, or ""."""
    subject = level.subject
    if subject.mode != "eval":
        return "linear-network theory is compared in evaluation mode"
    batch = next(subject.risk.source.batches())
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        return "the data are not pairs (inputs, targets)"
    try:
        layers = find_layers(subject.model, subject.with_samples(16, notebook.seed).source)
    except ArgumentError as error:
        return f"linear-network theory needs a model that ends in linear layers: {error.reason}"
    owned = dict(subject.model.named_parameters())
    if any(f"{layer}.weight" not in owned for layer in layers):
        return "the weights of its last linear layers are computed from other parameters"
    weights = sum(tensor.nbytes for tensor in owned.values())
    needed, room = theory_bytes(layers.values(), weights), notebook.solver_memory
    if needed > room:
        widest = max(max(shape) for shape in layers.values())
        return (
            f"of the budget's memory it may take {room / 1e6:.0f} MB, and copies of the model and "
            f"matrices of up to {widest:,} × {widest:,} entries take {needed / 1e6:.0f} MB"
        )
    return ""


def theory_bytes(shapes: Iterable[tuple[int, int]], weights: float = 0.0) -> float:
    """Return the bytes of the moments, their eigenvectors and copies of the weights, in float64.

    Args:
        shapes: Of the weights (outputs, inputs) of the layers, the first one first.
        weights: Bytes of all weights of the model, which is checked anew with another loss.
    """
    shapes = list(shapes)
    widths = sum(outputs**2 for outputs, _ in shapes)
    numbers = sum(outputs * inputs for outputs, inputs in shapes)
    return _CHECKED * weights + 8.0 * (
        _SQUARES * shapes[0][1] ** 2 + 2 * widths + _COPIES * numbers
    )


def theory_part(level: Level, notebook: Notebook) -> Part:
    """Compare the curvature with linear-network theory and list what other theories assume."""
    fewer = level.subject.of_given(_SAMPLES, notebook.seed, 0.25)
    options = {"precision": _PRECISION, "memory": fewer.memory, "clock": notebook.clock}
    comparison = compare_with_theory(fewer.model, fewer.source, seed=notebook.seed, **options)
    predicted, measured = comparison.predicted().sharpness, comparison.measured.sharpness
    broken = comparison.responsible()
    part = Part("theory", "Theory comparison", "Theory")
    how = f"Lanczos, {fewer.samples} samples, weights of the linear layers"
    part.exact("theory.measured", "Sharpness under half the squared loss", measured, how)
    name = "Sharpness that linear-network theory predicts"
    how = f"closed form from the weights, {comparison.depth} layers"
    part.exact("theory.predicted", name, predicted, how)
    cause = "no assumption is broken" if broken is None else f"mostly: {broken.name}"
    ratio = comparison.discrepancy(), 0.0, "from the two numbers above", cause
    part.number("theory.discrepancy", "Measured over predicted, minus one", *ratio)
    part.readings.append(_read(comparison))
    assumptions = comparison.assumptions_table().reset_index()
    part.tables["From the measurement to the theory"] = comparison.table().reset_index()
    part.tables["Assumptions of linear-network theory"] = assumptions
    others = _other_theories(notebook)
    if len(others):
        part.tables["Assumptions of the other theories"] = others
    part.notes.append(
        "The comparison is made for the squared loss on one-hot labels, whatever the model was "
        "trained with."
    )
    return part.on(fewer.samples)


def _read(comparison: TheoryComparison) -> str:
    broken = comparison.responsible()
    if broken is None:
        return "Linear-network theory predicts the sharpness of this model."
    return (
        f"The sharpness is {1 + comparison.discrepancy():.3g} times what linear-network theory "
        f"predicts; the assumption that breaks is “{broken.name}” ({broken.meaning} is "
        f"{broken.value:.2g})."
    )


def _other_theories(notebook: Notebook) -> pd.DataFrame:
    """Return assumptions of the fluctuation and ribbon theories with the numbers that test them."""
    found = {q.key: q.value for part in notebook.parts.values() for q in part.quantities}
    rows = []

    def test(theory: str, assumption: str, holds: bool, evidence: str) -> None:
        rows.append((theory, assumption, holds, evidence))

    if (value := found.get("hessian.negativity")) is not None:
        evidence = f"smallest over largest eigenvalue {value:.2g}"
        test("fluctuations", "a minimum: no negative curvature", value > -1e-3, evidence)
    if "noise.scale" in found and notebook.batch_size is not None:
        ratio = notebook.batch_size / found["noise.scale"]
        evidence = f"batch size over noise scale {ratio:.2g}"
        test("fluctuations", "noise, not slope, moves the weights", ratio < 0.1, evidence)
    if (value := found.get("noise.proportionality")) is not None:
        evidence = f"‖C − αH‖/‖C‖ = {value:.2g}"
        test("fluctuations", "noise proportional to the Hessian", value < 0.1, evidence)
    if (value := found.get("data.straightness")) is not None:
        evidence = f"R² of one line through ln λ: {value:.3f}"
        test("ribbons", "input eigenvalues fall exponentially", value > 0.98, evidence)
    return pd.DataFrame(rows, columns=["theory", "assumption", "holds", "evidence"])


MEASUREMENTS = (
    Measurement(
        "theory",
        "Theory comparison",
        order=130,
        run=theory_part,
        products=lambda level, n: 400,
        size=_SAMPLES,
        obstacle=no_chain,
    ),
)

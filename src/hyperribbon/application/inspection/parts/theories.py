"""Theory beside the measurement: where it applies, and the assumption that breaks where not."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from hyperribbon.application.inspection.engine.clock import DeclinedError
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.linear.theory import TheoryComparison, compare_risk
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators import Risk
from hyperribbon.prediction.linear_layers import find_layers

_PRECISION = 0.05
"""Relative standard error of the measured trace: that of a hundredth takes 400 products."""
_SQUARES = 6
"""Matrices of the size of the inputs' second moment that there are at once in its eigenproblem."""
_COPIES = 6
"""Copies of the layers' weights: whitened ones, products with vectors, gradients."""


def no_chain(level: Level, notebook: Notebook) -> str:
    """Return why the part on theories has no linear network to lay beside the model, or ""."""
    subject = level.subject
    if subject.mode != "eval":
        return "linear-network theory is compared in evaluation mode"
    if subject.processes.is_parallel:
        return "linear-network theory is compared on one process"
    if subject.risk.criterion.reduction == "whole":
        return "linear-network theory needs a loss that is a mean or a sum over samples"
    try:
        layers = find_layers(subject.risk)
    except ArgumentError as error:
        return f"linear-network theory needs a model that ends in linear layers: {error.reason}"
    samples = subject.given.total or level.samples
    needed, room = theory_bytes(layers.values(), samples), notebook.solver_memory
    if needed > room:
        widest = max(max(shape) for shape in layers.values())
        return (
            f"of the budget's memory it may take {room / 1e6:.0f} MB, and features of {samples:,} "
            f"samples and matrices of up to {widest:,} × {widest:,} take {needed / 1e6:.0f} MB"
        )
    return ""


def theory_bytes(shapes: Iterable[tuple[int, int]], samples: int = 0) -> float:
    """Return the memory that the part on theories takes: features, moments, weights.

    Args:
        shapes: Of the weights (outputs, inputs) of the layers, the first one first.
        samples: How many.
    """
    shapes = list(shapes)
    widths = sum(outputs**2 for outputs, _ in shapes)
    numbers = sum(outputs * inputs for outputs, inputs in shapes)
    features = 2 * samples * (shapes[0][1] + 4 * shapes[-1][0])
    return 8.0 * (_SQUARES * shapes[0][1] ** 2 + 2 * widths + _COPIES * numbers + features)


def theory_part(level: Level, notebook: Notebook) -> Part:
    """Part on theories: compare curvature with linear networks; list what others assume."""
    subject = level.subject
    options = {"precision": _PRECISION, "memory": subject.memory, "seed": notebook.seed}
    try:
        comparison = compare_risk(subject.risk, k=1, **options)
    except ArgumentError as error:
        raise DeclinedError(error.argument, error.value, error.reason, error.remedy) from error
    predicted, measured = comparison.predicted().sharpness, comparison.measured.sharpness
    broken = comparison.responsible()
    part = Part("theory", "Theory comparison", "Theory")
    is_whole = _covers(comparison, subject.risk)
    what = "all weights" if is_whole else f"the weights of {', '.join(comparison.chain.layers)}"
    part.exact("theory.measured", f"Sharpness in {what}", measured, "Lanczos, the same loss")
    name = "Sharpness that linear-network theory predicts"
    how = f"balanced minimum on these inputs, {comparison.depth} layers"
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
        f"Measured and predicted for the same loss on the same {level.samples:,} samples."
    )
    return part


def _covers(comparison: TheoryComparison, risk: Risk) -> bool:
    """Whether linear layers hold all coordinates of the risk, for the part on theories."""
    own = sum(int(mask.sum()) for mask in comparison.chain.augmented()[1])
    return own == risk.space.dimension


def _read(comparison: TheoryComparison) -> str:
    broken = comparison.responsible()
    if broken is None:
        return "Linear-network theory predicts the sharpness of this model."
    text = (
        f"The sharpness is {1 + comparison.discrepancy():.3g} times what linear-network theory "
        f"predicts; the assumption that breaks is “{broken.name}” ({broken.meaning} is "
        f"{broken.value:.2g})."
    )
    return text + " Effects of several assumptions cancel." if comparison.cancels() else text


def _other_theories(notebook: Notebook) -> pd.DataFrame:
    """Return the other theories' assumptions (fluctuations, ribbons) and numbers that test them."""
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
        products=lambda level, n: 60 if level.subject.risk.is_piecewise_linear else 160,
        obstacle=no_chain,
    ),
)

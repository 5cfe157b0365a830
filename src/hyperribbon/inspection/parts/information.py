"""The Fisher information: by name where the Gauss-Newton matrix is it, else measured itself."""

from __future__ import annotations

import torch

from hyperribbon.core.generators import torch_generator
from hyperribbon.inspection.engine.clock import DeclinedError
from hyperribbon.inspection.engine.looks import MANY
from hyperribbon.inspection.engine.notebook import Notebook
from hyperribbon.inspection.engine.planning import Step
from hyperribbon.inspection.engine.quantities import Part, Sheet
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.inspection.evaluating import class_axis
from hyperribbon.inspection.parts.matrices import (
    matrix_quantities,
    measure_matrix,
    pairs_arrays,
    pairs_table,
    share_chart,
    share_reading,
    shortened,
)
from hyperribbon.operators.risk import Risk
from hyperribbon.operators.risk.likelihoods import Categorical, Gaussian

__all__ = ["STEP", "fisher_part", "gauss_newton_factor"]

_MODELS = {
    "categorical": "classes drawn from the softmax of the outputs",
    "gaussian": "unit Gaussian noise around the outputs",
    "bernoulli": "independent coins of probability sigmoid(output)",
}
_FEWEST = 64
"""Samples: those of n samples with C outputs span n·C directions, which hold all of its trace."""
_EQUAL = 1e-3
"""Relative difference at which two curvatures in single precision count as proportional."""


def fisher_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Report the Fisher information of the model's outputs.

    Where the loss is minus its log-likelihood, F is a known multiple of the Gauss-Newton matrix and
    is read off it; else it is measured by products with F itself.
    """
    known = gauss_newton_factor(subject)
    measured = notebook.matrices.get("gauss_newton")
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
        found = measure_matrix(subject.fisher(likelihood), min(notebook.k, MANY), notebook)
        other = "the Gauss-Newton matrix of this loss is another matrix"
        note = f"Fisher information of {_MODELS[likelihood]}; {other}."
    sheet = Sheet("fisher", "Fisher information", notes=[note])
    sheet.quantities += matrix_quantities("fisher", "Fisher information", found, how)
    sheet.readings.append(share_reading(found.shares, "Fisher"))
    sheet.charts.append(share_chart(found.shares))
    sheet.arrays |= pairs_arrays(found.spectrum)
    if not how:
        sheet.tables["Leading eigenvalues of the Fisher information"] = pairs_table(found.spectrum)
        sheet.shortened += shortened(found.spectrum)
    return sheet.part()


def gauss_newton_factor(subject: Subject) -> tuple[str, float] | None:
    """Return the likelihood whose Fisher information is a multiple of G, and the multiple.

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
    """Return the ratio of each chunk of this rank; None when one has no single ratio."""
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


def _wish(subject: Subject, notebook: Notebook) -> float:
    known = notebook.matrices.get("gauss_newton") is not None and gauss_newton_factor(subject)
    return 1 if known else 3 * min(notebook.k, MANY) + 30


STEP = Step(
    "fisher",
    "Fisher information",
    order=30,
    run=fisher_part,
    wish=_wish,
    is_fixed=True,
    fewest=_FEWEST,
)

"""Sharpness against the stability limit of the optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.tensors import tensor_of
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.core.results import Spectrum
from hyperribbon.inspection.engine.notebook import Notebook
from hyperribbon.inspection.engine.planning import Step
from hyperribbon.inspection.engine.quantities import Part, Sheet
from hyperribbon.inspection.engine.sampling import standard_error
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.inspection.update_rules import UpdateRule
from hyperribbon.operators import Rescaled

__all__ = ["STEP", "stability_part"]


def stability_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Compare the sharpness with the optimiser's stability limit."""
    rule = notebook.rule
    assert rule is not None
    hessian = subject.hessian
    rate = None if isinstance(rule.rates, Mapping) else rule.rates
    sharpness = notebook.sharpness
    if rate is not None and sharpness is not None:
        value, error = rate * (sharpness.value + _decay_of_all(rule)), rate * sharpness.error
        method = "η times the largest eigenvalue of the Hessian and the weight decay"
        samples, certainty = sharpness.samples, sharpness.certainty
    else:
        scaled = Rescaled(hessian, *_coordinates(rule, hessian.space))
        spectrum = notebook.eigsh(scaled, 1, tol=1e-3, max_matvecs=200)
        value, error = float(spectrum.eigenvalues[0]), float(spectrum.residuals[0])
        method = f"largest eigenvalue of D½(H+W)D½, {spectrum.method}, {spectrum.matvecs} products"
        samples, certainty = subject.samples, "residual of the eigenpair"
        spread = _spread(subject, rule, spectrum, notebook.seed)
        if spread is not None:
            error, certainty = spread, "standard error over samples"
    sheet = Sheet("stability", STEP.title, is_of_samples=False)  # its numbers say so themselves
    sheet.exact("stability.limit", "Stability limit of the step", rule.limit, rule.text)
    if rate is not None:
        largest = rule.limit / rate - _decay_of_all(rule)
        sheet.exact("stability.curvature", "Largest stable curvature", largest, rule.text)
    told = method, certainty, samples
    sheet.number("stability.sharpness", "Sharpness in units of the step", value, error, *told)
    told = method, f"{certainty}; batch noise not included", samples
    ratio, error = value / rule.limit, error / rule.limit
    sheet.number("stability.ratio", "Sharpness over stability limit", ratio, error, *told)
    sheet.notes.append(
        "The limit is that of full-batch steps on a quadratic; gradient noise lowers it."
    )
    return sheet.part()


def _spread(subject: Subject, rule: UpdateRule, spectrum: Spectrum, seed: int) -> float | None:
    """Return the standard error of the largest eigenvalue of the scaled Hessian over samples."""
    assert spectrum.eigenvectors is not None
    v = spectrum.eigenvectors[:, 0]

    def along(group: Subject) -> float:
        scaled = Rescaled(group.hessian, *_coordinates(rule, group.hessian.space))
        return float(v @ (scaled @ v))

    return standard_error(subject, along, seed)


def _decay_of_all(rule: UpdateRule) -> float:
    assert not isinstance(rule.weight_decay, Mapping)
    return rule.weight_decay


def _coordinates(
    rule: UpdateRule, space: ParameterSpace
) -> tuple[torch.Tensor | float, torch.Tensor | float]:
    """Return √D and W, for all coordinates or for each."""
    if not isinstance(rule.rates, Mapping):
        return rule.rates**0.5, _decay_of_all(rule)
    missing = [name for name in space.names if name not in rule.rates]
    if missing:
        reason = "it does not update these parameters of the model"
        remedy = "Restrict the inspection with params= to what it trains."
        raise ArgumentError("optimizer", missing[:3], reason, remedy)
    return _flat(rule.rates, space).sqrt(), _flat(rule.weight_decay, space)


def _flat(values: Any, space: ParameterSpace) -> torch.Tensor:
    """Return numbers by parameter name as coordinates (P,)."""
    shapes = dict(zip(space.names, space.shapes, strict=True))
    given = ((name, tensor_of(values[name])) for name in space.names)
    return space.flatten({name: value.detach().expand(shapes[name]) for name, value in given})


STEP = Step(
    "stability",
    "Sharpness against the stability limit",
    order=10,
    run=stability_part,
    wish=lambda s, n: 40 if n.rule and isinstance(n.rule.rates, Mapping) else 1,
    is_fixed=True,
    obstacle=lambda s, n: "" if n.rule else "pass optimizer= (or a learning rate) to have it",
)

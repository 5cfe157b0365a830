"""Sharpness against the stability limit of the optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.parts.matrices import eigenpairs
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.application.inspection.sampling import sharpness_error
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.tensors import tensor_of
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.core.spectral_results import Spectrum
from hyperribbon.operators import Rescaled
from hyperribbon.prediction.update_rules import UpdateRule

_TITLE = "Sharpness against the stability limit"


def stability_part(level: Level, notebook: Notebook) -> Part:
    """Compare the sharpness with the optimiser's stability limit, in the mode one trains in."""
    rule, subject = notebook.rule, level.subject
    assert rule is not None
    trained = subject.as_trained(notebook.batch_size, notebook.seed)
    rate = None if isinstance(rule.rates, Mapping) else rule.rates
    known = notebook.finest("sharpness") if trained is subject else None
    sharpness = None if known is None else known.statistics["sharpness"]
    if rate is not None and sharpness is not None:
        value, error = rate * (sharpness.value + _decay_of_all(rule)), rate * sharpness.error
        method = "η times the largest eigenvalue of the Hessian and the weight decay"
        samples, certainty = sharpness.samples, sharpness.certainty
    else:
        scaled = Rescaled(trained.hessian, *_coordinates(rule, trained.hessian.space))
        spectrum = eigenpairs(scaled, 1, "LA", 1e-3, notebook)
        value, error = float(spectrum.eigenvalues[0]), float(spectrum.residuals[0])
        method = f"largest eigenvalue of D½(H+W)D½, {spectrum.method}, {spectrum.matvecs} products"
        samples, certainty = trained.samples, "residual of the eigenpair"
        spread = _spread(trained, rule, spectrum, notebook.seed)
        if spread is not None:
            error, certainty = spread, "standard error over samples"
    part = Part("stability", _TITLE, is_of_samples=False)  # its numbers say so themselves
    part.exact("stability.limit", "Stability limit of the step", rule.limit, rule.text)
    where = samples, trained.manner
    name = "Sharpness in units of the step"
    part.number("stability.sharpness", name, value, error, method, certainty, *where)
    certainty = f"{certainty}; batch noise not included"
    ratio, error = value / rule.limit, error / rule.limit
    name = "Sharpness over stability limit"
    part.number("stability.ratio", name, ratio, error, method, certainty, *where)
    if rate is not None:
        decay = _decay_of_all(rule)
        largest = rule.limit / rate - decay
        part.exact("stability.curvature", "Largest stable curvature", largest, rule.text)
        part.exact("stability.own_rate", "Learning rate", rate, rule.text)
        if ratio > 0:
            how = f"{rule.limit:g}/" + (f"(λ₁ + {decay:g})" if decay else "λ₁")
            best = rate / ratio, rate * error / ratio**2, how, certainty
            part.number("stability.rate", "Largest stable learning rate", *best, *where)
    part.notes.append(
        "The limit is that of full-batch steps on a quadratic; gradient noise lowers it."
    )
    if trained.manner:
        part.notes.append(f"Measured on {samples:,} samples, {trained.manner}.")
    return part


def _spread(subject: Subject, rule: UpdateRule, spectrum: Spectrum, seed: int) -> float | None:
    """Return the standard error over samples of the sharpness beside its stability limit."""
    assert spectrum.eigenvectors is not None
    coordinates = _coordinates(rule, subject.hessian.space)
    v, on = spectrum.eigenvectors[:, 0], lambda hessian: Rescaled(hessian, *coordinates)
    return sharpness_error(subject, v, seed, on)


def _decay_of_all(rule: UpdateRule) -> float:
    assert not isinstance(rule.weight_decay, Mapping)
    return rule.weight_decay


def _coordinates(
    rule: UpdateRule, space: ParameterSpace
) -> tuple[torch.Tensor | float, torch.Tensor | float]:
    """Return the optimiser's √D and W for the stability limit, by coordinate or for all."""
    if not isinstance(rule.rates, Mapping):
        return rule.rates**0.5, _decay_of_all(rule)
    missing = [name for name in space.names if name not in rule.rates]
    if missing:
        reason = "it does not update these parameters of the model"
        remedy = "Restrict the inspection with params= to what it trains."
        raise ArgumentError("optimizer", missing[:3], reason, remedy)
    return _flat(rule.rates, space).sqrt(), _flat(rule.weight_decay, space)


def _flat(values: Any, space: ParameterSpace) -> torch.Tensor:
    """Return an optimiser's numbers by parameter as coordinates (P,), for the stability limit."""
    shapes = dict(zip(space.names, space.shapes, strict=True))
    given = ((name, tensor_of(values[name])) for name in space.names)
    return space.flatten({name: value.detach().expand(shapes[name]) for name, value in given})


def _products(level: Level, notebook: Notebook) -> float:
    subject = level.subject
    if subject.is_normalised and subject.mode == "eval":
        return 150  # eigenpairs and their errors over samples, of derivatives that are checked anew
    is_plain = notebook.rule is not None and not isinstance(notebook.rule.rates, Mapping)
    return 1 if is_plain and notebook.finest("sharpness") else 40


def _no_limit(level: Level, notebook: Notebook) -> str:
    return notebook.unknown_limit


MEASUREMENTS = (
    Measurement(
        "stability",
        _TITLE,
        order=5,
        run=stability_part,
        products=_products,
        refine=90,
        obstacle=_no_limit,
    ),
)

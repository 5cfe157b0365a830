"""Sharpness against the stability limit of the optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity, exact
from hyperribbon.inspection.subject import Subject
from hyperribbon.inspection.update_rules import UpdateRule
from hyperribbon.spectra import eigsh

__all__ = ["stability_part"]


def stability_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Compare the sharpness with the optimiser's stability limit.

    Args:
        subject: What is inspected.
        notebook: The request; its rule must be known.
        products: Hessian products that may be spent.
    """
    rule = notebook.rule
    assert rule is not None
    hessian = subject.hessian
    if not isinstance(rule.rates, Mapping) and "hessian" in notebook.spectra:
        spectrum = notebook.spectra["hessian"]
        top, residual = float(spectrum.eigenvalues[0]), float(spectrum.residuals[0])
        value, error = rule.rates * top, rule.rates * residual
        method = "η times the largest Hessian eigenvalue"
    else:
        scaled = _Scaled(hessian, _root_rates(rule, subject.hessian.space))
        spectrum = eigsh(scaled, 1, tol=1e-3, seed=notebook.seed, max_matvecs=max(products, 20))
        value, error = float(spectrum.eigenvalues[0]), float(spectrum.residuals[0])
        method = f"largest eigenvalue of D½HD½, {spectrum.method}, {spectrum.matvecs} products"
    if not isinstance(rule.rates, Mapping):
        value += rule.rates * rule.weight_decay
    ratio = value / rule.limit
    quantities = [
        exact("stability.limit", "Stability limit of the step", rule.limit, rule.text),
        Quantity("stability.sharpness", "Sharpness in units of the step", value, error, method,
                 "residual of the eigenpair"),
        Quantity("stability.ratio", "Sharpness over stability limit", ratio, error / rule.limit,
                 method, "residual of the eigenpair; batch noise not included"),
    ]  # fmt: skip
    if not isinstance(rule.rates, Mapping):
        quantities.insert(
            1,
            exact(
                "stability.curvature",
                "Largest stable curvature",
                rule.limit / rule.rates,
                rule.text,
            ),
        )
    return Part(
        "stability", "Sharpness against the stability limit", "Curvature",
        tuple(quantities), (_read(ratio, rule),),
        notes=("The limit is that of full-batch steps on a quadratic; gradient noise lowers it.",),
    )  # fmt: skip


def _read(ratio: float, rule: UpdateRule) -> str:
    share = f"{ratio:.0%} of the stability limit of {rule.text}"
    if ratio > 1.05:
        return f"The minimum is too sharp for the step, which would leave it: {share}."
    if ratio > 0.8:
        return f"Training sits at the edge of stability: the sharpness is {share}."
    return f"The step is stable here: the sharpness is {share}."


def _root_rates(rule: UpdateRule, space: ParameterSpace) -> torch.Tensor | float:
    if not isinstance(rule.rates, Mapping):
        return rule.rates**0.5
    missing = [name for name in space.names if name not in rule.rates]
    if missing:
        raise ArgumentError(
            "optimizer", missing[:3], "it does not update these parameters of the model",
            "Restrict the inspection with params= to what it trains.",
        )  # fmt: skip
    return space.flatten(rule.rates).sqrt()


class _Scaled:
    """The operator D½ H D½."""

    def __init__(self, operator: Any, root: torch.Tensor | float) -> None:
        self.operator, self.root = operator, root
        self.shape, self.dtype, self.device = operator.shape, operator.dtype, operator.device

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        root = self.root
        if isinstance(root, torch.Tensor):
            root = root.to(other) if other.ndim == 1 else root.to(other).unsqueeze(1)
        return root * (self.operator @ (root * other))

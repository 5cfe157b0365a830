"""How an optimiser turns curvature into stability: 2/η, corrected for momentum and scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, check_positive

__all__ = ["UpdateRule", "update_rule"]


@dataclass(frozen=True)
class UpdateRule:
    r"""A linear update θ ← θ − D·(momentum average of g), seen by the curvature H.

    On a quadratic it is stable while the largest eigenvalue of D^{1/2} (H + w·1) D^{1/2} is below
    `limit`, where w is the weight decay:

    $$\text{limit} = \frac{2(1+\beta)}{1-\tau},\qquad
      \text{limit}_\text{Nesterov} = \frac{2(1+\beta)}{1+2\beta}$$

    with momentum β and dampening τ; Adam is the case τ = β = β₁ with D = η/(√v̂ + ε).

    Attributes:
        name: The optimiser.
        rates: D: one number for all coordinates, or one a coordinate by parameter name.
        limit: Largest stable eigenvalue.
        weight_decay: w.
        text: The rule in words.
    """

    name: str
    rates: float | Mapping[str, torch.Tensor]
    limit: float
    weight_decay: float
    text: str


def update_rule(optimizer: Any, model: nn.Module) -> UpdateRule:
    """Return the rule of an optimiser, or of a plain learning rate.

    Args:
        optimizer: A torch SGD, Adam or AdamW, or a learning rate of plain gradient descent.
        model: The model whose parameters it updates.

    Raises:
        ArgumentError: The optimiser is of another kind, or updates nothing of the model.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        rate = check_positive("optimizer", optimizer)
        return UpdateRule("gradient descent", rate, 2.0, 0.0, f"gradient descent, η = {rate:g}")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [
        (group, [p for p in group["params"] if id(p) in names]) for group in optimizer.param_groups
    ]
    groups = [(group, members) for group, members in groups if members]
    if not groups:
        raise ArgumentError(
            "optimizer", type(optimizer).__name__, "it updates no parameter of this model",
            "Give the optimiser that trained the model, or its learning rate.",
        )  # fmt: skip
    first = groups[0][0]
    if isinstance(optimizer, torch.optim.SGD):
        beta, dampening = first["momentum"], first["dampening"]
        limit = 2 * (1 + beta) / (1 - dampening if beta else 1)
        kind = "SGD"
        if first["nesterov"]:
            limit, kind = 2 * (1 + beta) / (1 + 2 * beta), "SGD with Nesterov momentum"
        rates = {
            names[id(p)]: torch.full_like(p.detach(), float(group["lr"]))
            for group, members in groups
            for p in members
        }
        text = f"{kind}, η = {float(first['lr']):g}, momentum {beta:g}"
    elif isinstance(optimizer, torch.optim.Adam):
        beta = first["betas"][0]
        limit = 2 * (1 + beta) / (1 - beta)
        rates = {
            names[id(p)]: _adam_rates(optimizer, group, p)
            for group, members in groups
            for p in members
        }
        text = f"{type(optimizer).__name__}, η = {float(first['lr']):g}, β₁ = {beta:g}"
    else:
        raise ArgumentError(
            "optimizer", type(optimizer).__name__, "its stability limit is not known",
            "Give SGD, Adam or AdamW, or a learning rate.",
        )  # fmt: skip
    decay = 0.0 if isinstance(optimizer, torch.optim.AdamW) else float(first["weight_decay"])
    different = {float(group["lr"]) for group, _ in groups}
    is_uniform = isinstance(optimizer, torch.optim.SGD) and len(different) == 1
    return UpdateRule(
        type(optimizer).__name__, different.pop() if is_uniform else rates, limit, decay, text
    )


def _adam_rates(optimizer: Any, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
    state = optimizer.state.get(parameter, {})
    if "exp_avg_sq" not in state:
        raise ArgumentError(
            "optimizer", type(optimizer).__name__, "it has taken no step: its scaling is unknown",
            "Give the optimiser after training.",
        )  # fmt: skip
    correction = 1 - group["betas"][1] ** float(state["step"])
    return float(group["lr"]) / ((state["exp_avg_sq"] / correction).sqrt() + group["eps"])

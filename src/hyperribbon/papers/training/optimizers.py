"""Optimisers and learning-rate schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from hyperribbon.core import checks
from hyperribbon.core.checks import (
    ArgumentError,
    check_absent,
    check_choice,
    check_positive,
    validate,
)

Schedule = Mapping[int, float] | Callable[[int], float] | None
OptimizerChoice = str | Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
_tensor = checks.instance(torch.Tensor, "Give model.parameters().")


@validate(parameters=checks.list_of(_tensor), momentum=checks.zero_or_more)
def make_optimizer(
    parameters: Iterable[torch.Tensor],
    optimizer: OptimizerChoice,
    *,
    lr: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Return the torch optimiser of a training, by its name.

    Args:
        parameters: What it updates.
        optimizer: "sgd", "adam", "adamw", or a function of the parameters that returns one.
        lr: Learning rate η.
        momentum: Heavy-ball momentum μ of "sgd".
        nesterov: Whether to use Nesterov momentum.
        weight_decay: Coefficient of ½‖w‖² in the loss (for "adamw": decoupled decay).

    Raises:
        ArgumentError: The parameters cannot be trained, or the settings contradict one another.
    """
    parameters = list(parameters)
    if not parameters:
        reason = "there is nothing to train"
        raise ArgumentError("parameters", parameters, reason, "Give parameters of a model.")
    if not all(isinstance(entry, torch.Tensor) and entry.is_leaf for entry in parameters):
        reason = "expected leaf tensors"
        raise ArgumentError("parameters", parameters, reason, "Give parameters of a model.")
    if any(parameter.is_inference() for parameter in parameters):
        reason = "its parameters were created in inference mode and cannot be trained"
        remedy = "Create or copy the model outside torch.inference_mode()."
        raise ArgumentError("model", "torch.inference_mode()", reason, remedy)
    if callable(optimizer):
        asked = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        for name, value in asked.items():
            check_absent(
                name, value or None, "the optimiser is created by a function", "Set it there."
            )
        made = optimizer(parameters)
        rates = [group.get("lr", lr) for group in getattr(made, "param_groups", ())]
        if rates and lr not in rates:
            reason = f"the optimiser was created with {', '.join(map(str, dict.fromkeys(rates)))}"
            raise ArgumentError("lr", lr, reason, "Give the same learning rate in both places.")
        return made
    check_choice("optimizer", optimizer, ("sgd", "adam", "adamw"))
    check_positive("lr", lr)
    check_positive("momentum", momentum, zero=True)
    check_positive("weight_decay", weight_decay, zero=True)
    if optimizer == "sgd":
        if nesterov and not momentum:
            remedy = "Give momentum=0.9 too."
            raise ArgumentError("nesterov", nesterov, "it needs momentum > 0", remedy)
        how = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        return torch.optim.SGD(parameters, lr=lr, fused=_can_fuse(parameters), **how)
    if momentum or nesterov:
        raise ArgumentError(
            "momentum" if momentum else "nesterov",
            momentum or nesterov,
            f"{optimizer!r} has its own momentum",
            "Omit it, or use optimizer='sgd'.",
        )
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, weight_decay=weight_decay, fused=_can_fuse(parameters))


def rate_factor(schedule: Schedule, epoch: int) -> float:
    """Return the optimiser's factor on the learning rate in an epoch (counted from 0).

    A mapping multiplies the rate by each factor from its epoch on: with
    {30: 0.2, 60: 0.2} the rate is η, 0.2 η from epoch 30, 0.04 η from epoch 60. A function returns
    the factor itself.

    >>> [round(rate_factor({2: 0.1, 4: 0.5}, epoch), 3) for epoch in range(6)]
    [1.0, 1.0, 0.1, 0.1, 0.05, 0.05]
    """
    if schedule is None:
        return 1.0
    if callable(schedule):
        return float(schedule(epoch))
    steps = [
        (checks.number("schedule", e), f) for e, f in checks.mapping("schedule", schedule).items()
    ]
    factor = 1.0
    for start, change in sorted(steps):
        if epoch >= start:
            factor *= checks.number("schedule", change)
    return factor


def _can_fuse(parameters: list[torch.Tensor]) -> bool:
    """Whether to use torch's fused optimiser, which is incorrect for 16-bit types on the CPU."""
    precise = (torch.float32, torch.float64)
    return all(p.dtype in precise and p.device.type in ("cpu", "cuda") for p in parameters)

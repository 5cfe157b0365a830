"""A model copied in a mode, and data in its precision and place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.torch_private import Dropout
from hyperribbon.operators.risk.data import Source
from hyperribbon.operators.risk.memory import allowance
from hyperribbon.operators.risk.private_copy import private_copy

TRAINED = "as one trains"
"""A mode: normalisation by the batch as in training, all else as in evaluation (dropout off)."""


def as_source(
    model: nn.Module, data: Any, *, memory: float | None = None, **options: Any
) -> Source:
    """Return data as batches in the precision and on the device of a model's copy.

    Args:
        model: Any module.
        data: The samples.
        memory: Bytes of which a half may be kept of the data; None for as many as `Risk` takes.
        **options: As for `Source`.

    Raises:
        ArgumentError: The model has no parameters.
    """
    if isinstance(data, Source):
        return data
    first = next(model.parameters(), None)
    if first is None:
        raise ArgumentError("model", model, "it has no parameters", "Give a model with weights.")
    room = allowance(first.device) if memory is None else memory
    return Source(data, dtype=first.dtype, device=first.device, memory=room / 2, **options)


def copy_in_mode(
    model: nn.Module,
    mode: str | None = "eval",
    change: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
) -> nn.Module:
    """Return a copy of the inspected model in training or evaluation mode.

    Args:
        model: Any module; one with parts in TorchScript is good for evaluations only.
        mode: "eval", "train", `TRAINED`, or None for each layer's own.
        change: Makes the tensors of the copy from those of the model.
    """

    def taken(tensor: torch.Tensor) -> torch.Tensor:
        value = change(tensor.detach())
        is_weight = isinstance(tensor, nn.Parameter)
        return nn.Parameter(value, requires_grad=tensor.requires_grad) if is_weight else value

    try:
        twin = private_copy(model, taken)
    except ArgumentError:
        twin = copy.deepcopy(model)
    if mode is not None:
        twin.train(mode == "train")
    for part in layers_with_statistics(twin) if mode == TRAINED else ():
        part.training = True
    return twin


def layers_with_statistics(model: nn.Module) -> list[nn.Module]:
    """Return the layers of an inspected model's copy that normalise by running statistics."""
    parts = model.modules()
    return [p for p in parts if isinstance(getattr(p, "running_mean", None), torch.Tensor)]


def has_dropout(part: nn.Module) -> bool:
    """Whether a layer of an inspected model's copy has dropout in training mode."""
    rate = part.p if isinstance(part, Dropout) else getattr(part, "dropout", None)
    return isinstance(rate, float) and rate > 0

"""How a model is called on a batch: with its inputs, or as the person says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, is_listed, is_mapping, is_tuple
from hyperribbon.operators.risk.batches import split

__all__ = ["Forward", "call"]

Forward = Callable[[nn.Module, Any], Any]
"""forward(model, batch) -> outputs, or (outputs, targets) taken from the batch."""


def call(model: nn.Module, batch: Any, forward: Forward | None = None) -> tuple[torch.Tensor, Any]:
    """Return the outputs of a model on a batch, and the batch's targets.

    Without `forward`, the inputs are what `batches.split` leaves beside the targets: a tensor x is
    given as model(x), a tuple as model(x1, x2, …), a dict as model(**inputs). An output with
    `.logits`, as those of transformers, stands for its logits.

    Args:
        model: Any module.
        batch: As `Source` yields it.
        forward: Returns outputs, or (outputs, targets), for models that are called otherwise.

    Raises:
        ArgumentError: The inputs do not fit the model, or its output is not a tensor of real
            numbers.
    """
    inputs, targets = split(batch)
    if forward is not None:
        outputs = forward(model, batch)
        if is_tuple(outputs) and len(outputs) == 2:
            outputs, targets = outputs
    elif isinstance(inputs, torch.Tensor):
        outputs = model(inputs)
    elif is_tuple(inputs):
        _check_inputs(model, batch, inputs, {})
        outputs = model(*inputs)
    elif is_mapping(inputs):
        _check_inputs(model, batch, (), inputs)
        outputs = model(**inputs)
    else:
        reason = "a batch's inputs are neither a tensor nor a tuple or a dict of tensors"
        remedy = "Say how the model is called: forward=lambda model, batch: (outputs, targets)."
        raise ArgumentError("data", inputs, reason, remedy)
    return _tensor_of(outputs, batch, forward), targets


def _check_inputs(
    model: nn.Module, batch: Any, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> None:
    """Raise when the model's forward does not take these inputs."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*inputs, **named)
    except TypeError as error:
        given = ", ".join(map(str, named)) if named else f"{len(inputs)} inputs"
        first = f"batch[{next(iter(named), '')!r}]" if named else "batch[0]"
        reason = (
            f"{type(model).__name__} is called with the batch's inputs and does not take them "
            f"({error}): its forward{signature}"
        )
        remedy = f"Say how it is called: forward=lambda model, batch: model({first})."
        raise ArgumentError("data", given, reason, remedy) from None


def _tensor_of(outputs: Any, batch: Any, forward: Forward | None) -> torch.Tensor:
    """Return the tensor that a model's output is, or its logits."""
    if not isinstance(outputs, torch.Tensor):
        outputs = getattr(outputs, "logits", outputs)
    if not isinstance(outputs, torch.Tensor):
        kind, pick = _described(outputs)
        called = "model(...)" if forward is not None else _written_call(batch)
        remedy = (
            f"Pick the one to differentiate: forward=lambda model, batch: {called}{pick}. A loss "
            f"of several takes them side by side, and cuts them apart again: "
            f"torch.cat([part.flatten(1) for part in {called}], 1)."
        )
        raise ArgumentError("model", kind, "its output is not a tensor", remedy)
    if not outputs.is_floating_point():
        reason = "its outputs are not real floating-point numbers, so they have no derivatives"
        remedy = (
            "Return logits or values before any argmax or rounding; for complex outputs "
            "torch.view_as_real."
        )
        raise ArgumentError("model", outputs, reason, remedy)
    return outputs


def _described(outputs: Any) -> tuple[str, str]:
    """Return what an output is, and the expression that picks its first tensor."""
    if is_mapping(outputs):
        keys = [key for key, value in outputs.items() if isinstance(value, torch.Tensor)]
        key = keys[0] if keys else next(iter(outputs), "name")
        return f"{type(outputs).__name__} of {', '.join(map(str, outputs))}", f"[{key!r}]"
    if is_listed(outputs):
        parts = ", ".join(
            f"tensor {tuple(item.shape)}" if isinstance(item, torch.Tensor) else type(item).__name__
            for item in outputs
        )
        place = next((i for i, x in enumerate(outputs) if isinstance(x, torch.Tensor)), 0)
        return f"{type(outputs).__name__} of {parts}", f"[{place}]"
    fields: dict[str, Any] = getattr(outputs, "__dict__", {})
    names = [name for name, value in fields.items() if isinstance(value, torch.Tensor)]
    return type(outputs).__name__, f".{names[0]}" if names else ".logits"


def _written_call(batch: Any) -> str:
    """Return the expression by which a model is called on such a batch."""
    if is_mapping(batch):
        names = [key for key in batch if key in split(batch)[0]]
        return f"model({', '.join(f'{name}=batch[{name!r}]' for name in names)})"
    if not is_tuple(batch):
        return "model(batch)"
    if len(batch) > 2:
        return "model(*batch[:-1])"
    first = split(batch)[0]
    stars = "**" if is_mapping(first) else "*" if is_tuple(first) else ""
    return f"model({stars}batch[0])"

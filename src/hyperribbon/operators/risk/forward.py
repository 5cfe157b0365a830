"""How a model is called on a batch: with its inputs, or as `forward=` does it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.torch_private import tree_flatten, tree_unflatten
from hyperribbon.operators.risk.batches import split

Forward = Callable[[nn.Module, Any], Any]
"""forward(model, batch) -> outputs, or (outputs, targets) taken from the batch."""


@dataclass(frozen=True)
class Packing:
    """Several output tensors of a model side by side in one (n, D), and back.

    Attributes:
        structure: The tuple, list or dict that the model returns.
        shapes: The shape of each tensor for one sample.
    """

    structure: Any
    shapes: tuple[torch.Size, ...]

    def unpack(self, packed: torch.Tensor) -> Any:
        """Unpack the outputs of a forward call as the model returns them."""
        parts = packed.split([shape.numel() for shape in self.shapes], 1)
        leaves = [p.reshape(len(packed), *s) for p, s in zip(parts, self.shapes, strict=True)]
        return tree_unflatten(leaves, self.structure)


def call(model: nn.Module, batch: Any, forward: Forward | None = None) -> tuple[Any, Any]:
    """Return what a model's forward gives on a batch, as it is, and the batch's targets.

    Without `forward`, the inputs are what `batches.split` separates from the targets: a tensor x
    is given as model(x), a tuple as model(x1, x2, …), a dict as model(**inputs). An output with
    `.logits`, as transformers models return it, stands for its logits.

    Args:
        model: Any module.
        batch: As `Source` yields it.
        forward: Returns outputs, or (outputs, targets), for models that are called differently.

    Raises:
        ArgumentError: The model does not take these inputs.
        TypeError: The model raises it itself.
    """
    inputs, targets = split(batch)
    if forward is not None:
        outputs = forward(model, batch)
        if isinstance(outputs, tuple) and len(outputs) == 2:
            outputs, targets = outputs
    else:
        args, named = _arguments(inputs)
        try:
            outputs = model(*args, **named)
        except TypeError:
            if not isinstance(batch, torch.Tensor):
                _check_inputs(model, args, named)
            raise
    if not isinstance(outputs, torch.Tensor):
        outputs = getattr(outputs, "logits", outputs)
    return outputs, targets


def as_tensor(
    outputs: Any, batch: Any, forward: Forward | None, *, packs: bool
) -> tuple[torch.Tensor, Packing | None]:
    """Return a forward pass's outputs as one tensor, and how several were packed into it.

    Args:
        outputs: As `call` returns them.
        batch: The batch, for messages.
        forward: How the model was called, likewise.
        packs: Whether a tuple, list or dict of tensors is packed into one tensor (n, D).

    Raises:
        ArgumentError: They are not real tensors.
    """
    packing = None
    if packs and not isinstance(outputs, torch.Tensor):
        outputs, packing = _pack(outputs)
    return _check_tensor(outputs, batch, forward), packing


def call_with_labels(model: nn.Module, batch: Any, forward: Forward | None = None) -> Any:
    """Call a model's forward with the labels too, if it takes `labels`; return the result."""
    if forward is not None:
        return forward(model, batch)
    inputs, targets = split(batch)
    args, named = _arguments(inputs)
    labelled = dict(batch) if isinstance(batch, Mapping) else {"labels": targets}
    if targets is not None and _takes(model, labelled):
        named |= labelled
    return model(*args, **named)


def own_loss_of(output: Any) -> torch.Tensor | None:
    """Return the loss in what a model's forward returns: `.loss`, "loss", or a lone scalar."""
    if not isinstance(output, torch.Tensor):
        output = (
            output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        )
    is_scalar = isinstance(output, torch.Tensor) and output.numel() == 1 and output.ndim < 2
    return output.reshape(()) if is_scalar and output.is_floating_point() else None


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and named arguments by which a forward is given its inputs."""
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, tuple):
        return inputs, {}
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        return (), dict(inputs)
    reason = "a batch's inputs are neither a tensor nor a tuple or a dict of tensors"
    remedy = "Define how the model is called: forward=lambda model, batch: (outputs, targets)."
    raise ArgumentError("data", inputs, reason, remedy)


def _pack(outputs: Any) -> tuple[Any, Packing | None]:
    """Pack a forward pass's tensors with one row per sample side by side; others stay."""
    plain = dict(outputs) if isinstance(outputs, Mapping) else outputs
    leaves, structure = tree_flatten(plain)
    is_rows = [isinstance(x, torch.Tensor) and x.ndim and x.is_floating_point() for x in leaves]
    if not leaves or not all(is_rows) or len({len(leaf) for leaf in leaves}) > 1:
        return outputs, None
    packing = Packing(structure, tuple(leaf.shape[1:] for leaf in leaves))
    return torch.cat([leaf.reshape(len(leaf), -1) for leaf in leaves], 1), packing


def _takes(model: nn.Module, names: Mapping[str, Any]) -> bool:
    """Whether a model's forward has parameters of these names."""
    parameters = inspect.signature(model.forward).parameters.values()
    named = {parameter.name for parameter in parameters}
    return set(names) <= named or any(p.kind is p.VAR_KEYWORD for p in parameters)


def _check_inputs(model: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
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
        remedy = f"Define how it is called: forward=lambda model, batch: model({first})."
        if not named and len(signature.parameters) > len(inputs):
            remedy = (
                "The last item of a tuple holds the targets: give ((x1, x2), targets), or the "
                "inputs by name in a dict."
            )
        raise ArgumentError("data", given, reason, remedy) from None


def _check_tensor(outputs: Any, batch: Any, forward: Forward | None) -> torch.Tensor:
    """Return a forward pass's output if it is a tensor of real numbers."""
    if not isinstance(outputs, torch.Tensor):
        kind, pick = _describe(outputs)
        called = "model(...)" if forward is not None else _written_call(batch)
        remedy = (
            f"Select one: forward=lambda model, batch: {called}{pick}. A loss of several outputs "
            "is given as a function, loss=lambda outputs, targets: …, which receives all of them."
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


def _describe(outputs: Any) -> tuple[str, str]:
    """Describe what a forward returns, with the expression for its first tensor."""
    if isinstance(outputs, Mapping):
        keys = [key for key, value in outputs.items() if isinstance(value, torch.Tensor)]
        key = keys[0] if keys else next(iter(outputs), "name")
        return f"{type(outputs).__name__} of {', '.join(map(str, outputs))}", f"[{key!r}]"
    if isinstance(outputs, list | tuple):
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
    """Write the expression by which a model's forward is called on such a batch."""
    if isinstance(batch, Mapping):
        names = [key for key in batch if key in split(batch)[0]]
        return f"model({', '.join(f'{name}=batch[{name!r}]' for name in names)})"
    if not isinstance(batch, tuple):
        return "model(batch)"
    if len(batch) > 2:
        return "model(*batch[:-1])"
    first = split(batch)[0]
    stars = "**" if isinstance(first, Mapping) else "*" if isinstance(first, tuple) else ""
    return f"model({stars}batch[0])"

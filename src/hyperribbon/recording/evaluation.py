"""Models asked for outputs, loss and accuracy without being changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

from hyperribbon.core.boundary import checked, count, flag, text
from hyperribbon.core.checks import ArgumentError

__all__ = ["Loss", "Pair", "Probe", "evaluate", "in_memory", "in_mode", "predict"]

Pair = tuple[torch.Tensor, torch.Tensor]
Probe = torch.Tensor | Mapping[str, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@contextmanager
def in_mode(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Put a model in a mode (None: leave it), and every module back in its own at the end."""
    modes = [(module, module.training) for module in model.modules()]
    if training is not None:
        model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@checked(batch_size=count, log_probabilities=flag)
@torch.no_grad()
def predict(
    model: nn.Module, probe: Probe, *, log_probabilities: bool = True, batch_size: int = 2000
) -> torch.Tensor:
    """Return a model's outputs on a probe set, in evaluation mode.

    Args:
        model: Called with a tensor, or with keyword tensors; an output with `.logits` stands for
            these logits.
        probe: Inputs, or keyword inputs.
        log_probabilities: Take the log-softmax over the last dimension.
        batch_size: Inputs at a time.
    """
    device = next(model.parameters()).device
    with in_mode(model, training=False):
        if isinstance(probe, Mapping):
            pieces = zip(*(value.split(batch_size) for value in probe.values()), strict=True)
            calls = (dict(zip(probe, some, strict=True)) for some in pieces)
            outputs = [model(**{k: v.to(device) for k, v in call.items()}) for call in calls]
        else:
            outputs = [model(piece.to(device)) for piece in probe.split(batch_size)]
    logits = torch.cat([getattr(output, "logits", output) for output in outputs]).cpu()
    return logits.log_softmax(-1) if log_probabilities else logits


@checked(batch_size=count, prefix=text)
@torch.no_grad()
def evaluate(
    model: nn.Module, loss: Loss, data: Pair | Dataset, *, batch_size: int = 2000, prefix: str = ""
) -> dict[str, float]:
    """Return the mean loss, and for class labels the accuracy, in evaluation mode.

    Args:
        model: Left as it was found.
        loss: `loss(outputs, targets)`, a mean over samples.
        data: Inputs and targets.
        batch_size: Samples at a time; samples are weighted, not batches.
        prefix: Put before the names "loss" and "accuracy".
    """
    inputs, targets = in_memory(data)
    outputs = predict(model, inputs, log_probabilities=False, batch_size=batch_size)
    targets = targets.to(outputs.device)
    result = {f"{prefix}loss": loss(outputs, targets).item()}
    if not targets.is_floating_point() and targets.ndim == 1:
        result[f"{prefix}accuracy"] = (outputs.argmax(-1) == targets).double().mean().item()
    return result


def in_memory(data: Pair | Dataset) -> Pair:
    """Return inputs and targets as two tensors.

    Raises:
        ArgumentError: They are not, or they differ in length, or they are empty.
    """
    if isinstance(data, Dataset):
        data = default_collate([data[i] for i in range(len(data))])  # type: ignore[arg-type]
    try:
        inputs, targets = data  # type: ignore[misc]
        lengths = len(inputs), len(targets)
    except (TypeError, ValueError):
        remedy = "Give two tensors or a Dataset."
        raise ArgumentError("data", data, "it is not a pair (inputs, targets)", remedy) from None
    if lengths[0] != lengths[1] or lengths[0] == 0:
        reason = "inputs and targets must be equally many, at least one"
        raise ArgumentError("data", lengths, reason, "Check how they were made.")
    return inputs, targets

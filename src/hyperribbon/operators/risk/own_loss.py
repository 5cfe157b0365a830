"""The loss that a model computes by itself, recognised as a function of its logits where it is one.

Models of transformers return a loss when they are given labels: shifted for causal models, over the
labels that are not −100, or as the configuration says. Hessian and gradient need only its value.
Gauss-Newton, Fisher and gradient noise need it as a function of the outputs: the candidates below
are accepted where their value and their gradient in the weights equal those of the model's own loss
on real samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.batches import batch_size, cut, split
from hyperribbon.operators.risk.calling import Forward, call_with_labels, own_loss_of
from hyperribbon.operators.risk.data import Source
from hyperribbon.operators.risk.function import ModelFunction
from hyperribbon.operators.risk.losses import Loss
from hyperribbon.operators.risk.losses.recognition import recognise

__all__ = ["OwnLoss", "find_own_loss"]

_SAMPLES = 16  # real samples on which candidates are compared
_SAME = 1e2  # rounding errors by which two evaluations of one loss may differ
Adapt = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class OwnLoss(Loss):
    """The value of a model's own loss, whose outputs are that value once per sample.

    Attributes:
        reduction: "mean" or "sum" where the loss adds up over samples, else "whole".
    """

    is_curved = False

    def __init__(self, reduction: str) -> None:
        self.reduction = reduction

    def __repr__(self) -> str:
        return "the model's own loss"

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the loss times the samples, or itself when it is a sum."""
        return outputs.mean() if self.reduction == "sum" else outputs.sum()

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of samples."""
        return float(len(outputs))

    def check_factored(self, matrix: str) -> None:
        """Raise: without a function of the outputs only the Hessian is defined.

        Raises:
            ArgumentError: Always.
        """
        reason = (
            f"{matrix} needs the loss as a function of the outputs, and the model's own loss is "
            "not recognised as cross-entropy (plain or shifted, without labels −100), squared "
            "error or binary cross-entropy of its logits"
        )
        remedy = "Use hr.Hessian, or give the loss: loss=lambda outputs, targets: … with forward=."
        raise ArgumentError("loss", None, reason, remedy)


def find_own_loss(
    function: ModelFunction, source: Source, forward: Forward | None
) -> tuple[Forward, Loss] | None:
    """Return how to call a model for outputs and targets, and its own loss of these.

    Args:
        function: The private model.
        source: The data.
        forward: How the model is called, if the user defined it.

    Returns:
        None where the model's output has no loss.
    """
    batch = source.some(_SAMPLES)
    if batch is None or own_loss_of(function.raw(batch, forward)) is None:
        return None
    parts = [batch]
    if batch_size(batch) > 2:
        parts += [cut(batch, 0, batch_size(batch) // 2), cut(batch, 1, batch_size(batch))]
    for adapt, loss in _candidates(function.raw(batch, forward), split(batch)[1]):
        candidate = _adapted(adapt, forward), recognise(loss)
        if all(_is_same(function, part, forward, *candidate) for part in parts):
            return candidate
    return _as_value(forward), OwnLoss(_judge(function, batch, forward))


def _candidates(output: Any, labels: Any) -> Iterator[tuple[Adapt, nn.Module]]:
    """Yield losses of logits that the shapes allow."""
    logits = getattr(output, "logits", None)
    if not isinstance(logits, torch.Tensor) or not isinstance(labels, torch.Tensor):
        return
    if not labels.is_floating_point() and logits.ndim == labels.ndim + 1:
        cross_entropy = nn.CrossEntropyLoss()
        if logits.ndim == 3:
            yield lambda z, y: (z[:, :-1].transpose(1, 2), y[:, 1:]), cross_entropy
        yield lambda z, y: (z.movedim(-1, 1), y), cross_entropy
    elif labels.is_floating_point() and logits.numel() == labels.numel():
        yield lambda z, y: (z.reshape(y.shape), y), nn.MSELoss()
        yield lambda z, y: (z.reshape(y.shape), y), nn.BCEWithLogitsLoss()


def _adapted(adapt: Adapt, forward: Forward | None) -> Forward:
    def outputs_and_targets(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return adapt(call_with_labels(model, batch, forward).logits, split(batch)[1])

    return outputs_and_targets


def _as_value(forward: Forward | None) -> Forward:
    def value_of_each(model: nn.Module, batch: Any) -> tuple[torch.Tensor, None]:
        value = own_loss_of(call_with_labels(model, batch, forward))
        assert value is not None
        return value.expand(batch_size(batch)), None

    return value_of_each


def _is_same(
    function: ModelFunction, batch: Any, given: Forward | None, forward: Forward, loss: Loss
) -> bool:
    """Whether a candidate has the value and gradient of the model's own loss on a batch."""
    with torch.enable_grad():
        own = own_loss_of(function.raw(batch, given))
        assert own is not None
        outputs, targets = function.with_forward(forward).plainly(batch)
        amount = loss.amount(outputs, targets)
        if not amount:
            return bool(own.isnan())
        other = loss.total(outputs, targets) / amount
    leaves = list(function.leaves.values())
    first, second = (
        torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        for value in (own, other)
    )
    eps = torch.finfo(own.dtype).eps * _SAME
    largest = max(float(slope.abs().max()) for slope in first)
    return torch.allclose(own, other.to(own), rtol=eps, atol=eps) and all(
        torch.allclose(a, b, rtol=0.0, atol=eps * largest)
        for a, b in zip(first, second, strict=True)
    )


def _judge(function: ModelFunction, batch: Any, forward: Forward | None) -> str:
    """Return whether a model's own loss is the mean or sum of its samples', or neither."""
    count = batch_size(batch)
    kinds: set[str] = {"mean", "sum"} if count > 1 else set()

    def value(start: int, stop: int) -> torch.Tensor:
        found = own_loss_of(function.raw(cut(batch, start, stop), forward))
        return torch.tensor(torch.nan, device="cpu") if found is None else found.detach().double()

    for middle in {1, count // 2, count - 1} if kinds else ():
        whole, first, second = value(0, count), value(0, middle), value(middle, count)
        scale = max(float(x.abs()) for x in (whole, first, second))
        tolerance = _SAME * scale * torch.finfo(next(iter(function.leaves.values())).dtype).eps
        if not abs(whole - (middle * first + (count - middle) * second) / count) <= tolerance:
            kinds.discard("mean")
        if not abs(whole - first - second) <= tolerance:
            kinds.discard("sum")
    return kinds.pop() if len(kinds) == 1 else "whole"

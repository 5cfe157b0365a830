"""The loss of a model on a batch as the user trains it: the given one, or the model's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import nan
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.batches import batch_size, cut, split
from hyperribbon.operators.risk.data import Source
from hyperribbon.operators.risk.forward import Forward, call, call_with_labels, own_loss_of
from hyperribbon.operators.risk.loss import Loss, additive_kinds
from hyperribbon.operators.risk.model import ModelFunction
from hyperribbon.operators.risk.torch_losses import recognise


class Objective:
    """The loss on a batch of a live model, in the mode it is in.

    `hr.Risk` measures the same objective at fixed weights; this one is for training and evaluation.

    Args:
        loss: A callable (outputs, targets) -> number, which gets the outputs as the model returns
            them; None for the loss that the model's output has.
        forward: forward(model, batch) -> outputs or (outputs, targets), for models that are called
            differently.
    """

    def __init__(self, loss: Any = None, forward: Forward | None = None) -> None:
        if loss is not None and not callable(loss):
            reason = "expected a function of outputs and targets"
            raise ArgumentError("loss", loss, reason, "Give a loss such as nn.CrossEntropyLoss().")
        self._loss: Any = loss
        self._forward = forward

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the objective of a batch, the loss, differentiable in the model's weights.

        Raises:
            ArgumentError: No loss is given and the model's output does not have one.
        """  # noqa: DOC501 - no_own_loss() returns one
        if self._loss is not None:
            return self.value(*call(model, batch, self._forward))
        value = own_loss_of(call_with_labels(model, batch, self._forward))
        if value is None:
            raise no_own_loss(model)
        return value

    def value(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the objective's loss of outputs; where it fails on targets, say which would fit.

        Raises an ArgumentError for a loss of torch.nn whose targets have the wrong shape or kind.
        """  # noqa: DOC501 - the error of the loss passes through
        try:
            return self._loss(outputs, targets)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            if isinstance(outputs, torch.Tensor):
                recognise(self._loss).check(outputs, targets)
            raise

    def outputs(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """Return what the objective is computed from: the model's outputs, and the targets."""
        return call(model, batch, self._forward)


def at_weights(
    model: nn.Module, call: Callable[[nn.Module, Any], Any]
) -> Callable[[Mapping[str, torch.Tensor], Any], Any]:
    """Return an objective (model, batch) as a function of the model's tensors and the batch."""
    bound = _Bound(model, call)

    def function(weights: Mapping[str, torch.Tensor], batch: Any) -> Any:
        named = {f"model.{name}": tensor for name, tensor in weights.items()}
        return functional_call(bound, named, (batch,))

    return function


class _Bound(nn.Module):
    """A model with the way it is called, as a module of the batch."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.model, self._call = model, call

    def forward(self, batch: Any) -> Any:
        return self._call(self.model, batch)


def no_own_loss(model: nn.Module) -> ArgumentError:
    """Return the error of an objective without a loss: the model does not compute one."""
    reason = f"the output of {type(model).__name__} has no loss of its own (.loss)"
    return ArgumentError("loss", None, reason, "Give loss=, such as nn.CrossEntropyLoss().")


_SAMPLES = 16  # real samples on which candidates are compared
_SAME = 1e2  # rounding errors by which two evaluations of one loss may differ
Adapt = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class OwnLoss(Loss):
    """The model's own loss, whose outputs are that value once per sample.

    Attributes:
        reduction: "mean" or "sum" where the loss adds up over samples, else "whole".
    """

    is_curved = False

    def __init__(self, reduction: str) -> None:
        self.reduction = reduction

    def __repr__(self) -> str:
        return "the model's own loss"

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the objective of a model with its own loss, times the samples unless a sum."""
        return outputs.mean() if self.reduction == "sum" else outputs.sum()

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of samples of an objective that is the model's own loss."""
        return float(len(outputs))

    def check_factored(self, matrix: str) -> None:
        """Raise: an objective that is the model's own loss is no function of the outputs.

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
    """Return as objective how to call a model for outputs and targets, and its own loss.

    Args:
        function: The private model.
        source: The data.
        forward: How the model is called, if the user defined it.

    Returns:
        None where the model's output has no loss.
    """
    batch = source.some(_SAMPLES)
    if batch is None or own_loss_of(function.evaluate_with_labels(batch, forward)) is None:
        return None
    parts = [batch]
    if batch_size(batch) > 2:
        parts += [cut(batch, 0, batch_size(batch) // 2), cut(batch, 1, batch_size(batch))]
    for adapt, loss in _candidates(function.evaluate_with_labels(batch, forward), split(batch)[1]):
        candidate = _adapt(adapt, forward), recognise(loss)
        if all(_is_same(function, part, forward, *candidate) for part in parts):
            return candidate
    return _as_value(forward), OwnLoss(_judge(function, batch, forward))


def _candidates(output: Any, labels: Any) -> Iterator[tuple[Adapt, nn.Module]]:
    """Yield the losses of logits that may be a model's own objective, by the shapes."""
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


def _adapt(adapt: Adapt, forward: Forward | None) -> Forward:
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
    """Whether a candidate objective has value and gradient of the model's own loss on a batch."""
    with torch.enable_grad():
        own = own_loss_of(function.evaluate_with_labels(batch, given))
        assert own is not None
        outputs, targets = function.with_forward(forward).evaluate(batch)
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
    """Return whether an objective, a model's own loss, is a mean, a sum or neither."""
    count = batch_size(batch)
    kinds: set[str] = {"mean", "sum"} if count > 1 else set()

    def value(start: int, stop: int) -> float:
        found = own_loss_of(function.evaluate_with_labels(cut(batch, start, stop), forward))
        return nan if found is None else float(found.detach())

    for middle in {1, count // 2, count - 1} if kinds else ():
        parts, sizes = (value(0, middle), value(middle, count)), (middle, count - middle)
        rounding = _SAME * torch.finfo(function.dtype).eps
        kinds &= additive_kinds(value(0, count), parts, sizes, rounding)
    return kinds.pop() if len(kinds) == 1 else "whole"

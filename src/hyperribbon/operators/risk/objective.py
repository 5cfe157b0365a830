"""The objective of a training: the loss of a model on a batch, as the user trains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.calling import Forward, call, call_with_labels, own_loss_of
from hyperribbon.operators.risk.losses.recognition import recognise

__all__ = ["Objective", "at_weights", "no_own_loss"]


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
        """Return the loss of a batch, differentiable in the model's weights.

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
        """Return the loss of outputs; where it fails on targets that do not fit, say which would.

        Raises an ArgumentError for a loss of torch.nn whose targets have the wrong shape or kind.
        """  # noqa: DOC501 - the error of the loss passes through
        try:
            return self._loss(outputs, targets)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            if isinstance(outputs, torch.Tensor):
                recognise(self._loss).check(outputs, targets)
            raise

    def outputs(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """Return the model's outputs on a batch as it returns them, and the batch's targets."""
        return call(model, batch, self._forward)


def at_weights(
    model: nn.Module, call: Callable[[nn.Module, Any], Any]
) -> Callable[[Mapping[str, torch.Tensor], Any], Any]:
    """Return call(model, batch) as a function of the model's tensors, by name, and of the batch."""
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
    """Return the error of a model that has to be given a loss."""
    reason = f"the output of {type(model).__name__} has no loss of its own (.loss)"
    return ArgumentError("loss", None, reason, "Give loss=, such as nn.CrossEntropyLoss().")

"""Recognises losses, so that those with closed forms use them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.cross_entropy import CrossEntropy
from hyperribbon.operators.risk.losses import BinaryCrossEntropy, CallableLoss, Loss, SquaredError

__all__ = ["recognise"]


def recognise(loss: Any) -> Loss:
    """Return a loss as a sum over samples.

    Args:
        loss: A torch.nn loss, its functional form (also as a `functools.partial`), or any
            callable (outputs, targets) -> number that is a mean or a sum over samples.

    Raises:
        ArgumentError: It is not callable or has reduction "none".
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss):
        raise ArgumentError(
            "loss", loss, "it is not a function of outputs and targets", "Give nn.MSELoss()."
        )
    module = _as_module(loss)
    reduction = getattr(module, "reduction", "mean")
    if reduction not in ("mean", "sum"):
        raise ArgumentError(
            "loss", loss, f"it has reduction={reduction!r}", "Use reduction='mean' or 'sum'."
        )
    if type(module) is nn.CrossEntropyLoss:
        return CrossEntropy(module)
    if type(module) is nn.MSELoss:
        return SquaredError(module.reduction)
    if type(module) is nn.BCEWithLogitsLoss and _broadcasts_over_samples(module):
        return BinaryCrossEntropy(module)
    return CallableLoss(loss)


def _as_module(loss: Any) -> Any:
    """Return the torch.nn loss that a functional form stands for, else the loss itself."""
    function, keywords = loss, {}
    if isinstance(loss, partial) and not loss.args:
        function, keywords = loss.func, loss.keywords
    modules = {
        F.cross_entropy: nn.CrossEntropyLoss,
        F.mse_loss: nn.MSELoss,
        F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    }
    try:
        module = modules.get(function)
    except TypeError:
        return loss
    return loss if module is None else module(**keywords)


def _broadcasts_over_samples(module: nn.BCEWithLogitsLoss) -> bool:
    weight = module.weight
    return weight is None or weight.ndim == 0 or (weight.ndim > 1 and weight.shape[0] == 1)

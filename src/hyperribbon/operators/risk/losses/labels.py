"""The negative log-likelihood of labels, and checks of labels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.losses.base import Loss, wide

__all__ = ["NLLLoss", "check_labels", "label_amount"]


class NLLLoss(Loss):
    """−Σ w_y f_y of log-probabilities f (n, C, …), linear in them."""

    is_curved = False

    def __init__(self, module: nn.NLLLoss) -> None:
        self.reduction = module.reduction
        self._weight, self._ignored = module.weight, module.ignore_index

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when a label names no class or shapes differ."""
        check_labels("NLLLoss", outputs, targets, self._ignored)

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return −Σ w_y f_y."""
        outputs = wide(outputs)
        weight = None if self._weight is None else self._weight.to(outputs)
        return F.nll_loss(
            outputs, targets.long(), weight=weight, ignore_index=self._ignored, reduction="sum"
        )

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the total weight of the labels."""
        return label_amount(targets, self._weight, self._ignored)


def check_labels(name: str, outputs: torch.Tensor, targets: Any, ignored: int | None) -> None:
    """Raise when integer labels (n, …) do not fit outputs (n, C, …).

    Args:
        name: Of the loss.
        outputs: Of the model.
        targets: The labels.
        ignored: The label that counts for nothing.

    Raises:
        ArgumentError: The shapes do not fit, or a label names no class.
    """
    if outputs.ndim < 2 or not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        reason = f"{name} needs outputs (n, C, …), here {tuple(outputs.shape)}, and integer labels"
        remedy = (
            "Check both; targets are the last item of a batch or under 'labels', or returned by "
            "forward=."
        )
        raise ArgumentError("targets", targets, reason, remedy)
    expected = (outputs.shape[0], *outputs.shape[2:])
    if targets.shape != expected:
        given, classes = tuple(targets.shape), outputs.shape[-1]
        wanted = (*given[:1], classes if given == outputs.shape[:-1] else "C", *given[1:])
        reason = (
            f"the model returns shape {tuple(outputs.shape)} but {name} expects "
            f"({', '.join(map(str, wanted))}) for targets {given}"
        )
        remedy = (
            "Use loss=None where the model has a loss of its own, or move the class axis: "
            "loss=lambda z, y: F.cross_entropy(z.transpose(1, 2), y)."
        )
        raise ArgumentError("loss", name, reason, remedy)
    kept = targets if ignored is None else targets[targets != ignored]
    classes = outputs.shape[1]
    if kept.numel() and (int(kept.min()) < 0 or int(kept.max()) >= classes):
        wrong = kept[(kept < 0) | (kept >= classes)][0]
        reason = f"a label is out of range: the model has {classes} outputs"
        raise ArgumentError("targets", int(wrong), reason, f"Labels run from 0 to {classes - 1}.")


def label_amount(targets: torch.Tensor, weight: torch.Tensor | None, ignored: int) -> float:
    """Return the total weight of the labels that count."""
    kept = targets[targets != ignored].long()
    if weight is None:
        return float(kept.numel())
    return float(weight.to(kept.device)[kept].sum(dtype=torch.float64))

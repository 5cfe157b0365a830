"""Losses of labels that are linear or quadratic in the outputs, and checks of labels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.losses.base import Loss, no_root, wide, zero_rows
from hyperribbon.operators.risk.losses.elementwise import Elementwise

__all__ = [
    "Divergence",
    "LogLikelihood",
    "MultiLabelMargin",
    "MultiMargin",
    "check_labels",
    "label_amount",
]


class LogLikelihood(Loss):
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


class Divergence(Elementwise):
    """Σ y (log y − f) of log-probabilities f, linear in them; y may be given as its logarithm."""

    is_curved = False

    def __init__(self, module: nn.KLDivLoss) -> None:
        super().__init__(module)
        self._by_samples = module.reduction == "batchmean"
        self._is_log = module.log_target
        self.reduction = "mean" if self._by_samples else module.reduction

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of samples, or of elements."""
        return float(len(outputs) if self._by_samples else outputs.numel())

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return Σ y (log y − f)."""
        return F.kl_div(outputs, targets, reduction="sum", log_target=self._is_log)


class MultiMargin(Loss):
    """(w_y/C) Σ_{c≠y} max(0, margin − f_y + f_c)^p of outputs (n, C), with p = 1 or 2."""

    def __init__(self, module: nn.MultiMarginLoss) -> None:
        self.reduction = module.reduction
        self._weight, self._margin = module.weight, float(module.margin)
        self._power = int(module.p)
        self.is_convex = self._weight is None or bool((self._weight >= 0).all())

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when outputs are not (n, C) or a label names no class."""
        check_labels("MultiMarginLoss", outputs, targets, None)
        if outputs.ndim != 2:
            raise ArgumentError(
                "model", outputs, "MultiMarginLoss takes outputs (n, C)", "Return that shape."
            )

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the summed loss."""
        outputs = wide(outputs)
        excess = self._excess(outputs, targets).pow(self._power).sum(1)
        return (self._scale(outputs, targets) * excess).sum()

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of samples."""
        return float(len(outputs))

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return √(2w_y/C)·(e_c − e_y) of the classes c within the margin, for p = 2.

        Raises:
            ArgumentError: A class weight is negative.
        """  # noqa: DOC501 - no_root() returns one
        if self._power == 1:
            return zero_rows(outputs)
        f = wide(outputs)
        scale = 2 * self._scale(f, targets)
        if bool((scale < 0).any()):
            raise no_root(self)
        within = scale.sqrt().unsqueeze(1) * (self._excess(f, targets) > 0)
        rows = torch.diag_embed(within).transpose(0, 1)
        own = targets.long().expand(len(rows), -1).unsqueeze(2)
        return rows.scatter_add(2, own, -within.T.unsqueeze(2)).to(outputs.dtype)

    def _excess(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return max(0, margin − f_y + f_c), zero at c = y, (n, C)."""
        own = targets.long().unsqueeze(1)
        excess = (self._margin - outputs.gather(1, own) + outputs).clamp(min=0)
        return excess.scatter(1, own, 0.0)

    def _scale(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        ones = torch.ones_like(outputs[:, 0]) / outputs.shape[1]
        return ones if self._weight is None else ones * self._weight.to(outputs)[targets.long()]


class MultiLabelMargin(Loss):
    """(1/C) Σ_j Σ_c max(0, 1 − f_j + f_c) over labels j and other classes c of outputs (n, C).

    The labels of a sample are the integers of its row of targets (n, C) before the first −1.
    """

    is_curved = False

    def __init__(self, module: nn.MultiLabelMarginLoss) -> None:
        self.reduction = module.reduction

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when targets are not rows of labels."""
        fits = (
            isinstance(targets, torch.Tensor)
            and not targets.is_floating_point()
            and targets.shape == outputs.shape
            and outputs.ndim == 2
        )
        if not fits or bool(((targets < -1) | (targets >= outputs.shape[-1])).any()):
            reason = (
                f"MultiLabelMarginLoss takes outputs (n, C), here {tuple(outputs.shape)}, and rows "
                "of C labels, filled up with −1"
            )
            raise ArgumentError("targets", targets, reason, "Check both.")

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the summed loss."""
        outputs, targets = wide(outputs), targets.long()
        listed = (targets >= 0).cumprod(1)
        places = targets.clamp(min=0)
        others = torch.zeros_like(outputs).scatter_add(1, places, listed.to(outputs.dtype)) == 0
        total = outputs.new_zeros(())
        for place, here in zip(places.split(1, 1), listed.split(1, 1), strict=True):
            if not bool(here.any()):
                break
            excess = (1 - outputs.gather(1, place) + outputs).clamp(min=0)
            total = total + (excess * (others & (here > 0))).sum()
        return total / outputs.shape[1]

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of samples."""
        return float(len(outputs))


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
        reason = f"outputs of shape {tuple(outputs.shape)} need labels of shape {expected}"
        remedy = "The class axis is the second one; transpose in forward= if it is the last."
        raise ArgumentError("targets", targets, reason, remedy)
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

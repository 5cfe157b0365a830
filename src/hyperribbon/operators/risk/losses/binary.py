"""Losses of two-valued targets, sums over the elements of the outputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.losses.base import wide
from hyperribbon.operators.risk.losses.elementwise import Elementwise

__all__ = [
    "BinaryCrossEntropy",
    "HingeEmbedding",
    "MultiLabelSoftMargin",
    "ProbabilityCrossEntropy",
    "SoftMargin",
]


class BinaryCrossEntropy(Elementwise):
    """Cross-entropy of independent sigmoids, with optional weights."""

    def __init__(self, module: nn.BCEWithLogitsLoss) -> None:
        super().__init__(module)
        self._weight, self._positive = module.weight, module.pos_weight
        self.is_convex = all(
            weight is None or bool((weight >= 0).all()) for weight in (self._weight, self._positive)
        )

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when shapes differ, or a weight belongs to single samples."""
        super().check(outputs, targets)
        for weight in (self._weight, self._positive):
            _check_shared(weight, outputs)

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the summed binary cross-entropy."""
        return F.binary_cross_entropy_with_logits(
            outputs,
            targets,
            weight=None if self._weight is None else self._weight.to(outputs),
            pos_weight=None if self._positive is None else self._positive.to(outputs),
            reduction="sum",
        )

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return w·((1 − y)·σ(f) − pos_weight·y·σ(−f)), exact where σ rounds to one."""
        f = wide(outputs)
        y = targets.to(f.dtype)
        positive = y if self._positive is None else y * self._positive.to(f)
        slope = (1 - y) * torch.sigmoid(f) - positive * torch.sigmoid(-f)
        slope = slope if self._weight is None else slope * self._weight.to(f)
        return slope.to(outputs.dtype)

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return w·(1 + (pos_weight − 1)·y)·σ(f)σ(−f)."""
        second = torch.sigmoid(outputs) * torch.sigmoid(-outputs)
        if self._positive is not None:
            second = second * (1 + (self._positive.to(outputs) - 1) * targets)
        return second if self._weight is None else second * self._weight.to(outputs)


class ProbabilityCrossEntropy(Elementwise):
    """Binary cross-entropy −y log p − (1 − y) log(1 − p) of outputs that are probabilities p."""

    def __init__(self, module: nn.BCELoss) -> None:
        super().__init__(module)
        self._weight = module.weight
        self.is_convex = self._weight is None or bool((self._weight >= 0).all())

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when shapes differ, or where the loss is infinite and torch cuts it off."""
        super().check(outputs, targets)
        _check_shared(self._weight, outputs)
        remedy = "Return logits and use BCEWithLogitsLoss, which is exact there too."
        if bool(((outputs < 0) | (outputs > 1)).any()):
            raise ArgumentError(
                "model", outputs, "BCELoss takes probabilities, and some are not", remedy
            )
        if bool((((outputs == 0) & (targets > 0)) | ((outputs == 1) & (targets < 1))).any()):
            reason = "a probability is exactly 0 or 1 against its target, where BCELoss is infinite"
            raise ArgumentError("model", outputs, reason, remedy)

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the summed binary cross-entropy."""
        weight = None if self._weight is None else self._weight.to(outputs)
        return F.binary_cross_entropy(outputs, targets, weight=weight, reduction="sum")

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return w·(y/p² + (1 − y)/(1 − p)²)."""
        targets = targets.to(outputs.dtype)
        second = torch.where(targets > 0, targets / outputs.square(), 0)
        second = second + torch.where(targets < 1, (1 - targets) / (1 - outputs).square(), 0)
        return second if self._weight is None else second * self._weight.to(outputs)


class SoftMargin(Elementwise):
    """Σ log(1 + e^(−yf)) of targets ±1."""

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the summed loss."""
        return -F.logsigmoid(targets * outputs).sum()

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return y²σ(yf)σ(−yf)."""
        margin = outputs * targets
        return torch.sigmoid(margin) * torch.sigmoid(-margin) * targets * targets


class HingeEmbedding(Elementwise):
    """Distances f of pairs: f where y = 1 and max(0, margin − f) where y = −1."""

    is_curved = False

    def __init__(self, module: nn.HingeEmbeddingLoss) -> None:
        super().__init__(module)
        self._margin = float(module.margin)

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the summed loss."""
        return F.hinge_embedding_loss(outputs, targets, margin=self._margin, reduction="sum")


class MultiLabelSoftMargin(Elementwise):
    """Binary cross-entropy of sigmoids, averaged over the last axis of outputs (n, …, C)."""

    def __init__(self, module: nn.MultiLabelSoftMarginLoss) -> None:
        super().__init__(module)
        self._weight = module.weight
        self.is_convex = self._weight is None or bool((self._weight >= 0).all())

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when shapes differ, there is no axis of labels, or weights are of samples."""
        super().check(outputs, targets)
        if outputs.ndim < 2:
            raise ArgumentError(
                "model", outputs, "its outputs have no axis of labels", "Return shape (n, C)."
            )
        _check_shared(self._weight, outputs)

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of averages over labels."""
        return outputs.numel() / outputs.shape[-1]

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the summed averages."""
        weight = None if self._weight is None else self._weight.to(outputs)
        return F.multilabel_soft_margin_loss(outputs, targets, weight=weight, reduction="sum")

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return w·σ(f)σ(−f)/C."""
        second = torch.sigmoid(outputs) * torch.sigmoid(-outputs) / outputs.shape[-1]
        return second if self._weight is None else second * self._weight.to(outputs)


def _check_shared(weight: torch.Tensor | None, outputs: torch.Tensor) -> None:
    """Raise when weights are not the same for every sample."""
    if weight is None or weight.ndim < outputs.ndim or (weight.ndim and weight.shape[0] == 1):
        return
    raise ArgumentError(
        "loss",
        weight,
        "its weights belong to single samples, so they would not follow the samples when the data "
        "are cut",
        "Put the weights beside the targets: data=(x, (y, w)) and "
        "loss=lambda f, t: F.mse_loss(f, t[0], weight=t[1], reduction='sum').",
    )

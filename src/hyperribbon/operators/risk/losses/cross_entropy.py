"""Cross-entropy in closed form: from the softmax, in pieces that bound the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.losses import softmax
from hyperribbon.operators.risk.losses.base import Loss, no_root, wide
from hyperribbon.operators.risk.losses.labels import check_labels, label_amount

__all__ = ["CrossEntropyLoss"]

_PIECE = 1 << 23  # entries of outputs that are worked on together


class CrossEntropyLoss(Loss):
    """Cross-entropy with class weights, label smoothing and an ignored index.

    With target distributions q (weights and smoothing included) the loss is −Σ_c q_c log p_c, its
    gradient p·Σq − q and its curvature Σq·(diag p − ppᵀ).
    """

    def __init__(self, module: nn.CrossEntropyLoss) -> None:
        self.reduction = module.reduction
        self._weight, self._ignored = module.weight, module.ignore_index
        self._smoothing = module.label_smoothing
        self.is_convex = self._weight is None or bool((self._weight >= 0).all())

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when a label names no class or shapes differ."""
        if not isinstance(targets, torch.Tensor) or not targets.is_floating_point():
            check_labels("CrossEntropyLoss", outputs, targets, self._ignored)
        elif targets.shape != outputs.shape or outputs.ndim < 2:
            reason = f"probabilities must have the outputs' shape {tuple(outputs.shape)}"
            remedy = "Give integer labels or one probability per class, along the second axis."
            raise ArgumentError("targets", targets, reason, remedy)
        elif self._ignored >= 0:
            reason = "targets that are probabilities have no index to ignore"
            remedy = "Give integer labels, or leave out ignore_index."
            raise ArgumentError("loss", f"ignore_index={self._ignored}", reason, remedy)

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the summed cross-entropy."""
        outputs = wide(outputs)
        return F.cross_entropy(
            outputs,
            targets.to(outputs.dtype) if targets.is_floating_point() else targets.long(),
            weight=self._class_weight(outputs),
            ignore_index=self._ignored,
            label_smoothing=self._smoothing,
            reduction="sum",
        )

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the total weight of the labels, or the number of target distributions."""
        if targets.is_floating_point():
            return outputs.numel() / outputs.shape[1]
        return label_amount(targets, self._weight, self._ignored)

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return p·Σq − q."""
        p = softmax.probabilities(outputs)
        return softmax.residual(p, self._masses(wide(outputs), targets)).to(outputs.dtype)

    def curvature(self, outputs: torch.Tensor, targets: Any, block: torch.Tensor) -> torch.Tensor:
        """Return Σq·(diag p − ppᵀ) u, a few samples and positions at a time.

        Beside the result nothing as large as the outputs is made: for a vocabulary of 50,000
        classes these are what fills the memory.
        """
        mass = self._total_mass(wide(outputs), targets)
        result = torch.empty_like(block)
        for part in _pieces(outputs, len(block)):
            some = (slice(None), *part)
            p = softmax.probabilities(outputs[part])
            result[some] = mass[part] * softmax.covariance_product(p, block[some])
        return result

    def curving(self, outputs: torch.Tensor, targets: Any) -> Callable[..., torch.Tensor]:
        """Return `curvature` as a function of the block alone; small outputs keep their softmax."""
        if outputs.numel() > _PIECE:
            return super().curving(outputs, targets)
        p, mass = softmax.probabilities(outputs), self._total_mass(wide(outputs), targets)
        top = p.argmax(1, keepdim=True)

        def curvature(block: torch.Tensor) -> torch.Tensor:
            if block.numel() > _PIECE:
                return self.curvature(outputs, targets, block)
            return (mass * softmax.covariance_product(p, block, top)).to(block.dtype)

        return curvature

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return √Σq·√p_j (e_j − p), one row per class and position.

        Raises:
            ArgumentError: A sample's total mass is negative.
        """  # noqa: DOC501 - no_root() returns one
        mass = self._total_mass(wide(outputs), targets)
        if bool((mass < 0).any()):
            raise no_root(self)
        rows = mass.sqrt() * softmax.covariance_root(softmax.probabilities(outputs))
        return softmax.one_position_each(rows.to(outputs.dtype))

    def _class_weight(self, outputs: torch.Tensor) -> torch.Tensor | None:
        return None if self._weight is None else self._weight.to(outputs)

    def _total_mass(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return Σq over the classes, (n, 1, …)."""
        if targets.is_floating_point():
            return self._masses(outputs, targets).sum(1, keepdim=True)
        kept = targets != self._ignored
        mass = kept.to(outputs.dtype)
        weight = self._class_weight(outputs)
        if weight is not None:
            own = weight[targets.where(kept, 0).long()]
            mass = mass * ((1 - self._smoothing) * own + self._smoothing * weight.mean())
        return mass.unsqueeze(1)

    def _masses(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return q (n, C, …): target distributions with smoothing and weights."""
        classes = outputs.shape[1]
        if targets.is_floating_point():
            present = 1.0
            masses = targets.to(outputs)
        else:
            kept = targets != self._ignored
            present = kept.unsqueeze(1).to(outputs.dtype)
            masses = softmax.one_hot(targets.where(kept, 0).long(), outputs) * present
        if self._smoothing:
            masses = (1 - self._smoothing) * masses + self._smoothing * present / classes
        weight = self._class_weight(outputs)
        if weight is not None:
            masses = masses * weight.reshape(1, -1, *(1,) * (outputs.ndim - 2))
        return masses


def _pieces(outputs: torch.Tensor, rows: int) -> Iterator[tuple[slice, ...]]:
    """Yield parts of outputs (n, C, …) of about `_PIECE` entries: samples, and positions of one."""
    sample = max(1, rows * outputs[0].numel())
    samples = max(1, _PIECE // sample)
    positions = outputs.shape[2] if outputs.ndim > 2 else 1
    step = positions if samples > 1 else max(1, positions * _PIECE // sample)
    for start in range(0, len(outputs), samples):
        part = slice(start, start + samples)
        if step >= positions:
            yield (part,)
            continue
        for first in range(0, positions, step):
            yield part, slice(None), slice(first, first + step)

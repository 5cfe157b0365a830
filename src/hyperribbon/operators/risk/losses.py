"""Losses as sums over samples: value, gradient, curvature and its root in the outputs.

A loss of reduction "mean" is Σ/amount with one amount for all the data (the number of samples, of
elements, or the total class weight), never an average of batch averages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError

__all__ = ["BinaryCrossEntropy", "CallableLoss", "Loss", "SquaredError", "one_element_each"]


class Loss(ABC):
    """A loss Σ_n ℓ(f_n, y_n)/amount of outputs f (n, …).

    Attributes:
        reduction: "mean", or "sum" for which the amount is one.
        is_convex: Whether the loss is known to be convex in the outputs.
    """

    reduction: str = "mean"
    is_convex: bool = True

    @abstractmethod
    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return Σ_n ℓ(f_n, y_n), differentiable in the outputs."""

    @abstractmethod
    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return what this batch adds to the divisor of a mean."""

    def check(self, outputs: torch.Tensor, targets: Any) -> None:  # noqa: B027
        """Raise when the targets do not fit the outputs."""

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return ∂ℓ/∂f, shaped like the outputs."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            total = self.total(leaf, targets)
            return torch.autograd.grad(total, leaf, materialize_grads=True)[0]

    def curvature(self, outputs: torch.Tensor, targets: Any, block: torch.Tensor) -> torch.Tensor:
        """Return ∂²ℓ/∂f² u for a block u (k, n, …)."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            (slope,) = torch.autograd.grad(
                self.total(leaf, targets), leaf, create_graph=True, materialize_grads=True
            )
            if not slope.requires_grad:
                return torch.zeros_like(block)
            rows = [
                torch.autograd.grad(slope, leaf, u, retain_graph=True, materialize_grads=True)[0]
                for u in block
            ]
        return torch.stack(rows)

    def curving(self, outputs: torch.Tensor, targets: Any) -> Callable[..., torch.Tensor]:
        """Return `curvature` as a function of the block alone, for many blocks."""
        return partial(self.curvature, outputs, targets)

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return rows R (m, n, …) with Σ_j R_j R_jᵀ = ∂²ℓ_n/∂f_n² for every sample n.

        Raises:
            ArgumentError: The loss is not convex in the outputs.
        """
        count, size = len(outputs), outputs[0].numel()
        units = torch.eye(size, dtype=outputs.dtype, device=outputs.device)
        units = units.reshape(size, 1, *outputs.shape[1:]).expand(size, *outputs.shape)
        curved = self.curvature(outputs, targets, units).reshape(size, count, size).transpose(0, 1)
        values, vectors = torch.linalg.eigh((curved + curved.mT) / 2)
        largest = values.abs().amax(1, keepdim=True)
        rounding = size * torch.finfo(values.dtype).eps * 10
        if bool((values < -rounding * largest).any()):
            raise ArgumentError(
                "loss",
                self,
                "it is not convex in the outputs, so its Gauss-Newton matrix has no real root",
                "Use products (method='lanczos') instead of the Gram matrix.",
            )
        rows = (vectors * values.clamp(min=0).sqrt().unsqueeze(1)).permute(2, 0, 1)
        return rows.reshape(size, *outputs.shape)


class _Elementwise(Loss):
    """A loss that is a sum over the elements of the outputs."""

    def __init__(self, reduction: str) -> None:
        self.reduction = reduction

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when outputs and targets differ in shape (torch would broadcast them)."""
        if not isinstance(targets, torch.Tensor) or targets.shape != outputs.shape:
            raise ArgumentError(
                "targets",
                targets,
                f"the outputs have shape {tuple(outputs.shape)}",
                "Give targets of the same shape.",
            )

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of elements."""
        return float(outputs.numel())

    @abstractmethod
    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the second derivative of every element."""

    def curvature(self, outputs: torch.Tensor, targets: Any, block: torch.Tensor) -> torch.Tensor:
        """Return the second derivatives times u."""
        return self.second(outputs, targets) * block

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the square roots of the second derivatives, one row an element."""
        return one_element_each(self.second(outputs, targets).sqrt())


class SquaredError(_Elementwise):
    """Σ (f − y)², whose curvature is 2."""

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return Σ (f − y)²."""
        return F.mse_loss(outputs, targets.to(outputs.dtype), reduction="sum")

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return 2(f − y)."""
        return 2 * (outputs - targets)

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return 2."""
        return torch.full_like(outputs, 2.0)


class BinaryCrossEntropy(_Elementwise):
    """Cross-entropy of independent sigmoids, with optional weights."""

    def __init__(self, module: nn.BCEWithLogitsLoss) -> None:
        super().__init__(module.reduction)
        self._weight, self._positive = module.weight, module.pos_weight

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the summed binary cross-entropy."""
        return F.binary_cross_entropy_with_logits(
            outputs,
            targets.to(outputs.dtype),
            weight=None if self._weight is None else self._weight.to(outputs),
            pos_weight=None if self._positive is None else self._positive.to(outputs),
            reduction="sum",
        )

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return w·(1 + (pos_weight − 1)·y)·σ(f)σ(−f)."""
        second = torch.sigmoid(outputs) * torch.sigmoid(-outputs)
        if self._positive is not None:
            second = second * (1 + (self._positive.to(outputs) - 1) * targets)
        return second if self._weight is None else second * self._weight.to(outputs)


class CallableLoss(Loss):
    """Any function loss(outputs, targets) that is a mean or a sum over samples."""

    is_convex = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.reduction = "undetermined"

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Find out whether the function is a mean or a sum, from the value on two halves.

        Raises:
            ArgumentError: It is neither, or it does not return one number.
        """
        value = self._function(outputs, targets)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise ArgumentError(
                "loss", value, "it does not return one number", "Use reduction='mean' or 'sum'."
            )
        if self.reduction != "undetermined":
            return
        count = len(outputs)
        declared = getattr(self._function, "reduction", None)
        if count < 2:
            self.reduction = declared if declared in ("mean", "sum") else "mean"
            return
        middle = (count + 1) // 2
        halves = [
            self._function(outputs[part], targets[part])
            for part in (slice(0, middle), slice(middle, count))
        ]
        mean = (middle * halves[0] + (count - middle) * halves[1]) / count
        tolerance = 1e3 * torch.finfo(outputs.dtype).eps
        scale = float(halves[0].abs() + halves[1].abs())
        if abs(float(value - mean)) <= tolerance * scale:
            self.reduction = "mean"
        elif abs(float(value - halves[0] - halves[1])) <= tolerance * scale:
            self.reduction = "sum"
        elif torch.isfinite(value).all():
            raise ArgumentError(
                "loss",
                self._function,
                "it is neither the mean nor the sum of its samples' losses",
                "Return the sum over samples (then batches add up), or use a torch.nn loss.",
            )

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the function's value, times the samples when it is a mean."""
        value = self._function(outputs, targets).squeeze()
        return value if self.reduction == "sum" else value * len(outputs)

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of samples."""
        return float(len(outputs))


def one_element_each(values: torch.Tensor) -> torch.Tensor:
    """Return rows (D, n, …) of which row j holds entry j of each sample's D values, else zero."""
    flat = values.reshape(len(values), -1)
    return torch.diag_embed(flat).transpose(0, 1).reshape(flat.shape[1], *values.shape)

"""Losses that are sums over the elements of the outputs, by their second derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.losses.base import Loss, no_root, one_element_each, wide, zero_rows

__all__ = ["BCELoss", "BCEWithLogitsLoss", "ElementwiseLoss", "KLDivLoss", "MSELoss"]

_FLAT = (nn.L1Loss, nn.KLDivLoss)


class ElementwiseLoss(Loss):
    """A loss Σ ℓ(f, y) over the elements of outputs f and targets y of one shape.

    ∂ℓ/∂f and ∂²ℓ/∂f² of each element follow from the sum by automatic differentiation.

    Args:
        module: The torch.nn loss; it is copied, and the copy returns sums.
    """

    def __init__(self, module: nn.Module) -> None:
        self.reduction = str(module.reduction)
        self.is_curved = not isinstance(module, _FLAT) and getattr(module, "beta", 1.0) > 0
        options = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        self._sum = type(module)()
        vars(self._sum).update({**options, "reduction": "sum"})
        self.weights = dict(module.named_buffers())
        self.is_convex = all(bool((weight >= 0).all()) for weight in self.weights.values())

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when outputs and targets differ in shape (torch would broadcast them)."""
        for weight in self.weights.values():
            _check_shared(weight, outputs)
        if isinstance(targets, torch.Tensor) and targets.shape == outputs.shape:
            if isinstance(self._sum, nn.PoissonNLLLoss) and bool((targets < 0).any()):
                remedy = "Use another loss for such targets."
                raise ArgumentError("targets", targets, "counts are not negative", remedy)
            return
        remedy = "Give targets of the same shape."
        if targets is None:
            remedy = "Give data with targets, or return them from forward=."
        elif isinstance(targets, torch.Tensor) and targets.numel() == outputs.numel():
            shape = -1, *targets.shape[1:]
            remedy = (
                f"Reshape one of them, for example the outputs: forward=lambda model, batch: "
                f"(model(batch[0]).reshape({', '.join(map(str, shape))}), batch[1])."
            )
        raise ArgumentError(
            "targets", targets, f"the outputs have shape {tuple(outputs.shape)}", remedy
        )

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of elements."""
        return float(outputs.numel())

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return Σ ℓ(f, y)."""
        outputs = wide(outputs)
        for name, weight in self.weights.items():
            self._sum.register_buffer(name, weight.to(outputs))
        return self._sum(outputs, targets.to(outputs.dtype))

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return ∂²ℓ/∂f² of every element, of a loss that is curved."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            total = self.total(leaf, targets)
            (slope,) = torch.autograd.grad(total, leaf, create_graph=True)
            return torch.autograd.grad(slope.sum(), leaf, materialize_grads=True)[0]

    def curvature(self, outputs: torch.Tensor, targets: Any, block: torch.Tensor) -> torch.Tensor:
        """Return the second derivatives times u."""
        if not self.is_curved:
            return torch.zeros_like(block)
        return (self.second(wide(outputs), targets) * block).to(block.dtype)

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the square roots of the second derivatives, one row per element.

        Raises:
            ArgumentError: One of them is negative.
        """  # noqa: DOC501 - no_root() returns one
        if not self.is_curved:
            return zero_rows(outputs)
        second = self.second(wide(outputs), targets)
        if bool((second < 0).any()):
            raise no_root(self)
        return one_element_each(second.sqrt().to(outputs.dtype))


class MSELoss(ElementwiseLoss):
    """Σ (f − y)², whose curvature is 2."""

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return 2(f − y)."""
        return (2 * (wide(outputs) - targets)).to(outputs.dtype)

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return 2."""
        return torch.full_like(outputs, 2.0)


class BCEWithLogitsLoss(ElementwiseLoss):
    """Cross-entropy of independent sigmoids, with optional weights; exact where σ rounds to one."""

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return w·((1 − y)·σ(f) − pos_weight·y·σ(−f))."""
        f = wide(outputs)
        y = targets.to(f.dtype)
        positive = y * self._weight("pos_weight", f)
        slope = (1 - y) * torch.sigmoid(f) - positive * torch.sigmoid(-f)
        return (slope * self._weight("weight", f)).to(outputs.dtype)

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return w·(1 + (pos_weight − 1)·y)·σ(f)σ(−f)."""
        second = torch.sigmoid(outputs) * torch.sigmoid(-outputs)
        second = second * (1 + (self._weight("pos_weight", outputs) - 1) * targets)
        return second * self._weight("weight", outputs)

    def _weight(self, name: str, like: torch.Tensor) -> torch.Tensor | float:
        return self.weights[name].to(like) if name in self.weights else 1.0


class BCELoss(ElementwiseLoss):
    """Binary cross-entropy of outputs that are probabilities."""

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when shapes differ, or where the loss is infinite and torch cuts it off."""
        super().check(outputs, targets)
        remedy = "Return logits and use BCEWithLogitsLoss, which is exact there too."
        if bool(((outputs < 0) | (outputs > 1)).any()):
            raise ArgumentError(
                "model", outputs, "BCELoss takes probabilities, and some are not", remedy
            )
        if bool((((outputs == 0) & (targets > 0)) | ((outputs == 1) & (targets < 1))).any()):
            reason = "a probability is exactly 0 or 1 against its target, where BCELoss is infinite"
            raise ArgumentError("model", outputs, reason, remedy)

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return w·(y/p² + (1 − y)/(1 − p)²)."""
        targets = targets.to(outputs.dtype)
        second = torch.where(targets > 0, targets / outputs.square(), 0)
        second = second + torch.where(targets < 1, (1 - targets) / (1 - outputs).square(), 0)
        return second * self.weights["weight"].to(outputs) if self.weights else second


class KLDivLoss(ElementwiseLoss):
    """Σ y (log y − f) of log-probabilities f, linear in them; y may be given as its logarithm."""

    def __init__(self, module: nn.KLDivLoss) -> None:
        super().__init__(module)
        self._per_sample = module.reduction == "batchmean"
        self.reduction = "mean" if self._per_sample else module.reduction

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of samples, or of elements."""
        return float(len(outputs) if self._per_sample else outputs.numel())


def _check_shared(weight: torch.Tensor, outputs: torch.Tensor) -> None:
    """Raise when weights are not the same for every sample."""
    if weight.ndim < outputs.ndim or (weight.ndim and weight.shape[0] == 1):
        return
    raise ArgumentError(
        "loss",
        weight,
        "its weights belong to single samples, so they would not follow the samples when the data "
        "are cut",
        "Put the weights beside the targets: data=(x, (y, w)) and "
        "loss=lambda f, t: F.mse_loss(f, t[0], weight=t[1], reduction='sum').",
    )

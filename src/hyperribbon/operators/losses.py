"""Losses as sums over samples: value, gradient, curvature and its root in the outputs.

A loss of reduction "mean" is Σ/amount with one amount for all the data (the number of samples, of
elements, or the total class weight), never an average of batch averages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators import softmax

__all__ = ["Loss", "recognise"]

_PIECE = 1 << 23  # entries of outputs that are worked on together


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


class CrossEntropy(Loss):
    """Cross-entropy with class weights, label smoothing and an ignored index.

    With target distributions q (weights and smoothing included) the loss is −Σ_c q_c log p_c, its
    gradient p·Σq − q and its curvature Σq·(diag p − ppᵀ).
    """

    def __init__(self, module: nn.CrossEntropyLoss) -> None:
        self.reduction = module.reduction
        self._weight, self._ignored = module.weight, module.ignore_index
        self._smoothing = module.label_smoothing

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when a label names no class or shapes differ."""
        classes = outputs.shape[1] if outputs.ndim > 1 else 0
        expected = (outputs.shape[0], *outputs.shape[2:])
        if outputs.ndim < 2 or not isinstance(targets, torch.Tensor):
            raise ArgumentError(
                "data", targets, "cross-entropy needs outputs (n, C, …) and targets", "Check both."
            )
        if targets.is_floating_point():
            if targets.shape != outputs.shape:
                raise ArgumentError(
                    "targets",
                    targets,
                    f"probabilities must have the outputs' shape {tuple(outputs.shape)}",
                    "Give integer labels or one probability a class.",
                )
            return
        if targets.shape != expected:
            raise ArgumentError(
                "targets",
                targets,
                f"outputs of shape {tuple(outputs.shape)} need labels of shape {expected}",
                "The class axis is the second one; transpose in forward= if it is the last.",
            )
        kept = targets[targets != self._ignored]
        if len(kept) and (int(kept.min()) < 0 or int(kept.max()) >= classes):
            wrong = kept[(kept < 0) | (kept >= classes)][0]
            raise ArgumentError(
                "targets",
                int(wrong),
                f"a label is out of range: the model has {classes} outputs",
                f"Labels run from 0 to {classes - 1}.",
            )

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the summed cross-entropy."""
        return F.cross_entropy(
            outputs,
            targets,
            weight=self._class_weight(outputs),
            ignore_index=self._ignored,
            label_smoothing=self._smoothing,
            reduction="sum",
        )

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the total weight of the labels, or the number of target distributions."""
        if targets.is_floating_point():
            return outputs.numel() / outputs.shape[1]
        kept = targets[targets != self._ignored]
        weight = self._class_weight(outputs)
        return float(len(kept)) if weight is None else float(weight[kept].sum())

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return p·Σq − q."""
        return softmax.residual(softmax.probabilities(outputs), self._masses(outputs, targets))

    def curvature(self, outputs: torch.Tensor, targets: Any, block: torch.Tensor) -> torch.Tensor:
        """Return Σq·(diag p − ppᵀ) u, a few samples and positions at a time.

        Beside the result nothing as large as the outputs is made: for a vocabulary of 50,000
        classes these are what fills the memory.
        """
        mass = self._total_mass(outputs, targets)
        result = torch.empty_like(block)
        for part in _pieces(outputs, len(block)):
            some = (slice(None), *part)
            p = softmax.probabilities(outputs[part])
            result[some] = mass[part] * softmax.covariance_product(p, block[some])
        return result

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return √Σq·√p_j (e_j − p), one row a class and a position."""
        mass = self._total_mass(outputs, targets)
        rows = mass.sqrt() * softmax.covariance_root(softmax.probabilities(outputs))
        return softmax.one_position_each(rows)

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
            own = weight[targets.where(kept, 0)]
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
            masses = softmax.one_hot(targets.where(kept, 0), outputs) * present
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


def one_element_each(values: torch.Tensor) -> torch.Tensor:
    """Return rows (D, n, …) of which row j holds entry j of each sample's D values, else zero."""
    flat = values.reshape(len(values), -1)
    return torch.diag_embed(flat).transpose(0, 1).reshape(flat.shape[1], *values.shape)

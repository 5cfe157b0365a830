"""Losses that are sums over the elements of the outputs, by their second derivatives."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError, is_tuple
from hyperribbon.operators.risk.losses.base import Loss, no_root, one_element_each, wide, zero_rows

__all__ = [
    "AbsoluteError",
    "Elementwise",
    "GaussianLikelihood",
    "Huber",
    "PoissonLikelihood",
    "SmoothAbsoluteError",
    "SquaredError",
]


class Elementwise(Loss):
    """A loss Σ ℓ(f, y) over the elements of outputs f and targets y of one shape.

    Args:
        module: The torch.nn loss whose options it has.
    """

    def __init__(self, module: nn.Module) -> None:
        self.reduction = str(module.reduction)

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when outputs and targets differ in shape (torch would broadcast them)."""
        if isinstance(targets, torch.Tensor) and targets.shape == outputs.shape:
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
        """Return the sum over the elements."""
        outputs = wide(outputs)
        return self.summed(outputs, targets.to(outputs.dtype))

    @abstractmethod
    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return Σ ℓ(f, y)."""

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return ∂²ℓ/∂f² of every element, of a loss that is curved."""
        raise NotImplementedError

    def curvature(self, outputs: torch.Tensor, targets: Any, block: torch.Tensor) -> torch.Tensor:
        """Return the second derivatives times u."""
        if not self.is_curved:
            return torch.zeros_like(block)
        return (self.second(wide(outputs), targets) * block).to(block.dtype)

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the square roots of the second derivatives, one row an element.

        Raises:
            ArgumentError: One of them is negative.
        """  # noqa: DOC501 - no_root() returns one
        if not self.is_curved:
            return zero_rows(outputs)
        second = self.second(wide(outputs), targets)
        if bool((second < 0).any()):
            raise no_root(self)
        return one_element_each(second.sqrt().to(outputs.dtype))


class SquaredError(Elementwise):
    """Σ (f − y)², whose curvature is 2."""

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return Σ (f − y)²."""
        return F.mse_loss(outputs, targets, reduction="sum")

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return 2(f − y)."""
        return (2 * (wide(outputs) - targets)).to(outputs.dtype)

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return 2."""
        return torch.full_like(outputs, 2.0)


class AbsoluteError(Elementwise):
    """Σ |f − y|, without curvature."""

    is_curved = False

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return Σ |f − y|."""
        return F.l1_loss(outputs, targets, reduction="sum")


class SmoothAbsoluteError(Elementwise):
    """(f − y)²/(2β) below β and |f − y| − β/2 above."""

    def __init__(self, module: nn.SmoothL1Loss) -> None:
        super().__init__(module)
        self._beta = float(module.beta)
        self.is_curved = self._beta > 0

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum over the elements."""
        return F.smooth_l1_loss(outputs, targets, reduction="sum", beta=self._beta)

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return 1/β where |f − y| < β, else 0."""
        return ((outputs - targets).abs() < self._beta).to(outputs.dtype) / self._beta


class Huber(Elementwise):
    """(f − y)²/2 below δ and δ(|f − y| − δ/2) above."""

    def __init__(self, module: nn.HuberLoss) -> None:
        super().__init__(module)
        self._delta = float(module.delta)

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum over the elements."""
        return F.huber_loss(outputs, targets, reduction="sum", delta=self._delta)

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return 1 where |f − y| < δ, else 0."""
        return ((outputs - targets).abs() < self._delta).to(outputs.dtype)


class PoissonLikelihood(Elementwise):
    """−log p(y) of counts y with rate e^f, or f + ε itself, up to a constant."""

    def __init__(self, module: nn.PoissonNLLLoss) -> None:
        super().__init__(module)
        self._is_log, self._full, self._eps = module.log_input, module.full, float(module.eps)

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when shapes differ or a count is negative."""
        super().check(outputs, targets)
        if bool((targets < 0).any()):
            raise ArgumentError(
                "targets", targets, "counts are not negative", "Use another loss for such targets."
            )

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the summed loss."""
        return F.poisson_nll_loss(
            outputs,
            targets,
            log_input=self._is_log,
            full=self._full,
            eps=self._eps,
            reduction="sum",
        )

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return e^f, or y/(f + ε)²."""
        return outputs.exp() if self._is_log else targets / (outputs + self._eps).square()


class GaussianLikelihood(Elementwise):
    """½ log v + (f − y)²/(2v) of targets (y, v), a pair of values and variances."""

    def __init__(self, module: nn.GaussianNLLLoss) -> None:
        super().__init__(module)
        self._full, self._eps = module.full, float(module.eps)

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when there is no pair of values and variances, or their shapes do not fit."""
        if not is_tuple(targets) or len(targets) != 2:
            reason = "GaussianNLLLoss takes outputs, values and variances"
            remedy = (
                "Give targets as a pair (values, variances); for a variance that the model "
                "predicts, loss=lambda f, y: F.gaussian_nll_loss(f[:, 0], y, f[:, 1].exp())."
            )
            raise ArgumentError("targets", targets, reason, remedy)
        super().check(outputs, targets[0])
        try:
            self._variance(outputs, targets).expand(outputs.shape)
        except RuntimeError:
            reason = f"such variances do not fit outputs of shape {tuple(outputs.shape)}"
            remedy = "Give one variance an output, or one a sample."
            raise ArgumentError("targets", targets[1], reason, remedy) from None

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the summed loss."""
        outputs = wide(outputs)
        values, variances = (target.to(outputs.dtype) for target in targets)
        return F.gaussian_nll_loss(
            outputs, values, variances, full=self._full, eps=self._eps, reduction="sum"
        )

    def summed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the summed loss."""
        return self.total(outputs, targets)

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return 1/v."""
        return (1 / self._variance(outputs, targets)).expand(outputs.shape)

    def _variance(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        variance = targets[1].to(outputs.dtype).clamp(min=self._eps)
        return variance.unsqueeze(-1) if variance.ndim < outputs.ndim else variance

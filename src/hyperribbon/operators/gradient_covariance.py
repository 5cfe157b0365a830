"""The covariance of minibatch gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, check_absent, check_positive_int, validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.operators.factored import FactoredOperator
from hyperribbon.operators.linear_operator import LinearOperator
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.data import Data
from hyperribbon.operators.risk.forward import Forward
from hyperribbon.operators.risk_operator import risk_of


class GradientCovariance(FactoredOperator):
    """The covariance C of the gradient of a minibatch.

    With per-sample gradients g_n, of which ∇L is the mean over the N samples,

        C = c·[(1/N) Σ_n g_n g_nᵀ − ∇L ∇Lᵀ],

    without the last term when `centered` is False. The factor c for minibatches of S samples is
    1/S when they are drawn with replacement and (N − S)/(S(N − 1)) without; it is one when no
    batch size is given. Implements Eq. (2.14) of [fluctuations].

    Args:
        model: Any module, which is not changed; or a `Risk`, which has loss, data and options.
        loss: As for `Hessian`.
        data: As for `Hessian`.
        centered: Whether the mean gradient is taken off.
        batch_size: S, or None for the covariance of single gradients.
        replacement: Whether minibatches of `batch_size` are drawn with replacement; they are by
            default.
        params: Which parameters are coordinates, as for `Risk`.
        mask: Which entries of them are.
        forward: forward(model, batch) -> outputs or (outputs, targets), for other calls.
        mode: "eval", "train", or None for each layer's own mode; see `Risk`.
        memory: Bytes to stay below.
        process_group: The ranks that hold the samples.

    Raises:
        ArgumentError: As for `Hessian`, or the batch is larger than the data.
    """

    _needs_loss = True

    @validate()
    def __init__(
        self,
        model: nn.Module | Callable[..., Any] | Risk,
        loss: Callable[..., Any] | None = None,
        data: Data = None,
        *,
        centered: bool = True,
        batch_size: int | None = None,
        replacement: bool | None = None,
        params: ParameterFilter = None,
        mask: Mask | None = None,
        forward: Forward | None = None,
        mode: str | None = "eval",
        memory: float | None = None,
        process_group: Any = None,
    ) -> None:
        risk = risk_of(model, loss, data, params, mask, forward, mode, memory, process_group)
        if risk.mixes_samples or risk.criterion.reduction == "whole":
            reason = (
                "a sample's loss depends on the others of its batch (batch norm in training mode, "
                "a contrastive loss), so single samples have no gradients of their own"
            )
            remedy = "Use mode='eval' or a loss that is a mean over samples."
            raise ArgumentError("model", "GradientCovariance", reason, remedy)
        super().__init__(risk)
        self.centered = bool(centered)
        if batch_size is None:
            check_absent("replacement", replacement, "no batch_size is given", "Give both.")
        self.replacement = replacement = replacement is not False
        self.batch_size = (
            None if batch_size is None else check_positive_int("batch_size", batch_size)
        )
        self._mean: torch.Tensor | None = None
        if self.batch_size is not None and not replacement and self.batch_size > self.risk.samples:
            reason = f"there are {self.risk.samples} samples to draw from without replacement"
            raise ArgumentError("batch_size", batch_size, reason, "Give a smaller batch_size.")

    @property
    def factor(self) -> float:
        """The factor c of the gradient covariance of a mini-batch."""
        if self.batch_size is None:
            return 1.0
        count, size = self.risk.samples, self.batch_size
        if self.replacement:
            return 1.0 / size
        return 0.0 if count == size else (count - size) / (size * (count - 1))

    @plain_arithmetic()
    def mean_gradient(self) -> torch.Tensor:
        """Return the mean ∇L (P,) around which the gradient covariance is taken."""
        if self._mean is None:
            self._mean = self.risk.gradient()
        return self._mean

    @plain_arithmetic()
    def gram(self) -> torch.Tensor:
        """Return the gradient covariance's Gram matrix F Fᵀ (N, N), centred."""
        gram = super().gram()
        if self.centered:
            gram = gram - gram.mean(0)
            gram = gram - gram.mean(1, keepdim=True)
        return gram

    @plain_arithmetic()
    def lift(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return FᵀU of the gradient covariance, from the centred per-sample gradients."""
        return super().lift(coefficients - coefficients.mean(0) if self.centered else coefficients)

    @plain_arithmetic()
    def diagonal(self) -> torch.Tensor:
        """Return the gradient covariance's diagonal: the variances of the gradient's entries."""
        if not self.has_exact_trace:
            return LinearOperator.diagonal(self)
        second = super().diagonal()
        if not self.centered:
            return second
        # Rounding leaves entries below zero where all samples have the same gradient.
        return (second - self.factor * self.mean_gradient().square()).clamp_min(0.0)

    @plain_arithmetic()
    def trace(self) -> float:
        """Return the gradient covariance's trace, the total variance of the gradient."""
        if not self.has_exact_trace:
            return LinearOperator.trace(self)
        second = super().trace()
        if not self.centered:
            return second
        mean = float(self.mean_gradient().square().sum(dtype=torch.float64))
        return max(second - self.factor * mean, 0.0)

    def _with(self, risk: Risk) -> GradientCovariance:
        other = super()._with(risk)
        other._mean = None
        return other

    def _complete(self, product: torch.Tensor, block: torch.Tensor, rows: slice) -> torch.Tensor:
        if not self.centered:
            return product
        if self.risk.samples == 1:
            return torch.zeros_like(product)  # and not what rounding leaves of it
        mean = self.mean_gradient()
        return product - self.factor * mean[rows].unsqueeze(1) * (mean @ block)

    def _middle(self, chunk: Chunk, block: torch.Tensor) -> torch.Tensor:
        slope = self._rows(chunk)
        along = (slope * block).reshape(*block.shape[:2], -1).sum(2)
        return slope * along.reshape(*along.shape, *(1,) * (slope.ndim - 2))

    def _rows_each(self, outputs: torch.Tensor) -> int:
        return 1

    def _rows(self, chunk: Chunk) -> torch.Tensor:
        return self.risk.criterion.gradient(chunk.point.outputs, chunk.targets).unsqueeze(0)

    def _scale(self) -> float:
        return self.factor * self.risk.samples / self.risk.amount**2

"""The Hessian of an empirical risk."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter, ParameterSpace
from hyperribbon.operators.base import LinearOperator
from hyperribbon.operators.data import Data
from hyperribbon.operators.risk import Chunk, Forward, Risk

__all__ = ["Hessian", "RiskOperator"]

Self = TypeVar("Self", bound="RiskOperator")


class RiskOperator(LinearOperator):
    """A symmetric matrix on the parameters that is a sum over the samples of a risk.

    Subclasses give `_add_chunk`, the unscaled product of one chunk, and `_scale`.
    """

    def __init__(self, risk: Risk) -> None:
        size = risk.space.dimension
        super().__init__((size, size), risk.dtype, risk.device)
        self.risk = risk

    @property
    def space(self) -> ParameterSpace:
        """The coordinates: which entry is which weight."""
        return self.risk.space

    def at(self: Self, weights: Mapping[str, torch.Tensor] | torch.Tensor) -> Self:
        """Return the same operator at other weights: named tensors, or coordinates (P,)."""
        return self._with(self.risk.at(weights))

    def layers(self: Self) -> dict[str, Self]:
        """Return the diagonal blocks: one operator a layer, by the layer's name."""
        return {name: self._with(self.risk.on(s)) for name, s in self.space.layers().items()}

    def _with(self: Self, risk: Risk) -> Self:
        other = copy.copy(self)
        RiskOperator.__init__(other, risk)
        return other

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        step = self.risk.columns_at_once()
        pieces = [self._multiply_some(piece) for piece in block.split(step, dim=1)]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)) * self._scale()

    def _multiply_some(self, block: torch.Tensor) -> torch.Tensor:
        named = self.space.unflatten(block)
        total: dict[str, torch.Tensor] = {}
        for chunk in self.risk.chunks():
            for name, piece in self._chunk_product(chunk, named).items():
                if name in total:
                    total[name] += piece
                else:
                    total[name] = piece
        return self.space.flatten(total, batched=True)

    def _chunk_product(
        self, chunk: Chunk, block: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def _scale(self) -> float:
        raise NotImplementedError


class Hessian(RiskOperator):
    """The Hessian H = ∇²L(θ) of L(θ) = (1/amount) Σ_n ℓ(f(x_n; θ), y_n).

    The amount is what the loss divides by over all the data together: samples, elements or total
    class weight for a mean, one for a sum. So the cutting into batches does not matter.

    Args:
        model: Any module; it is not changed, and its weights are copied.
        loss: A torch.nn loss or any callable (outputs, targets) that is a mean or a sum.
        data: (inputs, targets), a Dataset or a DataLoader.
        params: Name pattern, list of names or predicate that chooses parameters.
        mask: Entries of the parameters that are coordinates.
        forward: forward(model, batch) -> outputs or (outputs, targets), for other batches.
        memory: Bytes to stay below; by default 512 MiB.

    Raises:
        ArgumentError: The model, the loss or the data do not define a fixed finite function.

    >>> x, y = torch.eye(3), torch.zeros(3, 1)
    >>> model = torch.nn.Linear(3, 1, bias=False)
    >>> H = Hessian(model, torch.nn.MSELoss(reduction="sum"), (x, y))
    >>> H.to_dense()  # 2 XᵀX
    tensor([[2., 0., 0.],
            [0., 2., 0.],
            [0., 0., 2.]])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        data: Data,
        *,
        params: ParameterFilter = None,
        mask: Mask | None = None,
        forward: Forward | None = None,
        memory: float | None = None,
    ) -> None:
        super().__init__(
            Risk(model, loss, data, params=params, mask=mask, forward=forward, memory=memory)
        )

    def loss(self) -> float:
        """Return the value of the risk."""
        return self.risk.value()

    def gradient(self) -> torch.Tensor:
        """Return the gradient of the risk, (P,)."""
        return self.risk.gradient()

    def _chunk_product(
        self, chunk: Chunk, block: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        assert self.risk.loss is not None
        return chunk.point.curve(self.risk.loss, chunk.targets, block)

    def _scale(self) -> float:
        return 1.0 / self.risk.amount

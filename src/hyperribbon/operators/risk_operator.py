"""Symmetric matrices on a model's parameters that are sums over the samples of a risk."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeVar

import torch

from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.operators.base import Cost, LinearOperator
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.sums import Directions, GradientSums

__all__ = ["RiskOperator"]

Self = TypeVar("Self", bound="RiskOperator")


class RiskOperator(LinearOperator):
    """A symmetric matrix on the parameters that is a sum over the samples of a risk.

    Subclasses give the unscaled product of one chunk of samples and the scale.
    """

    _forwards = 4.0
    """Operations of a product, in forward passes."""

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

    def cost(self) -> Cost:
        """Return the memory and operations of one product."""
        return Cost(self.risk.working_bytes(), self._forwards * self.risk.forward_flops())

    def layers(self: Self) -> dict[str, Self]:
        """Return the diagonal blocks: one operator a layer, by the layer's name."""
        return {name: self._with(self.risk.on(s)) for name, s in self.space.layers().items()}

    def _with(self: Self, risk: Risk) -> Self:
        other = copy.copy(self)
        RiskOperator.__init__(other, risk)
        return other

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        parts = -(-block.shape[1] // self.risk.columns_at_once())
        pieces = [self._multiply_some(piece) for piece in block.tensor_split(parts, dim=1)]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)) * self._scale()

    def _multiply_some(self, block: torch.Tensor) -> torch.Tensor:
        directions, sums = Directions(self.space.unflatten(block)), GradientSums()
        for chunk in self.risk.chunks():
            self._add_product(chunk, directions, sums)
        return self.space.flatten(sums.named(), batched=True)

    @abstractmethod
    def _add_product(self, chunk: Chunk, directions: Directions, sums: GradientSums) -> None:
        """Add the unscaled product of some samples."""

    @abstractmethod
    def _scale(self) -> float:
        """Return the factor of the sum over samples."""

"""The generalised Gauss-Newton matrix of an empirical risk."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.operators.factored import FactoredOperator
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.calling import Forward
from hyperribbon.operators.risk.data import Data

__all__ = ["GGN"]


class GGN(FactoredOperator):
    """The generalised Gauss-Newton matrix G = (1/amount) Σ_n J_nᵀ (∂²ℓ_n/∂f²) J_n.

    It is the Hessian without the curvature of the model itself, positive semidefinite for a convex
    loss, and equal to the Fisher matrix for cross-entropy. Arguments are those of `Hessian`.
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
        process_group: Any = None,
    ) -> None:
        super().__init__(
            Risk(
                model,
                loss,
                data,
                params=params,
                mask=mask,
                forward=forward,
                memory=memory,
                process_group=process_group,
            )
        )

    def _middle(self, chunk: Chunk, block: torch.Tensor) -> torch.Tensor:
        return self.risk.criterion.curvature(chunk.point.outputs, chunk.targets, block)

    def _rows(self, chunk: Chunk) -> torch.Tensor:
        return self.risk.criterion.root(chunk.point.outputs, chunk.targets)

    def _scale(self) -> float:
        return 1.0 / self.risk.amount

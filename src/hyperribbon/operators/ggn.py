"""The generalised Gauss-Newton matrix of an empirical risk."""

from __future__ import annotations

import torch

from hyperribbon.operators.factored import FactoredOperator
from hyperribbon.operators.risk import Chunk


class GGN(FactoredOperator):
    """The generalised Gauss-Newton matrix G = (1/amount) Σ_n J_nᵀ (∂²ℓ_n/∂f²) J_n.

    It is the Hessian without the curvature of the model itself, positive semidefinite for a convex
    loss, and equal to the Fisher matrix for cross-entropy. A product is J v, the loss's curvature
    in the outputs, and Jᵀu. Arguments are those of `Hessian`. It depends on what is called output:
    of a loss that is linear in it, such as NLLLoss of log-probabilities, it is zero; end the model
    with logits and use CrossEntropyLoss for the matrix that is meant.
    """

    _needs_loss = True

    def _middle(self, chunk: Chunk, block: torch.Tensor) -> torch.Tensor:
        if chunk.curvature is None:
            chunk.curvature = self.risk.criterion.curvature_at(chunk.point.outputs, chunk.targets)
        return chunk.curvature(block)

    def _rows(self, chunk: Chunk) -> torch.Tensor:
        return self.risk.criterion.root(chunk.point.outputs, chunk.targets)

    def _scale(self) -> float:
        return 1.0 / self.risk.amount

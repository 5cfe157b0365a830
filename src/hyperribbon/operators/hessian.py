"""The Hessian of an empirical risk."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.operators.derivatives.sums import Directions, GradientSums
from hyperribbon.operators.gram import squared_columns, squared_norm
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.calling import Forward
from hyperribbon.operators.risk.data import Data
from hyperribbon.operators.risk_operator import RiskOperator

__all__ = ["Hessian"]


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
        process_group: Processes that share the samples, each giving its own: a torch.distributed
            group, or True for all. Every rank then does the same with the operator.

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

    _forwards = 6.0

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
                any_order=True,
            )
        )

    @property
    def has_exact_trace(self) -> bool:
        """Whether diagonal and trace cost a few passes: for chains of piecewise linear layers.

        There the model is piecewise linear in every single weight, so its own curvature has a zero
        diagonal and the Hessian has the diagonal of the Gauss-Newton matrix.
        """
        return self.risk.is_piecewise_linear and self.risk.criterion.is_convex

    def diagonal(self) -> torch.Tensor:
        """Return the diagonal, exactly; see `has_exact_trace` for what it costs."""
        if not self.has_exact_trace:
            return super().diagonal()
        return squared_columns(self.risk, self._loss_root) * self._scale()

    def trace(self) -> float:
        """Return the trace, exactly; see `has_exact_trace` for what it costs."""
        if not self.has_exact_trace:
            return super().trace()
        return squared_norm(self.risk, self._loss_root) * self._scale()

    def loss(self) -> float:
        """Return the value of the risk."""
        return self.risk.value()

    def gradient(self) -> torch.Tensor:
        """Return the gradient of the risk, (P,)."""
        return self.risk.gradient()

    def _add_product(self, chunk: Chunk, directions: Directions, sums: GradientSums) -> None:
        chunk.point.curve(self.risk.criterion, chunk.targets, directions, sums)

    def _scale(self) -> float:
        return 1.0 / self.risk.amount

    def _loss_root(self, chunk: Chunk) -> torch.Tensor:
        return self.risk.criterion.root(chunk.point.outputs, chunk.targets)

"""The Hessian of an empirical risk."""

from __future__ import annotations

import torch

from hyperribbon.operators.derivatives.linearisation import Block
from hyperribbon.operators.risk import Chunk
from hyperribbon.operators.risk_operator import RiskOperator


class Hessian(RiskOperator):
    """The Hessian H = ∇²L(θ) of L(θ) = (1/amount) Σ_n ℓ(f(x_n; θ), y_n).

    The amount is what the loss divides by over all the data together: samples, elements or total
    class weight for a mean, one for a sum. So the cutting into batches does not matter.

    A product is a backward pass through the graph of the gradient: H v = ∂⟨∇L, v⟩/∂θ. The graph is
    built once and kept for all products as far as the memory goes.

    Args:
        model: Any module, which is not changed; or a `Risk`, which is then the only argument.
        loss: A torch.nn loss or any callable (outputs, targets) that is a mean or a sum.
        data: (inputs, targets), a Dataset, a DataLoader, a list of batches.
        params: Which parameters are coordinates, as for `Risk`.
        mask: Which entries of them are.
        forward: forward(model, batch) -> outputs or (outputs, targets), for other calls.
        mode: "eval", "train", or None for each layer's own mode; see `Risk`.
        memory: Bytes to stay below.
        process_group: The ranks that hold the samples.

    Raises:
        ArgumentError: The model, the loss or the data do not define a fixed finite function, or
            second derivatives differ from finite differences.

    >>> x, y = torch.eye(3), torch.zeros(3, 1)
    >>> model = torch.nn.Linear(3, 1, bias=False)
    >>> H = Hessian(model, torch.nn.MSELoss(reduction="sum"), (x, y))
    >>> H.to_dense()  # 2 XᵀX
    tensor([[2., 0., 0.],
            [0., 2., 0.],
            [0., 0., 2.]])
    """

    _forwards = 6.0
    _kind = "hvp"
    _needs_loss = True

    @property
    def has_exact_trace(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the Hessian's trace costs a few passes: piecewise linear model, convex loss.

        ReLU networks with convolutions, skips, pooling and batch norm in evaluation mode are
        piecewise linear in every single weight, so their own curvature has a zero diagonal and the
        Hessian has the diagonal of the Gauss-Newton matrix.
        """
        return self.risk.is_piecewise_linear and self.risk.criterion.is_convex

    def loss(self) -> float:
        """Return the loss at which the Hessian is taken."""
        return self.risk.value()

    def gradient(self) -> torch.Tensor:
        """Return the gradient (P,) at the weights of the Hessian."""
        return self.risk.gradient()

    def _product(self, chunk: Chunk, v: Block) -> Block:
        """Return the Hessian-vector product Σ_n ∇²ℓ_n v = ∂⟨g, v⟩/∂θ, back through g = Σ_n ∇ℓ_n."""
        gradient = chunk.point.gradient(self.risk.criterion, chunk.targets)
        return chunk.point.differentiate(gradient, v, self.space.names)

    def _scale(self) -> float:
        return 1.0 / self.risk.amount

    def _rows(self, chunk: Chunk) -> torch.Tensor:
        return self.risk.criterion.root(chunk.point.outputs, chunk.targets)

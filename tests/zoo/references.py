"""Dense and directional references from plain reverse mode on a fresh copy of a network.

Nothing of hyperribbon is used: gradients are `torch.autograd.grad` of the loss of all data in one
batch, second derivatives are double backward passes, and both are held against central differences.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from zoo.models import ENTRIES, Entry, Network

__all__ = ["Reference", "distance", "reference_of", "tolerance"]

_STEPS = {torch.float64: 3e-6, torch.float32: 2e-3}  # along directions of unit entries


def tolerance(entry: Entry, by_differences: bool) -> float:
    """Return the relative error that two correct answers may have.

    Two float64 evaluations differ by 1e6 roundings at most; a few float32 operations inside bring
    roundings of 6e-8 in, of which the cancellation of second derivatives makes a thousand. Central
    differences of fourth order with step h have errors of h⁴ and of a rounding over h, each times a
    ratio of derivatives, which stays below 1e4 here; the step is as short as that allows, since
    differences across the kink of a ReLU mean nothing.
    """
    if entry.precision == torch.float32:
        return 1e-2 if by_differences else 1e-4
    return 1e-6 if by_differences else 1e-9


class Reference:
    """Derivatives of a network's loss and outputs in its trainable parameters, P of them.

    Args:
        network: A copy of its own, whose weights are moved for differences and put back.
        precision: In which it works inside.
    """

    def __init__(self, network: Network, precision: torch.dtype = torch.float64) -> None:
        self.network, self.step = network, _STEPS[precision]
        named = [(n, p) for n, p in network.model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.weights = [parameter for _, parameter in named]
        self.size = sum(parameter.numel() for parameter in self.weights)

    @cached_property
    def outputs(self) -> torch.Tensor:
        """Outputs with their graph, (n, …)."""
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            return self.network.outputs()

    @cached_property
    def value(self) -> float:
        """The loss."""
        return float(self.network.loss(self.outputs.detach(), self.network.targets))

    @cached_property
    def gradient(self) -> torch.Tensor:
        """∇L, (P,)."""
        return self._gradient_at_present()

    @cached_property
    def jacobian(self) -> torch.Tensor:
        """J (outputs, P), one backward pass an output."""
        rows = []
        for output in self.outputs.reshape(-1):
            pulled = torch.autograd.grad(output, self.weights, retain_graph=True, allow_unused=True)
            rows.append(self._flat(pulled))
        return torch.stack(rows)

    @cached_property
    def loss_derivatives(self) -> tuple[torch.Tensor, torch.Tensor]:
        """∂L/∂f (outputs,) and ∂²L/∂f² (outputs, outputs)."""
        leaf = self.outputs.detach().requires_grad_()
        value = self.network.loss(leaf, self.network.targets)
        (slope,) = torch.autograd.grad(value, leaf, create_graph=True)
        rows = [torch.zeros(leaf.numel(), dtype=leaf.dtype)] * leaf.numel()
        if slope.requires_grad:
            rows = [
                torch.autograd.grad(s, leaf, retain_graph=True)[0].reshape(-1)
                for s in slope.reshape(-1)
            ]
        return slope.detach().reshape(-1), torch.stack(rows)

    @cached_property
    def block(self) -> torch.Tensor:
        """Three directions, (P, 3)."""
        generator = torch.Generator().manual_seed(7)
        return torch.randn(self.size, 3, generator=generator, dtype=torch.float64)

    @cached_property
    def moving(self) -> torch.Tensor:
        """The directions without weights whose gradient is zero, (P, 3).

        A network may use those where autograd does not look (padding, `no_grad`), and differences
        of the gradient along them are no derivatives.
        """
        return self.block * (self.gradient != 0).unsqueeze(1)

    @cached_property
    def curved(self) -> torch.Tensor:
        """H @ block by double backward passes, (P, 3)."""
        return self.hessian(self.block)

    @cached_property
    def curved_by_differences(self) -> torch.Tensor:
        """H @ moving by central differences of the gradient, (P, 3)."""
        return self.hessian_by_differences(self.moving)

    def coordinates(self, names: list[str]) -> torch.Tensor:
        """Return which coordinates belong to some parameters, (P,) of bool."""
        return torch.cat(
            [
                torch.full((w.numel(),), name in names)
                for name, w in zip(self.names, self.weights, strict=True)
            ]
        )

    def hessian(self, block: torch.Tensor) -> torch.Tensor:
        """Return H @ block by double backward passes.

        Raises:
            RuntimeError: The network cannot be differentiated twice.
        """
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            value = self.network.loss(self.network.outputs(), self.network.targets)
            slopes = torch.autograd.grad(value, self.weights, create_graph=True, allow_unused=True)
            flat = self._flat(slopes)
            columns = [torch.zeros(self.size, dtype=torch.float64)] * block.shape[1]
            if flat.requires_grad:
                columns = [
                    self._flat(
                        torch.autograd.grad(
                            flat @ column, self.weights, retain_graph=True, allow_unused=True
                        )
                    )
                    for column in block.T
                ]
        return torch.stack(columns, 1)

    def hessian_by_differences(self, block: torch.Tensor) -> torch.Tensor:
        """Return the derivative of ∇L(θ + hv) in h for every column v, correct to order h⁴."""
        columns = []
        for column in block.T:
            terms = [
                factor * self._gradient_moved(count * self.step * column)
                for count, factor in ((1, 8), (-1, -8), (2, -1), (-2, 1))
            ]
            columns.append(torch.stack(terms).sum(0) / (12 * self.step))
        return torch.stack(columns, 1)

    def ggn(self, block: torch.Tensor) -> torch.Tensor:
        """Return Jᵀ (∂²L/∂f²) J @ block."""
        return self.jacobian.T @ (self.loss_derivatives[1] @ (self.jacobian @ block))

    def ggn_diagonal(self) -> torch.Tensor:
        """Return the diagonal of the Gauss-Newton matrix."""
        return ((self.loss_derivatives[1] @ self.jacobian) * self.jacobian).sum(0)

    def ggn_eigenvalues(self) -> torch.Tensor:
        """Return the eigenvalues that are not structurally zero, for a convex loss, descending."""
        values, vectors = torch.linalg.eigh(self.loss_derivatives[1])
        factor = (vectors * values.clamp(min=0).sqrt()).T @ self.jacobian
        return torch.linalg.svdvals(factor).square()

    def fisher(self, block: torch.Tensor) -> torch.Tensor:
        """Return (1/N) Σ_n J_nᵀ (diag p − ppᵀ) J_n @ block for logits along axis 1."""
        shape = self.outputs.shape
        chances = torch.softmax(self.outputs.detach(), 1)
        pushed = (self.jacobian @ block).reshape(*shape, -1)
        weighted = chances.unsqueeze(-1) * pushed
        middle = weighted - chances.unsqueeze(-1) * weighted.sum(1, keepdim=True)
        return self.jacobian.T @ middle.reshape(-1, block.shape[1]) / shape[0]

    def sample_gradients(self) -> torch.Tensor:
        """Return g_n (N, P), of which ∇L is the mean."""
        count = len(self.outputs)
        terms = self.loss_derivatives[0].unsqueeze(1) * self.jacobian
        return count * terms.reshape(count, -1, self.size).sum(1)

    def gradient_is_that_of_the_loss(self) -> bool:
        """Whether torch's own gradient has the slope of the loss; some kernels have not."""
        return all(self._has_slope(column) for column in self.moving.T)

    def _has_slope(self, v: torch.Tensor) -> bool:
        ahead, behind = (self._moved(self._value_at_present, h * v) for h in (1e-6, -1e-6))
        terms = self.gradient * v
        rounding = 1e-9 * (1 + abs(ahead))
        return (
            abs((ahead - behind) / 2e-6 - float(terms.sum()))
            <= 1e-4 * float(terms.abs().sum()) + rounding
        )

    def _gradient_moved(self, step: torch.Tensor) -> torch.Tensor:
        return self._moved(self._gradient_at_present, step)

    def _moved(self, work: Callable[[], Any], step: torch.Tensor) -> Any:
        before = [w.detach().clone() for w in self.weights]
        with torch.no_grad():
            for weight, piece in zip(self.weights, self._pieces(step), strict=True):
                weight.add_(piece)
        try:
            return work()
        finally:
            with torch.no_grad():
                for weight, old in zip(self.weights, before, strict=True):
                    weight.copy_(old)

    def _value_at_present(self) -> float:
        with torch.no_grad():
            return float(self.network.loss(self.network.outputs(), self.network.targets))

    def _gradient_at_present(self) -> torch.Tensor:
        with torch.enable_grad():
            value = self.network.loss(self.network.outputs(), self.network.targets)
            found = torch.autograd.grad(value, self.weights, allow_unused=True)
        return self._flat(found).detach()

    def _flat(self, pieces: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
        return torch.cat(
            [
                (w.new_zeros(w.numel()) if g is None else g.to_dense().reshape(-1))
                for w, g in zip(self.weights, pieces, strict=True)
            ]
        )

    def _pieces(self, vector: torch.Tensor) -> list[torch.Tensor]:
        sizes = [w.numel() for w in self.weights]
        return [
            piece.reshape(w.shape)
            for piece, w in zip(vector.split(sizes), self.weights, strict=True)
        ]


@cache
def reference_of(name: str) -> Reference:
    """Return the reference of a network of the zoo, computed once."""
    entry = ENTRIES[name]
    return Reference(entry.build(), entry.precision)


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return ‖ours − theirs‖ / ‖theirs‖; infinite when shapes or precisions differ."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    scale = float(theirs.norm())
    return float((ours - theirs).norm()) / scale if scale else float(ours.norm())

"""A model at fixed weights on a fixed batch, differentiated as often as asked from one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from hyperribbon.operators.purity import evaluation

__all__ = ["AutogradLinearisation", "Block", "Linearisation", "pull_back"]

Block = Mapping[str, torch.Tensor]
"""Named tensors with k leading rows, (k, *parameter shape)."""


class Linearisation(Protocol):
    """Derivatives of a batch's outputs f(θ) of shape (n, …) at fixed weights θ."""

    outputs: torch.Tensor

    def push(self, block: Block) -> torch.Tensor:
        """Return J v, shape (k, n, …)."""
        ...

    def pull(self, cotangents: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return Jᵀ u for u (k, n, …)."""
        ...

    def curve(
        self, total: Callable[[torch.Tensor], torch.Tensor], block: Block
    ) -> dict[str, torch.Tensor]:
        """Return ∇²_θ total(f(θ)) v."""
        ...


class AutogradLinearisation:
    """Derivatives of any model by reverse mode, from graphs that are built once and kept.

    J v is the derivative in u of ⟨Jᵀu, v⟩ (double backward), so that only reverse rules are needed.

    Args:
        forward: Function from named parameters to outputs (n, …).
        weights: Leaf tensors that require gradients.
    """

    def __init__(
        self, forward: Callable[[Block], torch.Tensor], weights: Mapping[str, torch.Tensor]
    ) -> None:
        self._weights = dict(weights)
        with evaluation():
            self._graph = forward(self._weights)
        self.outputs = self._graph.detach()
        self._transposed: tuple[torch.Tensor, dict[str, torch.Tensor]] | None = None
        self._slopes: dict[str, torch.Tensor] | None = None

    def push(self, block: Block) -> torch.Tensor:
        """Return J v, shape (k, n, …)."""
        if self._transposed is None:
            self._transposed = self._build_transposed()
        probe, pulled = self._transposed
        if not pulled:
            return self.outputs.new_zeros(_rows(block), *self.outputs.shape)
        names = list(pulled)
        (pushed,) = pull_back(
            [pulled[name] for name in names], [probe], [block[name] for name in names]
        )
        return pushed

    def pull(self, cotangents: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return Jᵀ u for u (k, n, …)."""
        if not self._graph.requires_grad:
            return self._zeros(len(cotangents))
        pulled = pull_back([self._graph], list(self._weights.values()), [cotangents])
        return dict(zip(self._weights, pulled, strict=True))

    def curve(
        self, total: Callable[[torch.Tensor], torch.Tensor], block: Block
    ) -> dict[str, torch.Tensor]:
        """Return ∇²_θ total(f(θ)) v; `total` must be the same in every call."""
        if self._slopes is None:
            self._slopes = self._build_slopes(total)
        if not self._slopes:
            return self._zeros(_rows(block))
        names = list(self._slopes)
        curved = pull_back(
            list(self._slopes.values()),
            list(self._weights.values()),
            [block[name] for name in names],
        )
        return dict(zip(self._weights, curved, strict=True))

    def _build_transposed(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        probe = torch.zeros_like(self._graph).requires_grad_()
        if not self._graph.requires_grad:
            return probe, {}
        with evaluation():
            pulled = torch.autograd.grad(
                self._graph,
                list(self._weights.values()),
                probe,
                create_graph=True,
                allow_unused=True,
            )
        return probe, _differentiable(self._weights, pulled)

    def _build_slopes(
        self, total: Callable[[torch.Tensor], torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        if not self._graph.requires_grad:
            return {}
        with evaluation():
            slopes = torch.autograd.grad(
                total(self._graph),
                list(self._weights.values()),
                create_graph=True,
                allow_unused=True,
            )
        return _differentiable(self._weights, slopes)

    def _zeros(self, rows: int) -> dict[str, torch.Tensor]:
        return {name: w.new_zeros(rows, *w.shape) for name, w in self._weights.items()}


def pull_back(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], cotangents: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the vector-Jacobian products of k rows of cotangents, each (k, *input shape).

    Rows go through the graph together; operations without a batching rule go one by one.
    """
    rows = len(cotangents[0])

    def backward(rowed: list[torch.Tensor], batched: bool) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(
            outputs,
            inputs,
            rowed,
            retain_graph=True,
            is_grads_batched=batched,
            allow_unused=True,
            materialize_grads=True,
        )

    if rows > 1:
        try:
            return list(backward(cotangents, True))
        except RuntimeError as error:
            if "vmap" not in str(error) and "batching rule" not in str(error):
                raise
    singles = [backward([c[row] for c in cotangents], False) for row in range(rows)]
    return [torch.stack(pieces) for pieces in zip(*singles, strict=True)]


def _differentiable(
    weights: Mapping[str, torch.Tensor], tensors: tuple[torch.Tensor | None, ...]
) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for name, tensor in zip(weights, tensors, strict=True)
        if tensor is not None and tensor.requires_grad
    }


def _rows(block: Block) -> int:
    return len(next(iter(block.values())))

"""Derivatives of chains of linear layers and elementwise activations, by matrix products only.

Activations, slopes and the back-propagated loss gradient are computed once per batch and reused in
every product. The derivative in the data is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hyperribbon.operators.derivatives.chains.layer import Layer
from hyperribbon.operators.derivatives.factors import Explicit, Factor, Outer
from hyperribbon.operators.derivatives.linearisation import Block
from hyperribbon.operators.derivatives.sums import Directions, GradientSums
from hyperribbon.operators.derivatives.workspace import Workspace

if TYPE_CHECKING:
    from hyperribbon.operators.risk.losses import Loss

__all__ = ["ChainLinearisation"]


class ChainLinearisation:
    """Derivatives of a chain f = φ_L(W_L … φ_1(W_1 x + b_1) … + b_L) on one batch."""

    def __init__(self, layers: list[Layer], outputs: torch.Tensor) -> None:
        self.outputs = outputs
        self._layers = layers
        self._curving: Callable[..., torch.Tensor] | None = None
        self._flow: dict[int, torch.Tensor] = {}
        self._bent: dict[int, torch.Tensor] = {}
        self._lowest = next(i for i, layer in enumerate(layers) if layer.width)
        self._names = frozenset(self.structured())
        self._parts: dict[frozenset[str], ChainLinearisation] = {}

    @property
    def is_piecewise_linear(self) -> bool:
        """Whether every φ″ vanishes."""
        return all(layer.bends is None for layer in self._layers)

    def push(self, block: Block) -> torch.Tensor:
        """Return J v, shape (k, n, C)."""
        part = self._only(block)
        if part is not self:
            return part.push(block)
        directions = block if isinstance(block, Directions) else Directions(block)
        moved: torch.Tensor | None = None
        for layer in self._layers[self._lowest :]:
            moved = layer.damp(self._moved(layer, moved, directions))
        assert moved is not None
        return moved.transpose(0, 1)

    def pull(self, cotangents: torch.Tensor, sums: GradientSums, names: Sequence[str]) -> None:
        """Add Jᵀ u for u (k, n, C)."""
        part = self._only(names)
        if part is not self:
            part.pull(cotangents, sums, names)
            return
        for position, back in self._backward(cotangents.transpose(0, 1), sums.workspace):
            self._layers[position].add_gradients(back, sums)

    def curve(self, loss: Loss, targets: Any, block: Block, sums: GradientSums) -> None:
        """Add ∇²_θ Σ ℓ(f(θ), y) v: a forward and a backward pass of derivatives along v."""
        part = self._only(block)
        if part is not self:
            part.curve(loss, targets, block, sums)
            return
        if self._curving is None:
            self._curving = loss.curving(self.outputs, targets)
            self._prepare(loss.gradient(self.outputs, targets))
        directions = block if isinstance(block, Directions) else Directions(block)
        ahead: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = {}
        moved: torch.Tensor | None = None
        for position, layer in enumerate(self._layers[self._lowest :], self._lowest):
            tilted = self._moved(layer, moved, directions)
            ahead[position] = moved, tilted
            moved = layer.damp(tilted if layer.bends is None else tilted.clone())
        assert moved is not None
        change = self._curving(moved.transpose(0, 1)).transpose(0, 1).contiguous()
        for position in range(len(self._layers) - 1, self._lowest - 1, -1):
            layer, (before, tilted) = self._layers[position], ahead.pop(position)
            layer.damp(change)
            if position in self._bent:
                change.addcmul_(self._bent[position].unsqueeze(1), tilted)
            layer.add_gradients(change, sums)
            if position == self._lowest:
                break
            assert before is not None
            flow = self._flow[position]
            layer.add_mixed(flow, before, sums)
            torch.mm(change.flatten(0, 1), layer.weight, out=before.view(-1, before.shape[2]))
            change = before  # is not needed any more and still in the cache
            layer.add_turned(flow, change, directions)

    def factors(self, rows: torch.Tensor, names: set[str]) -> list[Factor]:
        """Return the per-sample gradients of R f for rows R (m, n, C)."""
        found: list[Factor] = []
        for position, left in self._backward(rows.transpose(0, 1)):
            layer = self._layers[position]
            if layer.weight_name in names:
                right = layer.inputs.unsqueeze(1)
                bias = layer.bias_name if layer.bias_name in names else None
                found.append(Outer(layer.weight_name, left.unsqueeze(2), right, bias))
            if layer.bias_name in names:
                found.append(Explicit(layer.bias_name, left))
        return found

    def structured(self) -> set[str]:
        """Return all names: every parameter has factors."""
        pairs = ((layer.weight_name, layer.bias_name) for layer in self._layers)
        return {name for pair in pairs for name in pair if name}

    def _only(self, names: Iterable[str]) -> ChainLinearisation:
        """Return the derivatives by some of the parameters."""
        wanted = self._names.intersection(names)
        if wanted == self._names:
            return self
        if wanted not in self._parts:
            layers = [layer.only(wanted) for layer in self._layers]
            self._parts[wanted] = ChainLinearisation(layers, self.outputs)
        return self._parts[wanted]

    def _moved(
        self, layer: Layer, moved: torch.Tensor | None, directions: Directions
    ) -> torch.Tensor:
        """Return the pre-activations' change (n, k, d_out) along v."""
        own = layer.own_change(directions)
        if own is None:
            assert moved is not None
            return moved @ layer.weight.T
        if moved is not None:
            own.flatten(0, 1).addmm_(moved.flatten(0, 1), layer.weight.T)
        return own

    def _backward(
        self, cotangents: torch.Tensor, workspace: Workspace | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (position, what flows back into that layer's output (n, k, d)), last first.

        With a workspace, what is yielded lasts until the next step: it is written over the change
        of the same layer's output, which nothing needs after a forward pass.
        """
        layer = self._layers[-1]
        back = cotangents.contiguous()
        back = back if layer.slopes is None else back * layer.slopes.unsqueeze(1)
        yield len(self._layers) - 1, back
        for position in range(len(self._layers) - 2, self._lowest - 1, -1):
            above, layer = layer, self._layers[position]
            if workspace is None or not layer.width:
                back = back @ above.weight
            else:
                below = layer.changes(len(back), back.shape[1], back, workspace)
                torch.mm(back.flatten(0, 1), above.weight, out=below.flatten(0, 1))
                back = below
            yield position, layer.damp(back)

    def _prepare(self, slope: torch.Tensor) -> None:
        """Keep how the loss gradient (n, C) flows back, and its products with the bends."""
        above = slope
        for position in range(len(self._layers) - 1, self._lowest - 1, -1):
            layer = self._layers[position]
            if layer.bends is not None:
                self._bent[position] = above * layer.bends
            flow = above if layer.slopes is None else above * layer.slopes
            self._flow[position] = flow.contiguous()
            above = flow @ layer.weight

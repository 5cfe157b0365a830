"""Derivatives of chains of linear layers and elementwise activations, by matrix products only.

Activations, slopes and the back-propagated loss gradient are computed once per batch and reused in
every product. Biases are weights of one more input that is always one. The derivative in the data
is skipped. Inputs of a layer that are zero on the whole batch drop out, and so do hidden units that
no sample of the batch moves, where there are enough of them to pay for the copying. In an order
given by how frequent they are, inputs that are used are a range, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from hyperribbon.operators.factors import Explicit, Factor, Outer
from hyperribbon.operators.linearisation import Block
from hyperribbon.operators.losses import Loss
from hyperribbon.operators.sums import Directions, GradientSums

__all__ = ["ChainLinearisation", "Layer"]

_USED = 0.8  # inputs and hidden units drop out when no more than this part of them is ever used


@dataclass
class Layer:
    """One linear layer and what follows it, on one batch.

    Attributes:
        weight: W (d_out, d_in), without the units that dropped out.
        weight_name: Its name when it is a coordinate.
        bias_name: The bias's name when it is a coordinate.
        features: What its coordinates are multiplied with, (n, d): a one when the bias is a
            coordinate, then the inputs when the weight is.
        width: Columns of `features` before any dropped out.
        columns: Those that are not zero on the whole batch, or None for all.
        order: The order the inputs are in, of a layer that reads the data, or None for their own.
        fan_out: Outputs before any dropped out.
        sources: Units of the layer below that are left, or None for all.
        units: Its own outputs that are left, or None for all.
        slopes: φ′ at the pre-activations, (n, d_out), or None for the identity.
        bends: φ″, or None where it vanishes.
    """

    weight: torch.Tensor
    weight_name: str | None
    bias_name: str | None
    features: torch.Tensor
    width: int
    fan_out: int
    columns: torch.Tensor | slice | None = None
    order: torch.Tensor | None = None
    sources: torch.Tensor | None = None
    units: torch.Tensor | None = None
    slopes: torch.Tensor | None = None
    bends: torch.Tensor | None = None

    @classmethod
    def on_inputs(
        cls,
        weight: torch.Tensor,
        weight_name: str | None,
        bias_name: str | None,
        inputs: torch.Tensor,
        order: torch.Tensor | None = None,
    ) -> Layer:
        """Return the layer with what flows into it, (n, d_in).

        With an order of the inputs, frequent ones first, those up to the last that is used are
        kept: a range, of which products read and write without copies.
        """
        ones = [inputs.new_ones(len(inputs), 1)] if bias_name else []
        width = len(ones) + (inputs.shape[1] if weight_name else 0)
        layer = cls(weight, weight_name, bias_name, inputs[:, :0], width, len(weight))
        if weight_name and order is not None:
            inputs = inputs.index_select(1, order)
            used = inputs.any(0).nonzero()
            inputs = inputs[:, : int(used[-1]) + 1 if len(used) else 0]
            layer.order, layer.columns = order, slice(len(ones) + inputs.shape[1])
        parts = [*ones, inputs] if weight_name else ones
        if parts:
            layer.features = torch.cat(parts, dim=1)
        if layer.order is None:
            used = layer.features.any(0).nonzero().squeeze(1)
            if len(used) < _USED * width:
                layer.columns, layer.features = used, layer.features[:, used]
        return layer

    @property
    def inputs(self) -> torch.Tensor:
        """What flows in, (n, d_in), when the weight is a coordinate."""
        features = self.features
        if self.columns is not None:
            features = features.new_zeros(len(features), self.width)
            features[:, self.columns] = self.features
        inputs = features[:, int(self.bias_name is not None) :]
        return inputs if self.order is None else inputs[:, self.order.argsort()]

    def drop_idle(self, above: Layer) -> None:
        """Drop the outputs that no sample passes on to the layer above."""
        if self.slopes is None:
            return
        moving = self.slopes.any(0)
        if self.bends is not None:
            moving |= self.bends.any(0)
        if 0 < int(moving.sum()) < _USED * self.fan_out:
            units = moving.nonzero().squeeze(1)
            self.units = above.sources = units
            self.weight, above.weight = self.weight[units], above.weight[:, units]
            self.slopes = self.slopes[:, units]
            self.bends = None if self.bends is None else self.bends[:, units]

    def own_change(self, directions: Directions) -> torch.Tensor | None:
        """Return the pre-activations' change (n, k, d_out) by the layer's own parameters."""
        if not self.width:
            return None
        inward = directions.inward(self.weight_name, self.bias_name, self.order)
        part = _part(inward, self.columns, self.units, directions.rows)
        shape = len(self.features), directions.rows, len(self.weight)
        change = directions.workspace.take(
            ("change", self.weight_name, self.bias_name), shape, part
        )
        torch.mm(self.features, part, out=change.flatten(1))
        return change

    def add_gradients(self, back: torch.Tensor, sums: GradientSums) -> None:
        """Add the gradients of the layer's parameters for what flows back, (n, k, d_out)."""
        if not self.width:
            return
        shape = self.width, back.shape[1], self.fan_out
        total = sums.inward(self.weight_name, self.bias_name, back, shape, self.order)
        _add_part(total, self.features, back, self.columns, self.units)

    def add_mixed(self, flow: torch.Tensor, before: torch.Tensor, sums: GradientSums) -> None:
        """Add the weight's gradient by the change of its inputs.

        Args:
            flow: The loss gradient at the pre-activations, (n, d_out).
            before: Change of the inputs, (n, k, d_in).
            sums: The gradients; are added to.
        """
        if self.weight_name:
            fan_in = self.width - (self.bias_name is not None)
            shape = self.fan_out, before.shape[1], fan_in
            total = sums.outward(self.weight_name, before, shape)
            _add_part(total, flow, before, self.units, self.sources)

    def add_turned(self, flow: torch.Tensor, change: torch.Tensor, directions: Directions) -> None:
        """Add what the weight's change adds to that of the loss gradient at the inputs."""
        if self.weight_name:
            outward = directions.outward(self.weight_name)
            part = _part(outward, self.units, self.sources, directions.rows)
            change.flatten(1).addmm_(flow, part)

    def widened(self, back: torch.Tensor) -> torch.Tensor:
        """Return (n, k, d_out) with zeros for the outputs that dropped out."""
        if self.units is None:
            return back
        whole = back.new_zeros(*back.shape[:2], self.fan_out)
        whole[..., self.units] = back
        return whole

    def damp(self, change: torch.Tensor) -> torch.Tensor:
        """Multiply (n, k, d_out) by the slopes, in place."""
        return change if self.slopes is None else change.mul_(self.slopes.unsqueeze(1))


class ChainLinearisation:
    """Derivatives of a chain f = φ_L(W_L … φ_1(W_1 x + b_1) … + b_L) on one batch."""

    def __init__(self, layers: list[Layer], outputs: torch.Tensor) -> None:
        for layer, above in pairwise(layers):
            layer.drop_idle(above)
        self.outputs = outputs
        self._layers = layers
        self._curving: Callable[..., torch.Tensor] | None = None
        self._flow: dict[int, torch.Tensor] = {}
        self._bent: dict[int, torch.Tensor] = {}
        self._lowest = next(i for i, layer in enumerate(layers) if layer.width)

    @property
    def nbytes(self) -> int:
        """Memory of what is kept, with the loss gradient's flow."""
        tensors = [
            t
            for layer in self._layers
            for t in (layer.features, layer.slopes, layer.bends, layer.bends)
            if t is not None
        ]
        return sum(t.nbytes for t in tensors) + self.direction_bytes

    @property
    def direction_bytes(self) -> int:
        """Memory that a product takes for every direction: as much as all outputs of layers."""
        units = sum(len(layer.weight) for layer in self._layers)
        return units * len(self.outputs) * self.outputs.element_size()

    @property
    def is_piecewise_linear(self) -> bool:
        """Whether every φ″ vanishes."""
        return all(layer.bends is None for layer in self._layers)

    def push(self, block: Block) -> torch.Tensor:
        """Return J v, shape (k, n, C)."""
        directions = block if isinstance(block, Directions) else Directions(block)
        moved: torch.Tensor | None = None
        for layer in self._layers[self._lowest :]:
            moved = layer.damp(self._moved(layer, moved, directions))
        assert moved is not None
        return moved.transpose(0, 1)

    def pull(self, cotangents: torch.Tensor, sums: GradientSums) -> None:
        """Add Jᵀ u for u (k, n, C)."""
        for position, back in self._backward(cotangents.transpose(0, 1)):
            self._layers[position].add_gradients(back, sums)

    def curve(self, loss: Loss, targets: Any, block: Block, sums: GradientSums) -> None:
        """Add ∇²_θ Σ ℓ(f(θ), y) v: a forward and a backward pass of derivatives along v."""
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
            left = layer.widened(left)
            if layer.weight_name:
                right = layer.inputs.unsqueeze(1)
                found.append(Outer(layer.weight_name, left.unsqueeze(2), right, layer.bias_name))
            if layer.bias_name:
                found.append(Explicit(layer.bias_name, left))
        return found

    def structured(self) -> set[str]:
        """Return all names: every parameter has factors."""
        pairs = ((layer.weight_name, layer.bias_name) for layer in self._layers)
        return {name for pair in pairs for name in pair if name}

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

    def _backward(self, cotangents: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (position, what flows back into that layer's output (n, k, d)), last first."""
        back = cotangents.contiguous()
        for position in range(len(self._layers) - 1, self._lowest - 1, -1):
            layer = self._layers[position]
            if layer.slopes is not None:
                back = back * layer.slopes.unsqueeze(1)
            yield position, back
            if position > self._lowest:
                back = back @ layer.weight

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


def _part(
    matrix: torch.Tensor, rows: torch.Tensor | slice | None, units: torch.Tensor | None, blocks: int
) -> torch.Tensor:
    """Return some rows of a matrix (a, blocks·b), and some of the b columns of every block."""
    if rows is not None:
        matrix = matrix[rows]
    if units is not None:
        matrix = matrix.unflatten(1, (blocks, -1))[..., units].flatten(1)
    return matrix


def _add_part(
    total: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    rows: torch.Tensor | slice | None,
    units: torch.Tensor | None,
) -> None:
    """Add leftᵀ right, from left (n, a) and right (n, blocks, b), to that part of a total."""
    if isinstance(rows, slice):
        total, rows = total[rows], None
    if rows is None and units is None:
        total.addmm_(left.T, right.flatten(1))
        return
    product = left.T @ right.flatten(1)
    if units is not None:
        blocks = right.shape[1]
        spread = product.new_zeros(len(product), blocks, total.shape[1] // blocks)
        spread[..., units] = product.unflatten(1, (blocks, -1))
        product = spread.flatten(1)
    if rows is None:
        total += product
    else:
        total.index_add_(0, rows, product)

"""A linear layer of a chain on one batch: its own part in derivatives, by matrix products only.

Biases are weights of one more input that is always one. Inputs that are zero on the whole batch
drop out, and so do hidden units that no sample of the batch moves, where there are enough of them
to pay for the copying. In an order given by how frequent they are, inputs that are used are a
range, and nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hyperribbon.operators.derivatives.sums import Directions, GradientSums
from hyperribbon.operators.derivatives.workspace import Workspace

__all__ = ["Layer"]

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
        change = self.changes(len(self.features), directions.rows, part, directions.workspace)
        torch.mm(self.features, part, out=change.flatten(1))
        return change

    def changes(
        self, samples: int, rows: int, like: torch.Tensor, workspace: Workspace
    ) -> torch.Tensor:
        """Return memory for changes of the layer's output, (n, k, d_out); for one at a time."""
        use = "change", self.weight_name, self.bias_name
        return workspace.take(use, (samples, rows, len(self.weight)), like)

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

"""A linear layer of a chain on one batch: its own part in derivatives, by matrix products only.

Biases are weights of one more input that is always one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hyperribbon.operators.derivatives.sums import Directions, GradientSums
from hyperribbon.operators.derivatives.workspace import Workspace

__all__ = ["Layer"]


@dataclass
class Layer:
    """One linear layer and what follows it, on one batch.

    Attributes:
        weight: W (d_out, d_in).
        weight_name: Its name when it is a coordinate.
        bias_name: The bias's name when it is a coordinate.
        features: What its coordinates are multiplied with, (n, d): a one when the bias is a
            coordinate, then the inputs when the weight is.
        slopes: φ′ at the pre-activations, (n, d_out), or None for the identity.
        bends: φ″, or None where it vanishes.
    """

    weight: torch.Tensor
    weight_name: str | None
    bias_name: str | None
    features: torch.Tensor
    slopes: torch.Tensor | None = None
    bends: torch.Tensor | None = None

    @classmethod
    def on_inputs(
        cls,
        weight: torch.Tensor,
        weight_name: str | None,
        bias_name: str | None,
        inputs: torch.Tensor,
    ) -> Layer:
        """Return the layer with what flows into it, (n, d_in)."""
        parts = [inputs.new_ones(len(inputs), 1)] if bias_name else []
        parts += [inputs] if weight_name else []
        features = torch.cat(parts, dim=1) if parts else inputs[:, :0]
        return cls(weight, weight_name, bias_name, features)

    @property
    def width(self) -> int:
        """Columns of `features`; none when nothing of the layer is a coordinate."""
        return self.features.shape[1]

    def only(self, names: frozenset[str]) -> Layer:
        """Return the layer with those of its parameters as coordinates that have such names."""
        weight = self.weight_name if self.weight_name in names else None
        bias = self.bias_name if self.bias_name in names else None
        if (weight, bias) == (self.weight_name, self.bias_name):
            return self
        inputs = self.inputs if weight else self.features[:, :0]
        alone = Layer.on_inputs(self.weight, weight, bias, inputs)
        return replace(alone, slopes=self.slopes, bends=self.bends)

    @property
    def inputs(self) -> torch.Tensor:
        """What flows in, (n, d_in), when the weight is a coordinate."""
        return self.features[:, int(self.bias_name is not None) :]

    def own_change(self, directions: Directions) -> torch.Tensor | None:
        """Return the pre-activations' change (n, k, d_out) by the layer's own parameters."""
        if not self.width:
            return None
        part = directions.inward(self.weight_name, self.bias_name)
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
        shape = self.width, back.shape[1], len(self.weight)
        total = sums.inward(self.weight_name, self.bias_name, back, shape)
        total.addmm_(self.features.T, back.flatten(1))

    def add_mixed(self, flow: torch.Tensor, before: torch.Tensor, sums: GradientSums) -> None:
        """Add the weight's gradient by the change of its inputs.

        Args:
            flow: The loss gradient at the pre-activations, (n, d_out).
            before: Change of the inputs, (n, k, d_in).
            sums: The gradients; are added to.
        """
        if self.weight_name:
            shape = self.weight.shape[0], before.shape[1], self.weight.shape[1]
            sums.outward(self.weight_name, before, shape).addmm_(flow.T, before.flatten(1))

    def add_turned(self, flow: torch.Tensor, change: torch.Tensor, directions: Directions) -> None:
        """Add what the weight's change adds to that of the loss gradient at the inputs."""
        if self.weight_name:
            change.flatten(1).addmm_(flow, directions.outward(self.weight_name))

    def damp(self, change: torch.Tensor) -> torch.Tensor:
        """Multiply (n, k, d_out) by the slopes, in place."""
        return change if self.slopes is None else change.mul_(self.slopes.unsqueeze(1))

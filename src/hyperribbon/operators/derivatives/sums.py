"""Directions and gradients in the layouts that matrix products read and write without copies."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

import torch

from hyperribbon.core.devices.typed import unflattened
from hyperribbon.operators.derivatives.workspace import Workspace

__all__ = ["Directions", "GradientSums"]


class Directions(Mapping[str, torch.Tensor]):
    """Named directions (k, *shape), with other layouts of a layer's parameters made once.

    Args:
        named: Tensors with k leading rows.
        workspace: Memory for the layouts and for products.
    """

    def __init__(
        self, named: Mapping[str, torch.Tensor], workspace: Workspace | None = None
    ) -> None:
        self._named = dict(named)
        self.workspace = workspace or Workspace()
        self._inward: dict[tuple[str | None, str | None], torch.Tensor] = {}
        self._outward: dict[str, torch.Tensor] = {}
        self.rows = len(next(iter(self._named.values())))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def inward(self, weight: str | None, bias: str | None) -> torch.Tensor:
        """Return a layer's directions by input, (d_in, k·d_out), the bias as one more, the first.

        Args:
            weight: Name of the weight, if it is among them.
            bias: Name of the bias, if it is among them.
        """
        key = weight, bias
        if key not in self._inward:
            self._inward[key] = self._by_input(weight, bias).flatten(1)
        return self._inward[key]

    def _by_input(self, weight: str | None, bias: str | None) -> torch.Tensor:
        """Return (d_in, k, d_out), the bias first."""
        named = [self._named[name] for name in (weight, bias) if name is not None]
        first, inputs = int(bias is not None), 0 if weight is None else named[0].shape[2]
        shape = first + inputs, *named[0].shape[:2]
        rows = self.workspace.take(("inward", weight, bias), shape, named[0])
        if bias is not None:
            rows[0] = self._named[bias]
        if weight is not None:
            rows[first:] = self._named[weight].permute(2, 0, 1)
        return rows

    def outward(self, weight: str) -> torch.Tensor:
        """Return a weight's directions by output, (d_out, k·d_in)."""
        if weight not in self._outward:
            rows = self._named[weight].transpose(0, 1)
            if not rows.is_contiguous():
                rows = self.workspace.take(("outward", weight), rows.shape, rows).copy_(rows)
            self._outward[weight] = rows.flatten(1)
        return self._outward[weight]


class GradientSums:
    """Gradients (k, *shape) by name, summed over chunks of the samples.

    Matrix products add to `inward` and `outward` buffers, in the layouts of `Directions`; `named`
    puts the sums together.

    Args:
        workspace: Memory for the buffers, and for what flows back to them.
    """

    def __init__(self, workspace: Workspace | None = None) -> None:
        self.workspace = workspace or Workspace()
        self._plain: dict[str, torch.Tensor] = {}
        self._summed: set[str] = set()
        self._inward: dict[tuple[str | None, str | None], torch.Tensor] = {}
        self._outward: dict[str, torch.Tensor] = {}
        self._rows = 0

    def add(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Add gradients that are laid out like the parameters; they are not written to."""
        for name, gradient in gradients.items():
            if name not in self._plain:
                self._plain[name] = gradient
            elif name in self._summed:
                self._plain[name] += gradient
            else:
                self._plain[name] = self._plain[name] + gradient
                self._summed.add(name)

    def inward(
        self,
        weight: str | None,
        bias: str | None,
        like: torch.Tensor,
        shape: tuple[int, int, int],
    ) -> torch.Tensor:
        """Return the buffer (inputs, k·d_out) of a layer, of a tensor's kind.

        Args:
            weight: Name of the weight, if it is a coordinate.
            bias: Name of the bias, if it is a coordinate.
            like: A tensor of that kind.
            shape: Inputs with the bias's one, k, and d_out.
        """
        self._rows = shape[1]
        key = weight, bias
        if key not in self._inward:
            self._inward[key] = self._zeros(("inward sum", *key), like, shape)
        return self._inward[key]

    def outward(self, weight: str, like: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
        """Return the buffer (d_out, k·d_in) of a weight, likewise, for d_out, k and d_in."""
        if weight not in self._outward:
            self._outward[weight] = self._zeros(("outward sum", weight), like, shape)
        return self._outward[weight]

    def _zeros(
        self, use: Hashable, like: torch.Tensor, shape: tuple[int, int, int]
    ) -> torch.Tensor:
        return self.workspace.take(use, (shape[0], shape[1] * shape[2]), like).zero_()

    def named(self) -> dict[str, torch.Tensor]:
        """Return the gradients by name, each (k, *shape)."""
        found = dict(self._plain)
        for (weight, bias), buffer in self._inward.items():
            rows = unflattened(buffer, 1, (self._rows, -1))
            sums: dict[str, torch.Tensor] = {}
            if bias is not None:
                sums[bias], rows = rows[0], rows[1:]
            if weight is not None:
                sums[weight] = rows.permute(1, 2, 0)
            for name, total in sums.items():  # other chunks may have gone another way
                found[name] = total if name not in found else total + found[name]
        for weight, buffer in self._outward.items():
            rows = unflattened(buffer, 1, (self._rows, -1)).unbind(1)
            for total, row in zip(found[weight], rows, strict=True):  # stays in the cache
                total += row
        return found

"""Directions and gradients in the layouts that matrix products read and write without copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

__all__ = ["Directions", "GradientSums"]


class Directions(Mapping[str, torch.Tensor]):
    """Named directions (k, *shape), with other layouts of a layer's parameters made once.

    Args:
        named: Tensors with k leading rows.
    """

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._named = dict(named)
        self._inward: dict[tuple[str | None, str | None], torch.Tensor] = {}
        self._outward: dict[str, torch.Tensor] = {}
        self.rows = len(next(iter(self._named.values())))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def inward(
        self, weight: str | None, bias: str | None, order: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a layer's directions by input, (d_in, k·d_out), the bias as one more, the first.

        Args:
            weight: Name of the weight, if it is among them.
            bias: Name of the bias, if it is among them.
            order: The order of the weight's inputs; the same in every call.
        """
        key = weight, bias
        if key not in self._inward:
            parts = []
            if bias is not None:
                parts.append(self._named[bias].unsqueeze(0))
            if weight is not None:
                parts.append(self._named[weight].permute(2, 0, 1))
            self._inward[key] = _stacked(parts, order).flatten(1)
        return self._inward[key]

    def outward(self, weight: str) -> torch.Tensor:
        """Return a weight's directions by output, (d_out, k·d_in)."""
        if weight not in self._outward:
            self._outward[weight] = self._named[weight].transpose(0, 1).flatten(1).contiguous()
        return self._outward[weight]


class GradientSums:
    """Gradients (k, *shape) by name, summed over chunks of the samples.

    Matrix products add to `inward` and `outward` buffers, in the layouts of `Directions`; `named`
    puts the sums together.
    """

    def __init__(self) -> None:
        self._plain: dict[str, torch.Tensor] = {}
        self._inward: dict[tuple[str | None, str | None], torch.Tensor] = {}
        self._outward: dict[str, torch.Tensor] = {}
        self._orders: dict[tuple[str | None, str | None], torch.Tensor | None] = {}
        self._rows = 0

    def add(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Add gradients that are laid out like the parameters; they may be overwritten later."""
        for name, gradient in gradients.items():
            if name in self._plain:
                self._plain[name] += gradient
            else:
                self._plain[name] = gradient

    def inward(
        self,
        weight: str | None,
        bias: str | None,
        like: torch.Tensor,
        shape: tuple[int, int, int],
        order: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the buffer (inputs, k·d_out) of a layer, of a tensor's kind.

        Args:
            weight: Name of the weight, if it is a coordinate.
            bias: Name of the bias, if it is a coordinate.
            like: A tensor of that kind.
            shape: Inputs with the bias's one, k, and d_out.
            order: The order of the weight's inputs; the same in every call.
        """
        self._rows = shape[1]
        key = weight, bias
        if key not in self._inward:
            self._inward[key] = like.new_zeros(shape[0], shape[1] * shape[2])
            self._orders[key] = order
        return self._inward[key]

    def outward(self, weight: str, like: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
        """Return the buffer (d_out, k·d_in) of a weight, likewise, for d_out, k and d_in."""
        if weight not in self._outward:
            self._outward[weight] = like.new_zeros(shape[0], shape[1] * shape[2])
        return self._outward[weight]

    def named(self) -> dict[str, torch.Tensor]:
        """Return the gradients by name, each (k, *shape)."""
        found = dict(self._plain)
        for (weight, bias), buffer in self._inward.items():
            order, rows = self._orders[weight, bias], buffer.unflatten(1, (self._rows, -1))
            if bias is not None:
                found[bias], rows = rows[0], rows[1:]
            if weight is not None:
                rows = rows if order is None else rows[order.argsort()]
                found[weight] = rows.permute(1, 2, 0)
        for weight, buffer in self._outward.items():
            rows = buffer.unflatten(1, (self._rows, -1)).unbind(1)
            for total, row in zip(found[weight], rows, strict=True):  # stays in the cache
                total += row
        return found


def _stacked(parts: list[torch.Tensor], order: torch.Tensor | None) -> torch.Tensor:
    """Return parts below each other, the rows of the last one in an order if there is one."""
    if order is None:
        return torch.cat(parts)
    *above, last = parts
    start = sum(len(part) for part in above)
    whole = last.new_empty(start + len(last), *last.shape[1:])
    if above:
        torch.cat(above, out=whole[:start])
    torch.index_select(last, 0, order, out=whole[start:])
    return whole

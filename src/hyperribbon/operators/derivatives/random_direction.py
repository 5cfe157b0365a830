"""One direction through all weights, on which ways to derivatives are tried out."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from hyperribbon.core.devices.typed import linalg

__all__ = ["some_direction"]

_PERIOD = 262_147  # numbers of a random direction until they recur, a prime


def some_direction(leaves: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a random direction in proportion to the weights, always the same.

    Large parameters have the same numbers again and again, with a period that is no row's.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    sizes = {name: _mean_square(leaf) for name, leaf in leaves.items()}
    overall = max(sizes.values())
    direction: dict[str, torch.Tensor] = {}
    for name, leaf in leaves.items():
        size = max(sizes[name], 0.01 * overall, 1e-6) ** 0.5
        count = min(leaf.numel(), _PERIOD)
        drawn = torch.randn(count, generator=generator, dtype=torch.float32, device="cpu")
        drawn = drawn.mul_(size).to(leaf.device, leaf.dtype)
        whole = drawn.repeat(math.ceil(leaf.numel() / max(count, 1)))[: leaf.numel()]
        direction[name] = whole.reshape(leaf.shape)
    return direction


def _mean_square(tensor: torch.Tensor) -> float:
    size = linalg.vector_norm(tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)))
    return float(size) ** 2 / max(tensor.numel(), 1)

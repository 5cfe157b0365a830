"""One direction through all weights, on which ways to derivatives are tried out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

__all__ = ["some_direction"]

_PERIOD = 65_537  # numbers of a random direction until they recur, a prime


def some_direction(leaves: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a random direction in proportion to the weights, always the same.

    The same numbers come again and again, with a period that is no row's; each parameter goes on
    where the one before it has stopped.
    """
    sizes = {name: _mean_square(leaf) for name, leaf in leaves.items()}
    overall, start = max(sizes.values()), 0
    direction: dict[str, torch.Tensor] = {}
    for name, leaf in leaves.items():
        size = max(sizes[name], 0.01 * overall, 1e-6) ** 0.5
        stop = start + leaf.numel()
        turns = -(-stop // _PERIOD)
        numbers = _numbers() if turns <= 1 else _numbers().repeat(turns)
        scaled = (numbers[start:stop] * size).to(leaf.device, leaf.dtype)
        direction[name] = scaled.reshape(leaf.shape)
        start = stop % _PERIOD
    return direction


@cache
def _numbers() -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    with torch.inference_mode(False):  # else it could not be used outside of it, later
        return torch.randn(_PERIOD, generator=generator, dtype=torch.float32, device="cpu")


def _mean_square(tensor: torch.Tensor) -> float:
    size = torch.linalg.vector_norm(
        tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
    )
    return float(size) ** 2 / max(tensor.numel(), 1)

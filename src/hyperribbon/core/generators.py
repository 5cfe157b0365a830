"""Seeds and generators: explicit, derived by name, never the global random state."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperribbon.core.checks import ArgumentError, seed_number, validate

if TYPE_CHECKING:
    import torch


def _device(argument: str, value: Any) -> Any:
    import torch

    try:
        return torch.device(value)
    except (TypeError, RuntimeError):
        raise ArgumentError(argument, value, "expected a device", 'Give "cpu" or "cuda".') from None


def derive_seed(seed: int, *keys: str | int | float) -> int:
    """Return a generator's 63-bit seed, which depends on `seed` and every key alone.

    The same (seed, keys) gives the same number on any machine, so a task of a sweep has its own
    stream wherever and in whatever order it runs.

    >>> derive_seed(0, "chain", 3) == derive_seed(0, "chain", 3)
    True
    >>> derive_seed(0, "chain", 3) == derive_seed(0, "chain", 4)
    False
    """
    seed = seed_number("seed", seed)
    text = "\x1f".join(f"{type(key).__name__}:{key}" for key in (seed, *keys))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@validate(device=_device)
def torch_generator(
    seed: int, *keys: str | int | float, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return a torch generator for the stream named by (seed, keys)."""
    import torch

    return torch.Generator(device).manual_seed(derive_seed(seed, *keys))


def numpy_generator(seed: int, *keys: str | int | float) -> np.random.Generator:
    """Return a numpy generator for the stream named by (seed, keys)."""
    return np.random.default_rng(derive_seed(seed, *keys))

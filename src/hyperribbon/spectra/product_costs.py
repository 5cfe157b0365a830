"""What a product takes, and how fast a device computes: the ground that plans are made on."""

from __future__ import annotations

import time
from functools import lru_cache

import torch

from hyperribbon.spectra.products import Products

_GUESS = 1000.0  # operations a coordinate in a product whose cost is not known


def product_bytes(products: Products, is_audited: bool = True) -> int:
    """Return the memory cost of a product, with the audit's in a higher precision beside it."""
    cost = products.op.cost() if hasattr(products.op, "cost") else None
    if cost is None:
        return 0
    return int(cost.bytes) + (int(getattr(cost, "beside", 0)) if is_audited else 0)


def product_flops(products: Products) -> float:
    """Return the cost of a product in operations; a guess where the operator does not know."""
    if products.is_explicit:
        return 2.0 * products.size**2
    cost = products.op.cost() if hasattr(products.op, "cost") else None
    return _GUESS * products.size if cost is None else float(cost.flops)


def product_seconds(products: Products, rate: float) -> float:
    """Return how long a product takes: as long as the last one, else from its operations.

    Args:
        products: The operator.
        rate: Operations a second, see `speed`.
    """
    known = getattr(products.op, "seconds", None)
    return known if isinstance(known, float) else product_flops(products) / rate


def gigabytes(count: float) -> str:
    """Return a product's cost in bytes as text."""
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"


def speed(products: Products) -> float:
    """Return operations per second of the operator's device, by which products cost time."""
    return _operations_per_second(products.device.type, products.dtype)


@lru_cache
def _operations_per_second(device: str, dtype: torch.dtype) -> float:
    """Measure how fast a device multiplies matrices, once, to cost products."""
    a = torch.ones(512, 512, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        float((a @ a)[0, 0])
        best = min(best, time.perf_counter() - start)
    return 2 * 512**3 / best

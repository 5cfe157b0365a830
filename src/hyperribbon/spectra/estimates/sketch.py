"""Random probes and a basis of leading directions, in blocks that fit in memory."""

from __future__ import annotations

from math import sqrt
from typing import Annotated as Float

import torch

from hyperribbon.core.generators import torch_generator
from hyperribbon.spectra.products import Products

__all__ = ["LEAST_VECTORS", "Sketch", "row_products", "widths"]

LEAST_VECTORS = 5
"""Vectors of P numbers with which a sketch can work: a probe, its image, and their making."""

_WORKING = 5  # blocks in memory at once besides what is kept
_BLOCK = 64  # probes multiplied at once where memory allows
_PIECE = 4096  # numbers whose products are in float64 at once, or this part of a vector:
_PART = 64


class Sketch:
    """An orthonormal basis Q of leading directions with Z = AQ, and probes of what is left.

    All are kept as rows. Each probe is drawn by itself, so that they do not depend on the blocks
    they are multiplied in.

    Args:
        products: The operator.
        seed: Seed of the probes.
        name: Name of their stream.
        vectors: Vectors of P numbers that may be in memory, at least `LEAST_VECTORS`.

    Attributes:
        block: Probes that are multiplied at once.
        rank: Rows of Q.
    """

    def __init__(self, products: Products, seed: int, name: str, vectors: float) -> None:
        self.products = products
        self.block = int(max(1, min(_BLOCK, vectors // (2 * _WORKING))))
        self.rank = 0
        self._most = int((min(vectors, 1e9) - _WORKING * self.block) // 2)
        self._generator = torch_generator(seed, name)
        self._parts: list[tuple[torch.Tensor, torch.Tensor]] = []  # of Q and of Z

    @property
    def room(self) -> int:
        """Directions that can still be added to Q."""
        return max(self._most - self.rank, 0)

    @property
    def Q(self) -> Float[torch.Tensor, "rank P"]:
        """(rank, P)."""
        return self._whole(0)

    @property
    def Z(self) -> Float[torch.Tensor, "rank P"]:
        """(rank, P)."""
        return self._whole(1)

    def inner(self) -> float:
        """Return tr(QᵀAQ)."""
        return sum(float(row_products(Q, Z).sum()) for Q, Z in self._parts)

    def squares(self) -> float:
        """Return ‖AQ‖²."""
        return sum(float(row_products(Z, Z).sum()) for _, Z in self._parts)

    def multiply(self, rows: torch.Tensor) -> Float[torch.Tensor, "b P"]:
        """Return the images (b, P) of rows."""
        return self.products(rows.T).T

    def absorb(self, images: list[torch.Tensor]) -> None:
        """Add the span of images AΩ, rows of no more than `block` each, to Q; the list is emptied.

        Directions for which there is no room are left out.
        """
        while images:
            rows = images.pop(0)[: self.room]
            largest = rows.abs().amax() if rows.numel() else 0
            rows = rows / largest if largest > 0 else rows  # neither over- nor underflow in QR
            for _ in range(2 if len(rows) else 0):
                rows = torch.linalg.qr(self.deflate(rows).T).Q.T
            if len(rows):
                self._parts.append((rows, self.multiply(rows)))
                self.rank += len(rows)

    def probes(self, count: int) -> Float[torch.Tensor, "b P"]:
        """Return random rows orthogonal to Q, uniform on the sphere where E[ωωᵀ] = I − QQᵀ."""
        size, products = self.products.size, self.products
        rows = torch.empty(count, size, dtype=products.dtype, device=products.device)
        for row in rows:
            row.copy_(
                torch.randn(size, generator=self._generator, dtype=products.dtype, device="cpu")
            )
        rows = self.deflate(self.deflate(rows))
        lengths = row_products(rows, rows).sqrt().to(rows)
        return rows.mul_(sqrt(max(size - self.rank, 0)) / lengths.unsqueeze(1))

    def signs(self) -> Float[torch.Tensor, "1 P"]:
        """Return one vector (1, P) of random signs."""
        bits = torch.randint(0, 2, (1, self.products.size), generator=self._generator, device="cpu")
        return (2 * bits - 1).to(self.products.device, self.products.dtype)

    def deflate(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows (I − QQᵀ)."""
        for Q, _ in self._parts:
            rows = torch.addmm(rows, rows @ Q.T, Q, alpha=-1)
        return rows

    def _whole(self, which: int) -> torch.Tensor:
        products = self.products
        none = torch.empty(0, products.size, dtype=products.dtype, device=products.device)
        return torch.cat([none, *(part[which] for part in self._parts)])


def row_products(a: torch.Tensor, b: torch.Tensor) -> Float[torch.Tensor, "n"]:
    """Return the inner products (n,) of the rows of a and b, in float64.

    The products are taken in float64 too: squares of single-precision numbers below 1e-23 or above
    1e19 have no room in single precision.
    """
    total = torch.zeros(len(a), dtype=torch.float64, device=a.device)
    columns = max(_PIECE, a.shape[1] // _PART) // max(len(a), 1) + 1
    for first, second in zip(a.split(columns, dim=1), b.split(columns, dim=1), strict=True):
        total += first.to(torch.float64, copy=True).mul_(second).sum(1)
    return total


def widths(count: int, block: int) -> list[int]:
    """Return the widths of the blocks in which `count` probes are multiplied."""
    return [min(block, count - start) for start in range(0, count, block)]

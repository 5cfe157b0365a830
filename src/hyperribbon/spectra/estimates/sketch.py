"""Random probes and a basis of leading directions, in blocks that fit in memory."""

from __future__ import annotations

from math import sqrt
from typing import Annotated as Float

import torch

from hyperribbon.core.generators import torch_generator
from hyperribbon.spectra.products import Products

LEAST_VECTORS = 5
"""Vectors of P numbers with which a sketch can work: a probe, its image, and their making."""

_WORKING = 5  # blocks in memory at once besides what is kept
_BLOCK = 16  # probes multiplied at once where memory allows
_PIECE = 4096  # numbers whose products are in float64 at once, or this part of a vector:
_PART = 64


class Sketch:
    """Probes Ω, an orthonormal basis Q of their images AΩ, Z = AQ, and small matrices of these.

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
        H: (rank, rank), QᵀAQ.
        G: (rank, rank), ZᵀZ = QᵀA²Q.
        W: (rank, rank), QᵀΩ.
        R: (rank, rank), QᵀAΩ, upper triangular.
    """

    def __init__(self, products: Products, seed: int, name: str, vectors: float) -> None:
        self.products = products
        self.block = int(max(1, min(_BLOCK, vectors // (2 * _WORKING))))
        self.rank = 0
        self._most = int((min(vectors, 1e9) - _WORKING * self.block) // 3)
        self._generator = torch_generator(seed, name)
        self._parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []  # of Q, Z and Ω
        self.H = self.G = self.W = self.R = torch.zeros(0, 0, dtype=torch.float64, device="cpu")

    @property
    def room(self) -> int:
        """Directions that can still be added to the sketch's basis Q."""
        return max(self._most - self.rank, 0)

    @property
    def Q(self) -> Float[torch.Tensor, "rank P"]:
        """Orthonormal rows (rank, P) of the sketch."""
        return torch.cat([part[0] for part in self._parts])

    @property
    def Z(self) -> Float[torch.Tensor, "rank P"]:
        """Images (rank, P) of the sketch's rows."""
        return torch.cat([part[1] for part in self._parts])

    def multiply(self, rows: torch.Tensor) -> Float[torch.Tensor, "b P"]:
        """Return the images (b, P) of rows for the sketch."""
        return self.products(rows.T).T

    def absorb(self, omega: torch.Tensor, image: torch.Tensor) -> None:
        """Add probes (b, P), and the span of their images, to the sketch."""
        largest = float(image.abs().amax())
        rows = image / largest if largest > 0 else image  # neither over- nor underflow in QR
        for _ in range(2):
            rows = torch.linalg.qr(self.deflate(rows).T).Q.T
        self._parts.append((rows, self.multiply(rows), omega))
        self.rank += len(rows)
        columns = torch.cat([cross_products(Q, image) for Q, _, _ in self._parts])
        above = torch.nn.functional.pad(self.R, (0, 0, 0, len(rows)))
        self.R = torch.cat([above, columns], 1)
        self.H, self.G, self.W = self._cross(0, 1), self._cross(1, 1), self._cross(0, 2)

    def rounding(self, order: int, value: float) -> float:
        """Return what rounding hides from a sketch's tr A (order 1) or ‖A‖² (order 2)."""
        eps = torch.finfo(self.products.dtype).eps
        sizes = self.G.diagonal().clamp(min=0).sqrt() ** order
        return eps * (2 * float(sizes.sum()) + abs(value))

    def _cross(self, first: int, second: int) -> torch.Tensor:
        """Return the sketch's inner products (rank, rank) of two of Q, Z and Ω."""
        rows = [
            torch.cat([cross_products(a[first], b[second]) for b in self._parts], 1)
            for a in self._parts
        ]
        return torch.cat(rows)

    def probes(self, count: int) -> Float[torch.Tensor, "b P"]:
        """Return random rows orthogonal to the sketch's Q, on the sphere where E[ωωᵀ] = I − QQᵀ."""
        rows = self.deflate(self.deflate(self.draw(count)))
        lengths = row_products(rows, rows).sqrt().to(rows)
        return rows.mul_(sqrt(max(self.products.size - self.rank, 0)) / lengths.unsqueeze(1))

    def draw(self, count: int) -> Float[torch.Tensor, "b P"]:
        """Return random rows for a sketch, uniform on the sphere where E[ωωᵀ] = I."""
        size, products = self.products.size, self.products
        rows = torch.empty(count, size, dtype=products.dtype, device=products.device)
        for row in rows:
            row.copy_(
                torch.randn(size, generator=self._generator, dtype=products.dtype, device="cpu")
            )
        lengths = row_products(rows, rows).sqrt().to(rows)
        return rows.mul_(sqrt(size) / lengths.unsqueeze(1))

    def signs(self) -> Float[torch.Tensor, "1 P"]:
        """Return one probe (1, P) of random signs for a sketch."""
        bits = torch.randint(0, 2, (1, self.products.size), generator=self._generator, device="cpu")
        return (2 * bits - 1).to(self.products.device, self.products.dtype)

    def deflate(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows with the sketch's directions removed, rows (I − QQᵀ)."""
        for Q, _, _ in self._parts:
            rows = torch.addmm(rows, rows @ Q.T, Q, alpha=-1)
        return rows


def row_products(a: torch.Tensor, b: torch.Tensor) -> Float[torch.Tensor, "n"]:
    """Return the inner products (n,) of a sketch's rows a and b, in float64.

    The products are taken in float64 too: squares of single-precision numbers below 1e-23 or above
    1e19 have no room in single precision.
    """
    total = torch.zeros(len(a), dtype=torch.float64, device=a.device)
    columns = max(_PIECE, a.shape[1] // _PART) // max(len(a), 1) + 1
    for first, second in zip(a.split(columns, dim=1), b.split(columns, dim=1), strict=True):
        total += first.to(torch.float64, copy=True).mul_(second).sum(1)
    return total


def cross_products(a: torch.Tensor, b: torch.Tensor) -> Float[torch.Tensor, "n m"]:
    """Return the inner products (n, m) of a sketch's rows with rows, in float64 on the CPU."""
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    scale = float(a.abs().amax() * b.abs().amax()) if a.numel() and b.numel() else 0.0
    wide = not 1e-20 < scale < 1e20  # products may have no room in single precision
    for first, second in zip(a.split(_PIECE, dim=1), b.split(_PIECE, dim=1), strict=True):
        total += first.double() @ second.double().T if wide else first @ second.T
    return total.cpu()


def widths(count: int, block: int) -> list[int]:
    """Return the widths of the blocks in which a sketch multiplies `count` probes."""
    return [min(block, count - start) for start in range(0, count, block)]

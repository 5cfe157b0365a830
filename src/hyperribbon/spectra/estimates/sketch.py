"""Random probes and Krylov directions to deflate them by, in blocks that fit in memory."""

from __future__ import annotations

from math import sqrt
from typing import Annotated as Float

import torch

from hyperribbon.core.generators import torch_generator
from hyperribbon.spectra.products import Products

LEAST_VECTORS = 5
"""Vectors of P numbers with which a sketch can work: a probe, its image, and their making."""

_WORKING = 5  # blocks in memory at once besides what is kept
_KEPT = 30  # vectors that are left for a pilot and directions before blocks become larger
_BLOCK = 16  # probes multiplied at once where memory allows
_PIECE = 4096  # numbers whose products are in float64 at once, or this part of a vector:
_PART = 64


class Sketch:
    """Random probes, and the Krylov basis Q of a random vector with the projection T = QᵀAQ.

    With the chain's next direction u, a unit vector orthogonal to Q, and its coupling β,

        A Q = Q T + β u eᵀ,    e the last unit vector,

    so no images are kept. All vectors are rows. Each probe is drawn by itself, so that they do not
    depend on the blocks they are multiplied in.

    Args:
        products: The operator.
        seed: Seed of the probes.
        name: Name of their stream.
        vectors: Vectors of P numbers that may be in memory, at least `LEAST_VECTORS`.

    Attributes:
        block: Probes that are multiplied at once.
        room: Vectors that can be kept beside the blocks that are multiplied.
        rank: Rows of Q.
        T: (rank, rank).
        coupling: β; 0 where the chain has ended.
        following: u, (1, P).
    """

    def __init__(self, products: Products, seed: int, name: str, vectors: float) -> None:
        self.products = products
        rest = vectors - _KEPT
        most = (rest if rest >= _WORKING else vectors) // _WORKING
        self.block = int(max(1, min(_BLOCK, most)))
        self.room = int(min(vectors, 1e9)) - _WORKING * self.block
        self._generator = torch_generator(seed, name)
        self._starts = torch_generator(seed, f"{name}, chain")
        self._parts: list[torch.Tensor] = []  # of Q, with space for further rows
        self.rank, self.coupling = 0, 0.0
        self.T = torch.zeros(0, 0, dtype=torch.float64, device="cpu")
        shape = 1, products.size
        self.following = torch.zeros(shape, dtype=products.dtype, device=products.device)

    def rows(self, start: int = 0) -> list[torch.Tensor]:
        """Return the sketch's Q from a row on, in blocks of rows."""
        places = range(0, self.rank, _BLOCK)
        parts = zip(places, self._parts, strict=True)
        return [p[max(start - n, 0) : self.rank - n] for n, p in parts if n + _BLOCK > start]

    def grow(self) -> None:
        """Add the next direction of the sketch's chain to Q, or a random one where it ended."""
        row = self.following
        if self.coupling == 0:
            row = self._orthogonalise(self._random(1, self._starts))[0]
            row = row / row_products(row, row).sqrt().to(row)
        image = self.multiply(row)
        if self.rank % _BLOCK == 0:
            space = min(_BLOCK, max(self.room - self.rank, 1))
            self._parts.append(row.new_empty(space, self.products.size))
        self._parts[-1][self.rank % _BLOCK] = row[0]
        self.rank += 1
        largest = float(_largest(image))
        scale = largest if largest > 0 else 1.0  # neither over- nor underflow in what follows
        rest, inner = self._orthogonalise(image / scale)
        length = float(row_products(rest, rest).sqrt())
        self.T = torch.nn.functional.pad(self.T, (0, 1, 0, 1))
        self.T[-1] = self.T[:, -1] = scale * inner
        is_over = length <= 10 * torch.finfo(rest.dtype).eps * float(inner.norm())
        self.coupling = 0.0 if is_over else scale * length
        self.following = rest if is_over else rest / length

    def _orthogonalise(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a row (1, P) has outside the sketch's Q, and its inner products with Q."""
        total = torch.zeros(self.rank, dtype=torch.float64, device="cpu")
        for _ in range(2 if self.rank else 0):
            parts = [cross_products(row, Q) for Q in self.rows()]
            for inner, Q in zip(parts, self.rows(), strict=True):
                row = torch.addmm(row, inner.to(row), Q, alpha=-1)
            total += torch.cat(parts, 1)[0]
        return row, total

    def multiply(self, rows: torch.Tensor) -> Float[torch.Tensor, "b P"]:
        """Return the images (b, P) of rows for the sketch."""
        return self.products(rows.T).T

    def rounding(self, order: int, value: float) -> float:
        """Return what rounding hides from a sketch's tr A (order 1) or ‖A‖² (order 2)."""
        eps = torch.finfo(self.products.dtype).eps
        sizes = torch.linalg.vector_norm(self.T, dim=0) ** order
        return eps * (2 * float(sizes.sum()) + abs(value))

    def draw(self, count: int) -> Float[torch.Tensor, "b P"]:
        """Return random rows for a sketch, uniform on the sphere where E[ωωᵀ] = I."""
        rows = self._random(count, self._generator)
        lengths = row_products(rows, rows).sqrt().to(rows)
        return rows.mul_(sqrt(self.products.size) / lengths.unsqueeze(1))

    def _random(self, count: int, generator: torch.Generator) -> torch.Tensor:
        size, products = self.products.size, self.products
        rows = torch.empty(count, size, dtype=products.dtype, device=products.device)
        for row in rows:
            row.copy_(torch.randn(size, generator=generator, dtype=products.dtype, device="cpu"))
        return rows

    def signs(self) -> Float[torch.Tensor, "1 P"]:
        """Return one probe (1, P) of random signs for a sketch."""
        bits = torch.randint(0, 2, (1, self.products.size), generator=self._generator, device="cpu")
        return (2 * bits - 1).to(self.products.device, self.products.dtype)


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
    scale = float(_largest(a) * _largest(b)) if a.numel() and b.numel() else 0.0
    wide = not 1e-20 < scale < 1e20  # products may have no room in single precision
    for first, second in zip(a.split(_PIECE, dim=1), b.split(_PIECE, dim=1), strict=True):
        total += first.double() @ second.double().T if wide else first @ second.T
    return total.cpu()


def _largest(rows: torch.Tensor) -> torch.Tensor:
    return torch.stack(rows.aminmax()).abs().amax()


def widths(count: int, block: int) -> list[int]:
    """Return the widths of the blocks in which a sketch multiplies `count` probes."""
    return [min(block, count - start) for start in range(0, count, block)]

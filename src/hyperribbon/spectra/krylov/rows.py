"""Where long basis vectors live: in memory, in half precision, or on disk."""

from __future__ import annotations

import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch

__all__ = ["STORAGES", "DiskRows", "HalfRows", "MemoryRows", "Rows", "make_rows", "piece_length"]

_PIECE = 1 << 20  # columns worked on together
_CHUNK = 8192  # terms of an inner product that are summed in the rows' own precision
_WIDENED = 1 << 16  # columns that are brought to float64 together: longer copies are fresh pages
_HALF_RANGE = 2.0**15  # half precision reaches 65504


def piece_length(capacity: int, length: int) -> int:
    """Return the columns worked on together, of so many rows of a length.

    A copy of them is as long as a row, or a chunk of every row where rows are short.
    """
    chunks = length // max(capacity, 1) // _CHUNK
    return min(_PIECE, max(chunks, 1) * _CHUNK)


class Rows(ABC):
    """Vectors of equal length, one per row, read and combined piece by piece of their columns.

    Args:
        capacity: Rows that fit.
        length: Columns.
        dtype: Precision that rows are given, returned and combined in.
        device: Where they are given and returned.
    """

    eps: float
    """Relative rounding of what is stored."""

    def __init__(
        self, capacity: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity, self.length = capacity, length
        self.dtype, self.device = dtype, device
        self.eps = torch.finfo(dtype).eps
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Make the place where the rows are kept."""

    @abstractmethod
    def write(self, start: int, rows: torch.Tensor) -> None:
        """Store rows (b, length) from a position on."""

    @abstractmethod
    def read(self, rows: slice, columns: slice = slice(None)) -> torch.Tensor:
        """Return a block of some rows and columns."""

    @abstractmethod
    def compress(self, weights: torch.Tensor) -> None:
        """Replace the first rows (m) by combinations of them, weights (kept, m)."""

    def pieces(self) -> Iterator[slice]:
        """Yield the ranges of columns to work on."""
        step = piece_length(self.capacity, self.length)
        for start in range(0, self.length, step):
            yield slice(start, min(start + step, self.length))

    def combine(self, weights: torch.Tensor) -> torch.Tensor:
        """Return weights @ the first rows, for weights (m,) or (j, m)."""
        some = slice(0, weights.shape[-1])
        result = weights.new_empty(*weights.shape[:-1], self.length)
        for piece in self.pieces():
            result[..., piece] = weights @ self.read(some, piece)
        return result

    def inner(
        self, rows: slice, others: torch.Tensor | Rows, *, double: bool = False
    ) -> torch.Tensor:
        """Return rows @ others.T in float64 on the CPU.

        Args:
            rows: Which rows.
            others: Vectors as rows, (b, length); or stored ones, of which the same rows are taken.
            double: Whether products are taken in float64 too, not only sums over chunks of them.
        """
        count = rows.stop - rows.start
        width = count if isinstance(others, Rows) else len(others)
        total = torch.zeros(count, width, dtype=torch.float64, device=self.device)
        for piece in self.pieces():
            left = self.read(rows, piece)
            right = others.read(rows, piece) if isinstance(others, Rows) else others[:, piece]
            step = _WIDENED if double else _CHUNK
            for start in range(0, left.shape[1], step):
                some, same = left[:, start : start + step], right[:, start : start + step]
                total += some.double() @ same.double().T if double else some @ same.T
        return total.cpu()


class MemoryRows(Rows):
    """Rows as one tensor."""

    def _begin(self) -> None:
        shape = (self.capacity, self.length)
        self._buffer = torch.empty(shape, dtype=self.dtype, device=self.device)

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Store rows (b, length) from a position on."""
        self._buffer[start : start + len(rows)] = rows

    def read(self, rows: slice, columns: slice = slice(None)) -> torch.Tensor:
        """Return a view of some rows and columns."""
        return self._buffer[rows, columns]

    def combine(self, weights: torch.Tensor) -> torch.Tensor:
        """Return weights @ the first rows."""
        return weights @ self._buffer[: weights.shape[-1]]

    def compress(self, weights: torch.Tensor) -> None:
        """Replace the first rows by combinations of them."""
        kept, count = weights.shape
        for piece in self.pieces():
            self._buffer[:kept, piece] = weights @ self._buffer[:count, piece]


class HalfRows(Rows):
    """Rows in half precision, each scaled by its length; arithmetic stays in the full one.

    Entries of a unit vector are at most 1, and with a scale of 2¹⁵ entries 10⁻⁴ times smaller than
    the typical one of 10⁸ still have all their digits.
    """

    def _begin(self) -> None:
        shape = (self.capacity, self.length)
        self._buffer = torch.empty(shape, dtype=torch.float16, device=self.device)
        self._scales = torch.ones(self.capacity, 1, dtype=self.dtype, device=self.device)
        self.eps = torch.finfo(torch.float16).eps / 2

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Store rows (b, length) from a position on."""
        some = slice(start, start + len(rows))
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        self._scales[some] = lengths.clamp(min=1e-30) / _HALF_RANGE
        for piece in self.pieces():
            self._buffer[some, piece] = (rows[:, piece] / self._scales[some]).half()

    def read(self, rows: slice, columns: slice = slice(None)) -> torch.Tensor:
        """Return some rows and columns in full precision."""
        return self._buffer[rows, columns].to(self.dtype).mul_(self._scales[rows])

    def compress(self, weights: torch.Tensor) -> None:
        """Replace the first rows by combinations of them."""
        kept, count = weights.shape
        scales = weights.abs() @ self._scales[:count]
        for piece in self.pieces():
            mixed = weights @ self.read(slice(0, count), piece)
            self._buffer[:kept, piece] = mixed.div_(scales).half()
        self._scales[:kept] = scales


class DiskRows(Rows):
    """Rows in a temporary file (in TMPDIR), read into small buffers: memory stays flat."""

    def _begin(self) -> None:
        self._file, path = tempfile.mkstemp(prefix="hyperribbon-basis-")
        os.unlink(path)  # the space is free again as soon as the file is closed
        weakref.finalize(self, os.close, self._file)
        self._item = self.dtype.itemsize

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Store rows (b, length) from a position on."""
        for offset, row in enumerate(rows):
            for piece in self.pieces():
                self._put(start + offset, piece, row[piece])

    def read(self, rows: slice, columns: slice = slice(None)) -> torch.Tensor:
        """Return a copy of some rows and columns."""
        first, last = columns.start or 0, self.length if columns.stop is None else columns.stop
        block = torch.empty(rows.stop - rows.start, last - first, dtype=self.dtype, device="cpu")
        for position, row in enumerate(range(rows.start, rows.stop)):
            view = block[position].numpy().data.cast("B")
            done = 0
            while done < len(view):
                place = (row * self.length + first) * self._item + done
                done += os.preadv(self._file, [view[done:]], place)
        return block.to(self.device)

    def compress(self, weights: torch.Tensor) -> None:
        """Replace the first rows by combinations of them."""
        kept, count = weights.shape
        for piece in self.pieces():
            mixed = weights @ self.read(slice(0, count), piece)
            for row in range(kept):
                self._put(row, piece, mixed[row])

    def _put(self, row: int, columns: slice, values: torch.Tensor) -> None:
        view = values.detach().cpu().contiguous().numpy().data.cast("B")
        done = 0
        while done < len(view):
            place = (row * self.length + columns.start) * self._item + done
            done += os.pwritev(self._file, [view[done:]], place)


STORAGES: dict[str, type[Rows]] = {"memory": MemoryRows, "half": HalfRows, "disk": DiskRows}


def make_rows(
    storage: str, capacity: int, length: int, dtype: torch.dtype, device: torch.device
) -> Rows:
    """Return empty rows of a kind of `STORAGES`."""
    return STORAGES[storage](capacity, length, dtype, device)

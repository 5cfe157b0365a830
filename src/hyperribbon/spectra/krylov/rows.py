"""Where long basis vectors live: in memory or on disk."""

from __future__ import annotations

import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch

_PIECE = 1 << 20  # columns worked on together
_CHUNK = 1 << 16  # terms of an inner product that are summed in the rows' own precision
_SHORT = 8192  # columns of a row that are read at once, at least


def piece_length(capacity: int, length: int) -> int:
    """Return how many columns of stored rows are worked on together.

    A copy of them takes no more than one row, unless rows are short.
    """
    return min(_PIECE, max(length // max(capacity, 1), _SHORT))


class Rows(ABC):
    """Vectors of equal length, one per row, read and combined piece by piece of their columns.

    Args:
        capacity: Rows that fit.
        length: Columns.
        dtype: Precision that rows are given, returned and combined in.
        device: Where they are given and returned.
    """

    def __init__(
        self, capacity: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity, self.length = capacity, length
        self.dtype, self.device = dtype, device
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Make the place where the basis's rows are kept."""

    @abstractmethod
    def write(self, start: int, rows: torch.Tensor) -> None:
        """Write rows (b, length) to the store from a position on."""

    @abstractmethod
    def read(self, rows: slice, columns: slice = slice(None)) -> torch.Tensor:
        """Return a block of some stored rows and columns."""

    @abstractmethod
    def compress(self, weights: torch.Tensor) -> None:
        """Replace the first stored rows (m) by combinations of them, weights (kept, m)."""

    def pieces(self) -> Iterator[slice]:
        """Yield the ranges of columns of the stored rows to work on."""
        step = piece_length(self.capacity, self.length)
        for start in range(0, self.length, step):
            yield slice(start, min(start + step, self.length))

    def combine(self, weights: torch.Tensor, start: int = 0) -> torch.Tensor:
        """Return weights (j, m) @ the m stored rows from `start` on."""
        some = slice(start, start + weights.shape[-1])
        result = weights.new_empty(len(weights), self.length)
        for piece in self.pieces():
            result[:, piece] = weights @ self.read(some, piece)
        return result

    def subtract(self, row: torch.Tensor, weights: torch.Tensor, start: int = 0) -> None:
        """Subtract weights (1, m) @ the m stored rows from `start` on from a row, in place."""
        some = slice(start, start + weights.shape[-1])
        for piece in self.pieces():
            row[:, piece] -= weights @ self.read(some, piece)

    def inner(self, count: int, row: torch.Tensor) -> torch.Tensor:
        """Return the inner products (count,) of the first stored rows with one (1, length).

        They are summed in float64, chunk by chunk, and returned on the CPU.
        """
        total = torch.zeros(count, dtype=torch.float64, device=self.device)
        for piece in self.pieces():
            left, right = self.read(slice(0, count), piece), row[0, piece]
            for start in range(0, len(right), _CHUNK):
                some = slice(start, start + _CHUNK)
                total += left[:, some] @ right[some]
        return total.cpu()


class MemoryRows(Rows):
    """Rows of a Krylov basis in memory, as one tensor."""

    def _begin(self) -> None:
        shape = (self.capacity, self.length)
        self._buffer = torch.empty(shape, dtype=self.dtype, device=self.device)

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Store rows (b, length) in memory from a position on."""
        self._buffer[start : start + len(rows)] = rows

    def read(self, rows: slice, columns: slice = slice(None)) -> torch.Tensor:
        """Return a view of some rows and columns in memory."""
        return self._buffer[rows, columns]

    def combine(self, weights: torch.Tensor, start: int = 0) -> torch.Tensor:
        """Return weights (j, m) @ the m rows in memory from `start` on."""
        return weights @ self._buffer[start : start + weights.shape[-1]]

    def subtract(self, row: torch.Tensor, weights: torch.Tensor, start: int = 0) -> None:
        """Subtract weights (1, m) @ the m rows from `start` on from a row (1, length), in place."""
        rows = self._buffer[start : start + weights.shape[-1]]
        for part, some in zip(row.split(_PIECE, 1), rows.split(_PIECE, 1), strict=True):
            part -= weights @ some

    def compress(self, weights: torch.Tensor) -> None:
        """Replace the first rows in memory by combinations of them."""
        kept, count = weights.shape
        for piece in self.pieces():
            self._buffer[:kept, piece] = weights @ self._buffer[:count, piece]


class DiskRows(Rows):
    """Rows in a temporary file (in TMPDIR), read into small buffers: memory stays flat."""

    def _begin(self) -> None:
        self._file, path = tempfile.mkstemp(prefix="hyperribbon-basis-")
        os.unlink(path)  # the space is free again as soon as the file is closed
        weakref.finalize(self, os.close, self._file)
        self._item = self.dtype.itemsize

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Store rows (b, length) on disk from a position on."""
        for offset, row in enumerate(rows):
            for piece in self.pieces():
                self._put(start + offset, piece, row[piece])

    def read(self, rows: slice, columns: slice = slice(None)) -> torch.Tensor:
        """Return a copy of some rows and columns on disk."""
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
        """Replace the first rows on disk by combinations of them."""
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


def make_rows(
    storage: str, capacity: int, length: int, dtype: torch.dtype, device: torch.device
) -> Rows:
    """Return empty rows in "memory" or on "disk"."""
    kind = DiskRows if storage == "disk" else MemoryRows
    return kind(capacity, length, dtype, device)

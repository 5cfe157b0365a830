"""Sums of logarithms of affinities over samples, tile by tile of pairs of models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

__all__ = ["PRECISIONS", "Precision", "sum_logs"]

_TILE = 100  # most models in a tile: a group of float32 tiles stays in a core's second cache
_GROUP = 16  # most affinities multiplied before one logarithm
_BLAS_THREADS_FROM = 1 << 18  # multiplications above which OpenBLAS starts threads of its own


@dataclass(frozen=True)
class Precision:
    """A floating-point type and how small its numbers may become.

    Attributes:
        dtype: The type.
        smallest: Products and affinities below this may have lost digits to underflow.
    """

    dtype: type
    smallest: float


PRECISIONS = {"single": Precision(np.float32, 1e-30), "double": Precision(np.float64, 1e-290)}


@dataclass(frozen=True)
class _Tile:
    """Some models, and their roots √p as (samples, classes, models)."""

    start: int
    models: np.ndarray
    roots: np.ndarray


def sum_logs(
    left: np.ndarray, right: np.ndarray, log: bool, precision: str, workers: int
) -> tuple[np.ndarray, int]:
    """Return −Σ_s log Σ_c √(p_u p_v) for all pairs and the number of underflows.

    Args:
        left: (models, samples, classes), probabilities or their logarithms.
        right: The same for the columns; the very same array for a symmetric result.
        log: Whether these are logarithms.
        precision: Key of `PRECISIONS`.
        workers: Threads.
    """
    kind = PRECISIONS[precision]
    rows = _cut(left, log, kind)
    symmetric = right is left
    columns = rows if symmetric else _cut(right, log, kind)
    result = np.zeros((len(left), len(right)))

    def fill(pair: tuple[_Tile, _Tile]) -> int:
        row, column = pair
        block, tiny = _tile(row, column, log, kind)
        at = slice(row.start, row.start + block.shape[0])
        result[at, column.start : column.start + block.shape[1]] = block
        return tiny

    pairs = [(r, c) for r in rows for c in columns if not symmetric or c.start > r.start]
    if symmetric:
        pairs += [pair for tile in rows for pair in _upper_half(tile)]
    heavy = workers > 1 and _TILE**2 * left.shape[2] > _BLAS_THREADS_FROM
    quiet = threadpool_limits(1, user_api="blas") if heavy else nullcontext()
    with quiet, ThreadPoolExecutor(workers) as pool:
        tiny = sum(pool.map(fill, pairs))
    if symmetric:
        above = np.triu(result, 1)
        result = above + above.T
    return result, tiny


def _upper_half(tile: _Tile) -> list[tuple[_Tile, _Tile]]:
    """Return two pairs that cover a tile's pairs of different models, a quarter left out."""
    half = (len(tile.models) + 1) // 2
    first = _Tile(tile.start, tile.models[:half], tile.roots[:, :, :half])
    second = _Tile(tile.start + half, tile.models[half:], tile.roots[:, :, half:])
    return [(first, tile), (second, second)] if len(second.models) else [(first, tile)]


def _cut(models: np.ndarray, log: bool, kind: Precision) -> list[_Tile]:
    tiles, start = [], 0
    for part in np.array_split(models, -(-len(models) // _TILE)):
        values = part.astype(kind.dtype, copy=False)
        roots = np.exp(values / 2) if log else np.sqrt(values)
        tiles.append(_Tile(start, part, np.ascontiguousarray(roots.transpose(1, 2, 0))))
        start += len(part)
    return tiles


def _tile(row: _Tile, column: _Tile, log: bool, kind: Precision) -> tuple[np.ndarray, int]:
    left, right = row.roots.transpose(0, 2, 1), column.roots
    total = np.zeros((left.shape[1], right.shape[2]))
    buffer = np.empty((_GROUP, *total.shape), dtype=kind.dtype)
    product = np.empty(total.shape, dtype=kind.dtype)
    tiny = 0

    def take(affinities: np.ndarray, first: int) -> int:
        """Subtract the logarithms of a group: of its product, or of halves if that underflows."""
        count = len(affinities)
        np.multiply.reduce(affinities, axis=0, out=product)
        if product.min() >= kind.smallest:
            np.subtract(total, np.log(product, out=product), out=total)
            return 0
        if count > 1:
            half = count // 2
            return take(affinities[:half], first) + take(affinities[half:], first + half)
        low = np.nonzero(product < kind.smallest)
        product[low] = 1
        np.subtract(total, np.log(product, out=product), out=total)
        total[low] -= _log_affinities(row.models[low[0], first], column.models[low[1], first], log)
        return len(low[0])

    for start in range(0, len(left), _GROUP):
        stop = min(start + _GROUP, len(left))
        affinities = np.matmul(left[start:stop], right[start:stop], out=buffer[: stop - start])
        tiny += take(affinities, start)
    return total, tiny


def _log_affinities(left: np.ndarray, right: np.ndarray, log: bool) -> np.ndarray:
    """Return log Σ_c √(p q) of matching rows from log-probabilities, in float64."""
    left, right = left.astype(float), right.astype(float)
    with np.errstate(divide="ignore"):
        logs = left + right if log else np.log(left) + np.log(right)
    return np.logaddexp.reduce(logs / 2, axis=1)

"""Sums of logarithms of affinities over samples, tile by tile of pairs of models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

__all__ = ["PRECISIONS", "Precision", "sum_logs"]

_TILE = 128  # most models in a tile: sixteen float32 tiles stay in a core's second cache
_GROUP = 16  # most affinities multiplied before one logarithm


@dataclass(frozen=True)
class Precision:
    """A floating-point type and how far it may be multiplied down.

    Attributes:
        dtype: The type.
        product: Products of affinities stay above exp(product).
        single: An affinity below exp(single) has lost digits to underflow of its terms.
    """

    dtype: type
    product: float
    single: float


PRECISIONS = {
    "single": Precision(np.float32, np.log(1e-36), np.log(1e-30)),
    "double": Precision(np.float64, np.log(1e-300), np.log(1e-290)),
}


@dataclass(frozen=True)
class _Tile:
    """Some models: roots √p of shape (samples, classes, models), and their smallest by class."""

    start: int
    models: np.ndarray
    roots: np.ndarray
    lowest: np.ndarray


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
        to = slice(column.start, column.start + block.shape[1])
        if symmetric:
            if row is column:
                block = (block + block.T) / 2
                np.fill_diagonal(block, 0.0)
            result[to, at] = block.T
        result[at, to] = block
        return tiny

    pairs = [(r, c) for r in rows for c in columns if not symmetric or c.start >= r.start]
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        return result, sum(pool.map(fill, pairs))


def _cut(models: np.ndarray, log: bool, kind: Precision) -> list[_Tile]:
    tiles, start = [], 0
    for part in np.array_split(models, -(-len(models) // _TILE)):
        lowest = part.min(axis=0).astype(float)
        lowest = np.exp(lowest / 2) if log else np.sqrt(lowest)
        values = part.astype(kind.dtype, copy=False)
        roots = np.exp(values / 2) if log else np.sqrt(values)
        tiles.append(_Tile(start, part, np.ascontiguousarray(roots.transpose(1, 2, 0)), lowest))
        start += len(part)
    return tiles


def _tile(row: _Tile, column: _Tile, log: bool, kind: Precision) -> tuple[np.ndarray, int]:
    left, right = row.roots.transpose(0, 2, 1), column.roots
    total = np.zeros((left.shape[1], right.shape[2]))
    buffer = np.empty((_GROUP, *total.shape), dtype=kind.dtype)
    product = np.empty(total.shape, dtype=kind.dtype)
    safe, unsure = _groups(_lower_bounds(row, column), kind)
    for start, stop in safe:
        affinities = np.matmul(left[start:stop], right[start:stop], out=buffer[: stop - start])
        np.multiply.reduce(affinities, axis=0, out=product)
        total -= np.log(product, out=product)
    tiny = 0
    for sample in unsure:
        affinities = np.matmul(left[sample], right[sample], out=product)
        low = np.nonzero(affinities < np.exp(kind.single))
        affinities[low] = 1
        total -= np.log(affinities)
        if low[0].size:
            total[low] -= _log_affinities(
                row.models[low[0], sample], column.models[low[1], sample], log
            )
            tiny += low[0].size
    return total, tiny


def _lower_bounds(row: _Tile, column: _Tile) -> np.ndarray:
    """Return for every sample a lower bound on log Σ_c √(p_u p_v) over the tile's pairs.

    With a_c the smallest √p_u(c) of the rows and b_c that of the columns, every affinity is at
    least Σ_c a_c b_c; and because Σ_c √p(c) ≥ 1, at least min_c a_c and min_c b_c.
    """
    bounds = np.maximum(row.lowest.min(axis=1), column.lowest.min(axis=1))
    bounds = np.maximum(bounds, (row.lowest * column.lowest).sum(axis=1))
    with np.errstate(divide="ignore"):
        return np.log(bounds)


def _groups(bounds: np.ndarray, kind: Precision) -> tuple[list[tuple[int, int]], list[int]]:
    """Cut the samples into runs whose products cannot underflow; list those without a bound."""
    runs, unsure = [], []
    start, room = 0, kind.product
    for sample, bound in enumerate(bounds.tolist()):
        if bound < kind.single:
            unsure.append(sample)
            if sample > start:
                runs.append((start, sample))
            start, room = sample + 1, kind.product
            continue
        if room - bound > 0 or sample - start == _GROUP:
            runs.append((start, sample))
            start, room = sample, kind.product
        room -= bound
    if len(bounds) > start:
        runs.append((start, len(bounds)))
    return runs, unsure


def _log_affinities(left: np.ndarray, right: np.ndarray, log: bool) -> np.ndarray:
    """Return log Σ_c √(p q) of matching rows from log-probabilities, in float64."""
    left, right = left.astype(float), right.astype(float)
    with np.errstate(divide="ignore"):
        logs = left + right if log else np.log(left) + np.log(right)
    return np.logaddexp.reduce(logs / 2, axis=1)

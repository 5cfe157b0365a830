"""Sums of logarithms of affinities over samples, tile by tile of pairs of models."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

_TILE = 100  # most models in a tile: a group's affinities stay in a core's second cache
_GROUP = 24  # affinities multiplied in their own precision
_BLAS_THREADS_FROM = 1 << 18  # multiplications above which OpenBLAS starts threads of its own


@dataclass(frozen=True)
class Precision:
    """The precision of a tile: a floating-point type and how small its numbers may become.

    Attributes:
        dtype: The type.
        smallest: Products and affinities below this may have lost digits to underflow.
        fold: How many numbers down to `smallest` float64 can multiply without underflow.
    """

    dtype: type
    smallest: float
    fold: int


PRECISIONS = {"single": Precision(np.float32, 1e-30, 9), "double": Precision(np.float64, 1e-290, 1)}


@dataclass(frozen=True)
class _Tile:
    """A tile of models, and their roots √p as (samples, classes, models)."""

    start: int
    models: np.ndarray
    roots: np.ndarray


def usual_workers() -> int:
    """Return how many threads compute tiles: torch's, or numpy's without torch.

    It affects the run time of a sum, not its digits.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.get_num_threads()
    return max((pool["num_threads"] for pool in threadpool_info()), default=1)


def sum_logs(
    left: np.ndarray, right: np.ndarray, log: bool, precision: str, workers: int
) -> tuple[np.ndarray, int]:
    """Return −Σ_s log Σ_c √(p_u p_v) tile by tile for all pairs, and the underflows.

    Args:
        left: (models, samples, classes), probabilities or their logarithms.
        right: The same for the columns; the very same array for a symmetric result.
        log: Whether these are logarithms.
        precision: Key of `PRECISIONS`.
        workers: Threads.
    """
    kind = PRECISIONS[precision]
    symmetric = right is left
    result = np.zeros((len(left), len(right)))

    def cut(models: np.ndarray) -> list[_Tile]:
        starts = range(0, len(models), _TILE)
        return list(pool.map(lambda start: _cut(models, start, log, kind), starts))

    def fill(pair: tuple[_Tile, _Tile]) -> int:
        row, column = pair
        block, tiny = _tile(row, column, log, kind)
        at = slice(row.start, row.start + block.shape[0])
        result[at, column.start : column.start + block.shape[1]] = block
        return tiny

    heavy = workers > 1 and _TILE**2 * left.shape[2] > _BLAS_THREADS_FROM
    quiet = threadpool_limits(1, user_api="blas") if heavy else nullcontext()
    with quiet, ThreadPoolExecutor(workers) as pool:
        rows = cut(left)
        columns = rows if symmetric else cut(right)
        pairs = [(r, c) for r in rows for c in columns if not symmetric or c.start > r.start]
        if symmetric:
            pairs += [pair for tile in rows for pair in _upper_half(tile)]
        tiny = sum(pool.map(fill, pairs))
    if symmetric:
        above = np.triu(result, 1)
        result = above + above.T
    return result, tiny


def _upper_half(tile: _Tile) -> list[tuple[_Tile, _Tile]]:
    """Return two pairs that cover a diagonal tile's distinct models, skipping a quarter.

    The second half meets a copy of itself: numpy multiplies a matrix by its own transpose with
    another routine, three times slower at this size.
    """
    half = (len(tile.models) + 1) // 2
    first = _Tile(tile.start, tile.models[:half], tile.roots[:, :, :half])
    second = _Tile(tile.start + half, tile.models[half:], tile.roots[:, :, half:])
    if not len(second.models):
        return [(first, tile)]
    return [(first, tile), (second, replace(second, roots=second.roots.copy()))]


def _cut(models: np.ndarray, start: int, log: bool, kind: Precision) -> _Tile:
    part = models[start : start + _TILE]
    values = part.astype(kind.dtype, copy=False)
    roots = np.exp(values / 2) if log else np.sqrt(values)
    return _Tile(start, part, np.ascontiguousarray(roots.transpose(1, 2, 0)))


def _tile(row: _Tile, column: _Tile, log: bool, kind: Precision) -> tuple[np.ndarray, int]:
    """Return the sums for one pair of tiles and its underflows.

    Affinities of a group of samples are multiplied in their own precision and the products of
    groups in float64 before a logarithm is taken. A group whose product comes near underflow for
    some pair is done again, with fewer affinities multiplied.
    """
    left, right = row.roots.transpose(0, 2, 1), column.roots
    shape = (left.shape[1], right.shape[2])
    total, tiny = np.zeros(shape), 0
    affinities = np.empty((_GROUP, *shape), dtype=kind.dtype)
    products = np.empty((kind.fold, *shape), dtype=kind.dtype)
    folded = np.empty(shape)
    groups = [slice(s, min(s + _GROUP, len(left))) for s in range(0, len(left), _GROUP)]
    for first in range(0, len(groups), kind.fold):
        some = groups[first : first + kind.fold]
        for group, product in zip(some, products, strict=False):
            found = affinities[: group.stop - group.start]
            np.matmul(left[group], right[group], out=found)
            np.multiply.reduce(found, axis=0, out=product)
        taken = products[: len(some)]
        low = taken.reshape(len(some), -1).min(axis=1) < kind.smallest
        for number in np.flatnonzero(low):
            logs, small = _sum_small_logs(row, column, some[number], log, kind)
            total -= logs
            tiny += small
            taken[number] = 1
        np.multiply.reduce(taken, axis=0, dtype=np.float64, out=folded)
        total -= np.log(folded, out=folded)
    return total, tiny


def _sum_small_logs(
    row: _Tile, column: _Tile, group: slice, log: bool, kind: Precision
) -> tuple[np.ndarray, int]:
    """Return Σ log of a tile's affinities, and how many of them were too small to use."""
    affinities = row.roots[group].transpose(0, 2, 1) @ column.roots[group]
    low = np.nonzero(affinities < kind.smallest)
    affinities[low] = 1
    logs = np.zeros(affinities.shape[1:])
    for first in range(0, len(affinities), kind.fold):
        logs += np.log(affinities[first : first + kind.fold].prod(axis=0, dtype=np.float64))
    sample, one, other = low
    exact = _log_affinities(
        row.models[one, group.start + sample], column.models[other, group.start + sample], log
    )
    np.add.at(logs, (one, other), exact)
    return logs, len(sample)


def _log_affinities(left: np.ndarray, right: np.ndarray, log: bool) -> np.ndarray:
    """Return a tile's log Σ_c √(p q) of matching rows, from log-probabilities in float64."""
    left, right = left.astype(float), right.astype(float)
    with np.errstate(divide="ignore"):
        logs = left + right if log else np.log(left) + np.log(right)
    return np.logaddexp.reduce(logs / 2, axis=1)

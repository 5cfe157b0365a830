"""Distance matrices between many models, stored or recomputed in tiles."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hyperribbon.core.checks import ArgumentError, check_choice, check_positive, flag
from hyperribbon.core.store import ensure_folder, load_tree, read_json, save_tree, write_json
from hyperribbon.manifold.distances import bhattacharyya
from hyperribbon.manifold.predictions import Predictions, open_models
from hyperribbon.manifold.tiles import PRECISIONS

_MOST_ROWS = 2048  # maximum models per block: a tile of 16 MB in single precision
_IN_FLIGHT = 16  # tiles handed to an executor at once


@dataclass(frozen=True)
class TileRule:
    """How distances are computed; arguments of `bhattacharyya`."""

    log: bool = False
    floor: float | None = None
    precision: Literal["single", "double"] = "single"

    def __post_init__(self) -> None:
        flag("log", self.log)
        check_choice("precision", self.precision, tuple(PRECISIONS))
        if self.floor is not None:
            check_positive("floor", self.floor)

    def between(self, P: np.ndarray, Q: np.ndarray | None = None) -> np.ndarray:
        """Return the distances of a tile to be stored, between two blocks of models."""
        distances = bhattacharyya(P, Q, log=self.log, floor=self.floor, precision=self.precision)
        return distances.astype(self.dtype, copy=False)

    @property
    def dtype(self) -> np.dtype:
        """The precision of a stored tile."""
        return np.dtype(np.float32 if self.precision == "single" else np.float64)


@dataclass
class Distances:
    """The symmetric matrix D of distances between n models, known by its products.

    Its upper triangle is cut into tiles. A tile is computed from two blocks of predictions, with
    samples × classes operations per entry. With a folder it is stored there and read back later, so
    an interrupted run can resume.

    Args:
        models: (models, samples, classes), from `open_models`; or what it takes, for executors.
        rule: How distances are taken.
        memory: Memory limit in bytes.
        folder: Folder for the tiles; None to recompute them in every product.
        executor: Runs tiles in other processes or on a cluster, where workers must see the models
            and the folder at the same path.
        source: What other processes open the models from.
    """

    models: Any
    rule: TileRule
    memory: float
    folder: Path | None = None
    executor: Executor | None = None
    source: Any = None
    squares: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        shape = self.models.shape
        if len(shape) != 3 or 0 in shape:
            reason = "models are rows of predictions"
            raise ArgumentError("X", shape, reason, "Give (models, samples, classes).")
        self.rows = rows_in_a_block(shape, self.rule, self.memory)
        self.blocks = Predictions(self.models, self.rows, self.memory / 2)
        if self.folder is not None:
            self._check_folder(ensure_folder("folder", self.folder))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The stored tiles of the upper triangle, ordered so that blocks are reused."""
        found = []
        for row in range(len(self.blocks)):
            columns = range(row, len(self.blocks))
            found += [(row, column) for column in (columns if row % 2 else reversed(columns))]
        return found

    def product(
        self,
        X: np.ndarray,
        *,
        weights: np.ndarray | None = None,
        advance: Callable[[int], Any] | None = None,
    ) -> np.ndarray:
        """Return D X from the stored tiles for a block (n, b), in float64.

        Args:
            X: The block.
            weights: (n,); when given, `squares` becomes Σ_ij w_i w_j D_ij² of the same pass.
            advance: Called with the tiles done since the last call.
        """
        result = np.zeros(X.shape)
        total = 0.0

        def parts_of(pair: tuple[int, int]) -> list[np.ndarray | None]:
            both = [self.blocks.part(block) for block in pair]
            return [None if a is None else a[part] for a in (X, weights) for part in both]

        jobs = ((self, pair, *parts_of(pair)) for pair in self.pairs)
        for row, column, left, right, squares in _run(self.executor, _apply_tile, jobs):
            result[self.blocks.part(row)] += left
            if row != column:
                result[self.blocks.part(column)] += right
            total += squares
            if advance is not None:
                advance(1)
        if weights is not None:
            self.squares = total
        return result

    def tile(self, row: int, column: int) -> np.ndarray:
        """Return a tile, read from the folder or computed (and then stored)."""
        path = self._path((row, column))
        if path is not None and path.exists():
            stored = load_tree(path)
            if stored["place"] == [row, column]:
                return stored["tile"]
        other = None if row == column else self.blocks[column]
        tile = self.rule.between(self.blocks[row], other)
        if path is not None:
            save_tree(path, {"place": [row, column], "tile": tile})
        return tile

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a pickle what another process opens itself: models and stored tiles."""
        state = self.__dict__ | {"executor": None, "blocks": None}
        if self.source is not None:
            state["models"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the models and stored tiles where the distances arrive."""
        self.__dict__.update(state)
        if self.models is None:
            self.models = open_models(self.source)
        self.blocks = Predictions(self.models, self.rows, self.memory / 2)

    def _path(self, pair: tuple[int, int]) -> Path | None:
        name = f"{pair[0]:05d}-{pair[1]:05d}.safetensors"
        return None if self.folder is None else self.folder / name

    def _check_folder(self, folder: Path) -> None:
        """Check that the stored tiles belong to these models."""
        places = np.unique(np.linspace(0, self.models.shape[0] - 1, 16).astype(int))
        some = np.concatenate([np.asarray(self.models[i : i + 1]) for i in map(int, places)])
        label = {
            "shape": [int(size) for size in self.models.shape],
            "rows": self.rows,
            "rule": [self.rule.log, self.rule.floor, self.rule.precision],
            "models": sha256(some.tobytes()).hexdigest()[:16],
        }
        header = folder / "tiles.json"
        try:
            known = read_json(header, checksum=True) if header.exists() else label
        except (OSError, ValueError) as error:
            remedy = "Empty the folder, or choose another one."
            reason = f"tiles.json is damaged ({error})"
            raise ArgumentError("folder", str(folder), reason, remedy) from None
        if known != label:
            reason = "it contains tiles of other models or of another distance rule"
            remedy = "Choose another folder, or empty this one."
            raise ArgumentError("folder", str(folder), reason, remedy)
        write_json(header, label, checksum=True)


def rows_in_a_block(shape: tuple[int, ...], rule: TileRule, memory: float) -> int:
    """Return the models in a block such that a stored tile takes a quarter of the memory.

    Two blocks of predictions and of their roots are there at once, and the tile three times.
    """
    model = 4 * int(np.prod(shape[1:])) * 8
    room = memory / 4
    rows = (-model + (model**2 + 4 * 24 * room) ** 0.5) / 48
    return int(min(max(rows, 16), _MOST_ROWS, shape[0]))


def disk_bytes(count: int, rule: TileRule) -> float:
    """Return the size of the stored tiles in bytes."""
    return rule.dtype.itemsize * count * (count + _MOST_ROWS) / 2


def free_disk(folder: Path) -> int:
    """Return the free disk space for stored tiles at a folder, in bytes."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _apply_tile(
    distances: Distances,
    pair: tuple[int, int],
    X_row: np.ndarray,
    X_column: np.ndarray,
    w_row: np.ndarray | None,
    w_column: np.ndarray | None,
) -> tuple[int, int, np.ndarray, np.ndarray, float]:
    """Multiply one stored tile of distances and its mirror image."""
    row, column = pair
    tile = distances.tile(row, column).astype(np.float64, copy=False)
    squares = 0.0
    if w_row is not None and w_column is not None:
        times = 1 if row == column else 2
        squares = times * float(np.einsum("ij,ij->i", tile, tile * w_column) @ w_row)
    return row, column, tile @ X_column, tile.T @ X_row, squares


def _run(
    executor: Executor | None, function: Callable[..., Any], jobs: Iterable[tuple]
) -> Iterator[Any]:
    """Yield function(*job) for every stored tile in order, a few of them at once."""
    if executor is None:
        for job in jobs:
            yield function(*job)
        return
    waiting: deque[Future] = deque()
    at_once = max(_IN_FLIGHT, 2 * (os.cpu_count() or 1))
    for job in jobs:
        if len(waiting) >= at_once:
            yield waiting.popleft().result()
        waiting.append(executor.submit(function, *job))
    while waiting:
        yield waiting.popleft().result()

"""InPCA when the distance matrix does not fit in memory."""

from __future__ import annotations

import tempfile
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import Annotated as Float

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_positive, check_positive_int, validate
from hyperribbon.core.generators import numpy_generator
from hyperribbon.core.result import Result, frame
from hyperribbon.manifold.krylov import leading_pairs
from hyperribbon.manifold.predictions import Predictions, model_weights, open_models
from hyperribbon.manifold.rounding import rounding_of_models, rounding_of_stress
from hyperribbon.manifold.stored_tiles import (
    Distances,
    TileRule,
    disk_bytes,
    free_disk,
    rows_in_a_block,
)
from hyperribbon.manifold.stress import share_of_stress

if TYPE_CHECKING:
    import pandas as pd

MEMORY = 2**30
"""Default memory limit in bytes."""

_DENSE_COPIES = 5  # (models × models) matrices held by the dense algorithm


@dataclass(frozen=True)
class Streaming:
    """Settings for distance matrices that do not fit in memory.

    Attributes:
        folder: Folder for the tiles, so that an interrupted run can resume; None for a temporary
            folder.
        disk: Disk limit in bytes; None for half of the free space. If the tiles need more, they are
            recomputed in every pass, with larger blocks per pass.
        memory: Memory limit in bytes; None for 1 GiB.
        executor: Any `concurrent.futures` process executor that computes the tiles;
            `distributed.Client(address).get_executor()` for a Dask cluster. The models must then be
            a zarr array (or its path) that the workers can open.
        progress: Whether to show a progress bar.
        tol: Tolerance on the eigenpair residuals, relative to the largest eigenvalue.
    """

    folder: str | Path | None = None
    disk: float | None = None
    memory: float | None = None
    executor: Executor | None = None
    progress: bool = False
    tol: float = 1e-10

    def __post_init__(self) -> None:
        if self.folder is not None:
            checks.path("folder", self.folder)
        if self.disk is not None:
            check_positive("disk", self.disk, zero=True)
        if self.memory is not None:
            check_positive("memory", self.memory)
        if self.executor is not None and not hasattr(self.executor, "submit"):
            reason = "it has no submit()"
            raise ArgumentError("executor", self.executor, reason, "Give ProcessPoolExecutor(2).")
        checks.flag("progress", self.progress)
        check_positive("tol", self.tol)

    @property
    def bytes(self) -> float:
        """The memory limit of streaming in bytes."""
        return MEMORY if self.memory is None else self.memory

    def is_needed(self, count: int) -> bool:
        """Whether streaming is needed: the dense algorithm would exceed the memory limit."""
        return _DENSE_COPIES * 8 * count**2 > self.bytes


@dataclass(frozen=True)
class Centring:
    """Centring of distances to the fitted models, W = −½ L D Lᵀ with L = I − 1wᵀ.

    Attributes:
        weights: (n,), w, with sum one.
        column_means: (n,), D w.
        grand_mean: wᵀDw.
    """

    weights: Float[np.ndarray, "n"]
    column_means: Float[np.ndarray, "n"]
    grand_mean: float

    def coordinates(self, product: np.ndarray, project: np.ndarray) -> np.ndarray:
        """Return streamed coordinates −½(d − d·w − column means + grand mean) P from d [P, w]."""
        along, rows = product[:, :-1], product[:, -1:]
        total = project.sum(axis=0)
        shift = self.column_means @ project - self.grand_mean * total
        return -(along - rows * total - shift) / 2


@dataclass(frozen=True)
class StreamedInPCA(Result, plot="plot_points"):
    """Result of `stream_inpca`.

    Attributes:
        embedding: (n, k), coordinates.
        eigenvalues: (k,), signed, descending in magnitude.
        residuals: (k,), true residual norms of the eigenpairs.
        explained_stress: (k,), share of the stress explained by the first 1, 2, … directions; NaN
            where the models are the same to rounding.
        stress_error: Bound on its rounding error.
        norm: ‖W‖_F, exact.
        passes: Passes over the distances.
        tiles: Number of tiles of the upper triangle.
        kept: Whether tiles were kept on disk.
        project: (n, k), what centred distances are multiplied by to give coordinates.
        centring: How distances to the models are centred.
    """

    embedding: Float[np.ndarray, "n k"]
    eigenvalues: Float[np.ndarray, "k"]
    residuals: Float[np.ndarray, "k"]
    explained_stress: Float[np.ndarray, "k"]
    stress_error: float
    norm: float
    passes: int
    tiles: int
    kept: bool
    project: Float[np.ndarray, "n k"]
    centring: Centring

    def to_frame(self) -> pd.DataFrame:
        """Return the streamed coordinates, one row per model."""
        columns = {f"component {i + 1}": c for i, c in enumerate(self.embedding.T)}
        return frame(columns, "model", first=0)

    def _headline(self) -> str:
        kept = ", ".join(f"{share:.1%}" for share in self.explained_stress[:3])
        return f"{len(self.embedding):,} models; explained stress {kept}; {self.passes} passes"


@validate(
    n_components=checks.count,
    sample_weight=checks.row,
    rule=checks.instance(TileRule, "Give manifold.TileRule(...)."),
    streaming=checks.instance(Streaming, "Give hr.Streaming(...)."),
)
def stream_inpca(
    X: Any,
    n_components: int = 3,
    *,
    sample_weight: np.ndarray | None = None,
    rule: TileRule | None = None,
    streaming: Streaming | None = None,
    seed: int = 0,
) -> StreamedInPCA:
    """Return the leading InPCA components of any number of models, streamed tile by tile.

    Tiles of D are computed from blocks of predictions and kept on disk, or recomputed in every pass
    if they do not fit there. The leading eigenpairs of W = −½ L D Lᵀ (by magnitude) come from block
    Lanczos in float64 on these tiles, to `tol`; the first pass also gives

        ‖W‖_F² = ¼ (Σ r_i r_j D_ij² − 2n Σ r_i a_i² + n² g²),   a = D w,   g = wᵀDw,   w = r/n,

    so that the explained stress is exact. Beyond about 200 vectors, memory does not grow with the
    number of models; the time of the first pass grows quadratically.

    Args:
        X: (models, samples, classes): an array, a zarr array or its path, or a `Trajectory`.
        n_components: Number of components.
        sample_weight: (models,), weight of each model.
        rule: How distances are taken.
        streaming: Memory, disk, executor.
        seed: For the start of the iteration.

    Raises:
        ArgumentError: The shape is not (models, samples, classes), or the folder holds other tiles.

    >>> from scipy.special import softmax
    >>> P = softmax(np.random.default_rng(0).normal(size=(30, 8, 3)), axis=2)
    >>> stream_inpca(P, 2).embedding.shape
    (30, 2)
    """
    rule = TileRule() if rule is None else rule
    settings = Streaming() if streaming is None else streaming
    models = open_models(X)
    if len(models.shape) != 3:
        reason = f"expected (models, samples, classes), not {tuple(models.shape)}"
        raise ArgumentError("X", X, reason, "Give an array of that shape.")
    count = models.shape[0]
    k = check_positive_int("n_components", n_components, maximum=count)
    r = model_weights(sample_weight, count)
    r = r * (count / r.sum())
    if settings.executor is not None and isinstance(models, np.ndarray):
        reason = "other processes cannot open it"
        raise ArgumentError("X", models, reason, "Give a zarr array or its path.")
    with ExitStack() as stack:
        folder = _folder(settings, count, rule, stack)
        path = X if isinstance(X, str | Path) else None
        distances = Distances(models, rule, settings.bytes, folder, settings.executor, path)
        centred = _CentredDistances(distances, r, _Bar(stack) if settings.progress else None)
        width = min(count, max(2 * k, 12) if folder is not None else max(4 * k, 48))
        start = numpy_generator(seed, "inpca").standard_normal((count, width))
        found = leading_pairs(centred.multiply, start, k, tol=settings.tol)
        vectors, roots = orient(found.vectors), np.sqrt(r)
        project = projection(found.values, vectors, roots)
        scale = np.sqrt(np.abs(found.values))
        # Rows of R^½ W R^½ vanish for models of weight zero: one more product places them.
        embedding = vectors * scale / roots[:, None] if r.all() else centred.plain(project)
    values, error = found.values, np.nan
    rounding = rounding_of_models(models, r, rule, distances.squares, settings.bytes)
    if centred.norm > rounding:
        error = rounding_of_stress(centred.norm, rounding)
    else:
        values, embedding, project = 0 * values, 0 * embedding, 0 * project
        centred.norm = 0.0
    return StreamedInPCA(
        embedding,
        values,
        found.residuals,
        share_of_stress(values, centred.norm**2),
        error,
        centred.norm,
        found.passes,
        len(distances.pairs),
        folder is not None,
        project,
        centred.centring,
    )


def cross_product(
    models: Any, fitted: Any, block: np.ndarray, rule: TileRule, memory: float
) -> np.ndarray:
    """Return d @ block, streaming the distances d of models to the fitted ones.

    Args:
        models: (m, samples, classes), from `open_models`.
        fitted: (n, samples, classes), the same.
        block: (n, b).
        rule: How distances are taken.
        memory: Bytes to stay below.
    """
    rows = rows_in_a_block(models.shape, rule, memory)
    left = Predictions(models, rows, 0)
    right = Predictions(fitted, rows_in_a_block(fitted.shape, rule, memory), memory / 2)
    result = np.zeros((models.shape[0], block.shape[1]))
    for i in range(len(left)):
        for j in range(len(right)):
            tile = rule.between(left[i], right[j]).astype(float, copy=False)
            result[left.part(i)] += tile @ block[right.part(j)]
    return result


def orient(vectors: np.ndarray) -> np.ndarray:
    """Fix the sign of every streamed component: its largest entry is positive."""
    largest = np.abs(vectors).argmax(axis=0)
    return vectors * np.sign(vectors[largest, np.arange(vectors.shape[1])])


def projection(values: np.ndarray, vectors: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """Return R^½ V sign(λ)/√|λ|, which makes coordinates of streamed centred distances.

    Columns whose λ is below 1e-16 of the largest are zero.
    """
    scale = np.sqrt(np.abs(values))
    usable = scale > scale[0] * 1e-8
    signs = np.where(usable, np.sign(values) / np.where(usable, scale, 1.0), 0.0)
    return roots[:, None] * vectors * signs


class _CentredDistances:
    """Products with R^½ W R^½, and ‖·‖_F from the first of them."""

    def __init__(self, distances: Distances, r: np.ndarray, bar: _Bar | None) -> None:
        self._distances, self._r, self._bar = distances, r, bar
        self._centring: Centring | None = None
        self.norm = 0.0

    @property
    def centring(self) -> Centring:
        """How streamed distances are centred, known after the first product."""
        assert self._centring is not None
        return self._centring

    def multiply(self, block: np.ndarray) -> np.ndarray:
        """Stream the product R^½ W R^½ @ block, tile by tile."""
        roots = np.sqrt(self._r)[:, None]
        return roots * self.plain(roots * block)

    def plain(self, block: np.ndarray) -> np.ndarray:
        """Stream the product W @ block = −½ L D Lᵀ @ block."""
        w = self._r / self._r.sum()
        if self._centring is None:
            product = self._pass(np.column_stack([block, w]), self._r)
            self._measure(product[:, -1], w)
            product = product[:, :-1] - np.outer(product[:, -1], block.sum(axis=0))
        else:
            product = self._pass(block - np.outer(w, block.sum(axis=0)), None)
        return -(product - w @ product) / 2

    def _pass(self, block: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        advance = None if self._bar is None else self._bar.next(len(self._distances.pairs))
        return self._distances.product(block, weights=weights, advance=advance)

    def _measure(self, a: np.ndarray, w: np.ndarray) -> None:
        count, g = len(w), float(w @ a)
        self._centring = Centring(w, a, g)
        squares = self._distances.squares - 2 * count * float(self._r @ a**2) + (count * g) ** 2
        self.norm = float(np.sqrt(max(squares, 0.0))) / 2


class _Bar:
    """A progress bar with one task per pass."""

    def __init__(self, stack: ExitStack) -> None:
        from hyperribbon.core.progress import Console, progress_bar

        self._progress = stack.enter_context(progress_bar(Console(stderr=True)))
        self._passes = 0

    def next(self, tiles: int) -> Any:
        """Start a streaming pass over the tiles; return a callback for finished tiles."""
        self._passes += 1
        task = self._progress.add_task(f"distances, pass {self._passes}", total=tiles)
        return lambda count: self._progress.advance(task, count)


def _folder(settings: Streaming, count: int, rule: TileRule, stack: ExitStack) -> Path | None:
    """Return the folder for the tiles that are streamed, or None if they do not fit on disk."""
    place = Path(tempfile.gettempdir() if settings.folder is None else settings.folder)
    room = free_disk(place) / 2 if settings.disk is None else settings.disk
    if disk_bytes(count, rule) > room:
        return None
    if settings.folder is not None:
        return place
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hyperribbon-tiles-")))

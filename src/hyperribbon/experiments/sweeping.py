"""`sweep`: a person's own function over a grid, resumable, on many processes or a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store import ensure_folder
from hyperribbon.experiments.context import Context, Progress
from hyperribbon.experiments.workers import choose_workers

__all__ = ["sweep"]

Point = Mapping[str, Any]


def sweep(
    function: Callable[[Point], Any],
    grid: Mapping[str, Sequence[Any]] | Sequence[Point],
    *,
    out: str | Path = "sweep",
    jobs: int = 1,
    dask: Any = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Evaluate a function on every point of a grid, and keep each result when it is done.

    A sweep that was stopped goes on where it was; a changed function is computed anew. Points run
    in `jobs` processes with the cores divided between them, or on a Dask cluster, where a lost
    worker's points run again.

    Args:
        function: A function of a module, from one point (a dict of plain values) to a tree of
            dicts, lists, arrays and plain values. Draw randomness from a seed in the point.
        grid: Values by name, of which every combination is a point (the last name varies fastest);
            or a list of points.
        out: Folder for the results.
        jobs: Processes on this machine.
        dask: Address of a Dask scheduler, or a `distributed.Client`.
        progress: Told how far the work is.

    Returns:
        For each point, in order: {"point": …, "result": …}.

    Raises:
        ArgumentError: The grid is empty, jobs is not a positive number, or both jobs and dask are
            given.
    """
    points = _points(grid)
    workers = choose_workers(jobs, dask)
    folder = ensure_folder("out", Path(out).resolve())
    context = Context(0, folder, folder, progress, workers)
    results = context.map(function, points)
    return [{"point": p, "result": r} for p, r in zip(points, results, strict=True)]


def _points(grid: Mapping[str, Sequence[Any]] | Sequence[Point]) -> list[dict[str, Any]]:
    if isinstance(grid, Mapping):
        points = [
            dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
        ]
    else:
        points = [dict(point) for point in grid]
    if not points or not points[0]:
        raise ArgumentError("grid", grid, "it has no points", "Give at least one value a name.")
    return points

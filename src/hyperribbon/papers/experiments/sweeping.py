"""`sweep`: your own function over a grid, resumable, on many processes or a cluster."""

from __future__ import annotations

import itertools
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperribbon.core import checks, html
from hyperribbon.core.checks import ArgumentError, validate
from hyperribbon.core.store import (
    add_to_manifest,
    clear_leftovers,
    ensure_folder,
    load_tree,
    read_json,
    save_tree,
    write_json,
)
from hyperribbon.papers.experiments.context import Progress, computation_names, show_progress
from hyperribbon.papers.experiments.workers import choose_workers

Point = Mapping[str, Any]

_DEATH = (
    "The process that computed this point died. Was it killed for its memory, or is the script "
    'without `if __name__ == "__main__":`? The next call runs it again.'
)


_CELL = 80
"""Characters of a result that a notebook's table shows."""


class SweepWarning(UserWarning):
    """Some points of a sweep failed; the others are there."""


class Points(list[dict[str, Any]]):
    """The points of a sweep with their results, in order; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        """Show every point of the sweep beside its result, in a notebook."""
        names = list(dict.fromkeys(name for entry in self for name in entry["point"]))
        rows = [
            [*(entry["point"].get(name, "") for name in names), _outcome(entry)] for entry in self
        ]
        failed = sum(entry["error"] is not None for entry in self)
        title = f"{len(self)} points" + (f", {failed} failed" if failed else "")
        return html.card(title, html.table([*names, "result"], rows))


@validate(function=checks.function, jobs=checks.count, version=checks.text)
def sweep(
    function: Callable[[Point], Any],
    grid: Mapping[str, Sequence[Any]] | Sequence[Point],
    *,
    out: str | Path = "sweep",
    jobs: int = 1,
    dask: Any = None,
    progress: Progress | None = None,
    version: str | None = None,
    retry: bool = False,
) -> Points:
    """Sweep a function over every point of a grid, and keep each result when it is done.

    A sweep that was stopped resumes where it was. Results are computed anew when the source of the
    function's module has changed, or of a module of yours that it imports, a default, closure or
    global variable of the function, or the version of Python, hyperribbon, torch, numpy, scipy or
    scikit-learn. Points run in `jobs` processes with the cores divided between them, or on a Dask
    cluster, where a lost worker's points run again. A point that fails does not stop the others.

    Args:
        function: A function of a module, from one point (a dict of plain values) to a tree of
            dicts, lists, arrays and plain values. Draw randomness from a seed in the point.
        grid: Values by name, of which every combination is a point (the last name varies fastest);
            or a list of points.
        out: Folder for the results.
        jobs: Processes on this machine.
        dask: Address of a Dask scheduler, or a `distributed.Client`.
        progress: Receives the progress of the work.
        version: Version of the function, in place of its code and data: results are kept until you
            change it.
        retry: Run points again that failed in an earlier call; otherwise they keep their error.

    Returns:
        For each point, in order: {"point": …, "result": …, "error": None}; of one that failed the
        result is None and the error is the traceback as text.

    Raises:
        ArgumentError: The grid is empty, jobs is not a positive number, both jobs and dask are
            given, or the function depends on something that cannot be hashed (give a version then).
    """
    if progress is not None and not hasattr(progress, "start"):
        raise ArgumentError("progress", progress, "it has no start()", "Give a Progress.")
    points = _points(grid)
    workers = choose_workers(jobs, dask)
    folder = ensure_folder("out", Path(out).resolve())
    clear_leftovers(folder)
    files = [folder / f"{n}.safetensors" for n in computation_names(function, points, version)]
    if retry:
        (folder / "manifest.json").unlink(missing_ok=True)
        for file in set(files):
            _error_file(file).unlink(missing_ok=True)
    waiting = {
        file: (function, point, file)
        for file, point in zip(files, points, strict=True)
        if not file.exists() and not _error_file(file).exists()
    }
    label, total = getattr(function, "__name__", "sweep").strip("_"), len(set(files))
    with show_progress(progress, label, total) as advance:
        advance(total - len(waiting))
        died = set()
        for dead in workers.run(_attempt, list(waiting.values()), lambda job: job[2]):
            advance()
            died.add(dead)
    stored = [path for file in set(files) for path in (file, _error_file(file)) if path.exists()]
    if waiting or not (folder / "manifest.json").exists():
        add_to_manifest(folder, "sweep", [path.name for path in stored])
    entries = Points(_entry(point, file, died) for point, file in zip(points, files, strict=True))
    _warn_of_failures(entries)
    return entries


def _points(grid: Mapping[str, Sequence[Any]] | Sequence[Point]) -> list[dict[str, Any]]:
    if isinstance(grid, Mapping):
        columns = [checks.iterable(f"grid[{name!r}]", values) for name, values in grid.items()]
        points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*columns)]
    else:
        points = [dict(checks.mapping("grid", point)) for point in checks.iterable("grid", grid)]
    if not points or not points[0]:
        raise ArgumentError("grid", grid, "it has no points", "Give at least one value per name.")
    return points


def _attempt(function: Callable[[Point], Any], point: Point, file: Path) -> None:
    """Evaluate one point of a sweep: keep what the function returns, or its error."""
    try:
        result = function(point)
    except Exception as error:
        own = error.__traceback__.tb_next if error.__traceback__ else None
        _keep_error(file, "".join(traceback.format_exception(type(error), error, own)))
        return
    try:
        save_tree(file, result)
    except ArgumentError as error:  # it returned something that is no tree; a full disk is raised
        _keep_error(file, f"{type(error).__name__}: {error}\n")


def _keep_error(file: Path, text: str) -> None:
    write_json(_error_file(file), {"error": text}, checksum=True)


def _error_file(file: Path) -> Path:
    return file.with_suffix(".error.json")


def _entry(point: dict[str, Any], file: Path, died: set[Path]) -> dict[str, Any]:
    if file.exists():
        return {"point": point, "result": load_tree(file), "error": None}
    error = _DEATH if file in died else read_json(_error_file(file))["error"]
    return {"point": point, "result": None, "error": error}


def _outcome(entry: dict[str, Any]) -> Any:
    """Return a sweep's result at a point as a cell of its table."""
    if entry["error"] is not None:
        return entry["error"].strip().splitlines()[-1]
    result = entry["result"]
    if isinstance(result, bool | int | float):
        return result
    is_table = isinstance(result, dict)
    entries = [f"{k} {_short(v)}" for k, v in result.items()] if is_table else [_short(result)]
    text = ", ".join(entries)
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def _short(value: Any) -> str:
    if hasattr(value, "shape") and value.shape:
        return f"array {tuple(value.shape)}"
    return html.number(float(value)) if isinstance(value, int | float) else str(value)


def _warn_of_failures(entries: list[dict[str, Any]]) -> None:
    failed = [entry for entry in entries if entry["error"] is not None]
    if failed:
        last_line = failed[0]["error"].strip().splitlines()[-1]
        warnings.warn(
            f"{len(failed)} of {len(entries)} points failed, the first ({failed[0]['point']}) with "
            f'"{last_line}". Their entries have an "error" and no result; '
            "sweep(..., retry=True) runs them again.",
            SweepWarning,
            stacklevel=3,
        )

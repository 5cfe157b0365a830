"""The context of an experiment: random streams, resumable maps, shared computations, progress."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from filelock import FileLock, Timeout

from hyperribbon.core.generators import numpy_generator, torch_generator
from hyperribbon.core.store import (
    clear_leftovers,
    config_hash,
    load_tree,
    make_folder,
    save_tree,
    write_text,
)
from hyperribbon.papers.experiments.fingerprint import fingerprint
from hyperribbon.papers.experiments.workers import SerialWorkers, Workers

Item = Mapping[str, Any]


class Progress(Protocol):
    """Receives the progress of an experiment's computation."""

    def start(self, label: str, total: int) -> Any:
        """Announce a piece of work to the progress display of an experiment's context."""
        ...

    def advance(self, handle: Any, count: int = 1) -> None:
        """Report finished units of work to the display of an experiment's context."""
        ...

    def finish(self, handle: Any) -> None:
        """Report to the display of an experiment's context that a piece of work has ended."""
        ...


@contextmanager
def show_progress(
    progress: Progress | None, label: str, total: int
) -> Iterator[Callable[..., None]]:
    """Yield the function by which a context reports finished work, to nobody if None."""
    if progress is None:
        yield lambda count=1: None
        return
    handle = progress.start(label, total)
    try:
        yield lambda count=1: progress.advance(handle, count)
    finally:
        progress.finish(handle)


class Context:
    """Random streams, resumable maps and shared computations of an experiment's run.

    Args:
        seed: Seed of the run; every stream is derived from it by name.
        parts: Folder for finished pieces of this run.
        shared: Folder for computations shared between runs.
        progress: Receives the progress of the work.
        workers: Where items run; one after the other in this process by default.
        version: Version of the functions, in place of their `fingerprint`, by which a changed
            function is computed anew.
        spent: Receives the process that did a piece, and its CPU time.
    """

    def __init__(
        self,
        seed: int,
        parts: Path,
        shared: Path,
        progress: Progress | None = None,
        workers: Workers | None = None,
        version: str | None = None,
        spent: Callable[[int, float], object] = lambda process, seconds: None,
    ) -> None:
        self.seed = seed
        self._parts = parts
        self._shared = shared
        self._progress = progress
        self._workers = workers or SerialWorkers()
        self._version = version
        self._spent = spent

    def rng(self, *keys: str | int | float) -> np.random.Generator:
        """Return the numpy generator of a named stream of the experiment's context."""
        return numpy_generator(self.seed, *keys)

    def generator(self, *keys: str | int | float) -> torch.Generator:
        """Return the torch generator of a named stream of the experiment's context."""
        return torch_generator(self.seed, *keys)

    def progress(self, label: str, total: int) -> AbstractContextManager[Callable[..., None]]:
        """Return a context manager that reports an experiment's finished units of work."""
        return show_progress(self._progress, label, total)

    def map(
        self, function: Callable[[Item], Any], items: Sequence[Item], label: str | None = None
    ) -> list[Any]:
        """Map a function over items; the context keeps each result on disk when it is done.

        A run that was killed finds its finished items again. Results pass through the disk in any
        case, so an interrupted run and an uninterrupted one give the same bits.

        Args:
            function: A function of a module (so that other processes can find it), from one item
                to a tree of dicts, lists, arrays and plain values. All randomness comes from seeds
                in the item.
            items: Dicts of plain values.
            label: What the progress display calls it.
        """
        return self._compute(self._parts, function, items, label)

    def shared(self, function: Callable[[Item], Any], item: Item, label: str | None = None) -> Any:
        """Return function(item), which contexts of all experiments of a store compute only once."""
        return self.shared_map(function, [item], label)[0]

    def shared_map(
        self, function: Callable[[Item], Any], items: Sequence[Item], label: str | None = None
    ) -> list[Any]:
        """Map a function over items; contexts of all experiments compute each of them once."""
        return self._compute(self._shared, function, items, label)

    def shared_folder(
        self, function: Callable[[Path, Item], None], item: Item, label: str | None = None
    ) -> Path:
        """Return a folder that function(folder, item) fills once for all contexts of the store.

        The function may find the folder partly filled by an earlier call that was killed, and may
        go on from there.
        """
        return self.shared_folders(function, [item], label)[0]

    def shared_folders(
        self,
        function: Callable[[Path, Item], None],
        items: Sequence[Item],
        label: str | None = None,
    ) -> list[Path]:
        """Return a folder per item, filled once for the contexts of all experiments."""
        names = computation_names(function, items, self._version)
        folders = [self._shared / name for name in names]
        markers = [folder / "complete" for folder in folders]
        self._fill(_fill_once, function, items, folders, markers, label)
        return folders

    def _compute(
        self,
        folder: Path,
        function: Callable[[Item], Any],
        items: Sequence[Item],
        label: str | None,
    ) -> list[Any]:
        names = computation_names(function, items, self._version)
        files = [folder / f"{name}.safetensors" for name in names]
        self._fill(_compute_once, function, items, files, files, label)
        return [load_tree(file) for file in files]

    def _fill(
        self,
        work: Callable[..., tuple[bool, int, float]],
        function: Callable[..., Any],
        items: Sequence[Item],
        places: Sequence[Path],
        markers: Sequence[Path],
        label: str | None,
    ) -> None:
        """Run work(function, item, place, patient) on the context's workers for missing results.

        Pieces that another run of the store is computing come last, so that two runs that need the
        same pieces divide them instead of waiting for each other.
        """
        for folder in {place.parent for place in places}:
            clear_leftovers(folder)
        jobs = list(zip(items, places, markers, strict=True))
        reported = 0
        with self.progress(label or function.__name__.strip("_"), len(jobs)) as advance:
            for patient in (False, True):
                missing = [job for job in jobs if not job[2].exists()]
                advance(len(jobs) - len(missing) - reported)
                reported = len(jobs) - len(missing)
                calls = [(function, item, place, patient) for item, place, _ in missing]
                for finished, process, seconds in self._workers.run(work, calls):
                    self._spent(process, seconds)
                    advance(int(finished))
                    reported += finished

    def forget(self) -> None:
        """Remove the pieces that the context of a finished experiment has kept."""
        shutil.rmtree(self._parts, ignore_errors=True)
        self._parts.mkdir(exist_ok=True)


def computation_names(
    function: Callable[..., Any], items: Sequence[Item], version: str | None = None
) -> list[str]:
    """Name the computations of an experiment's context by function, dependencies and item.

    Args:
        function: The function.
        items: What it is called with.
        version: Version of the function; its `fingerprint` by default.

    Raises:
        ArgumentError: The function depends on something that cannot be hashed, or an item holds
            something else than plain values.
    """
    name = getattr(function, "__name__", type(function).__name__)
    module = getattr(function, "__module__", "")
    state = f"version {version}" if version is not None else fingerprint(function)
    path = f"{module}.{getattr(function, '__qualname__', name)}"
    label = name.strip("_<>") or "function"
    return [f"{label}-{config_hash(path, state, dict(item))}" for item in items]


def _compute_once(
    function: Callable[[Item], Any], item: Item, file: Path, patient: bool
) -> tuple[bool, int, float]:
    """Compute a file of an experiment's context if it is missing.

    Returns:
        False if another run is computing it; the process that did it, and its CPU time.
    """
    began = time.process_time()
    with _turn(file, patient) as mine:
        if mine and not file.exists():
            save_tree(file, function(item))
        return mine, os.getpid(), time.process_time() - began


def _fill_once(
    function: Callable[[Path, Item], None], item: Item, folder: Path, patient: bool
) -> tuple[bool, int, float]:
    """Fill a shared folder of experiments' contexts if it is incomplete."""
    began = time.process_time()
    with _turn(folder, patient) as mine:
        if mine and not (folder / "complete").exists():
            make_folder(folder)
            function(folder, item)
            write_text(folder / "complete", "")
        return mine, os.getpid(), time.process_time() - began


@contextmanager
def _turn(place: Path, patient: bool) -> Iterator[bool]:
    """Hold the lock of a place that contexts share; wait for it, or yield False unless patient."""
    lock = FileLock(f"{place}.lock", mode=0o644, timeout=-1 if patient else 0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()

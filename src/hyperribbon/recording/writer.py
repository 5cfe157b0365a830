"""Write records in the background: in order, in batches when several are pending."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import Any, Generic, TypeVar

from safetensors import SafetensorError

from hyperribbon.core.store import stored_path
from hyperribbon.recording.records import Draft
from hyperribbon.recording.resume_state import find_state, remove_others, save_state
from hyperribbon.recording.trajectory import Trajectory

_PENDING_BYTES = 64 * 2**20  # in memory before the training waits for the disk

T = TypeVar("T")


class BackgroundWriter(Generic[T]):
    """Passes items in order to a function in a background thread.

    Items that arrive meanwhile are passed together in the next call. At most 64 MB, or one item,
    are pending; a process that exits normally writes them first.

    Args:
        write: Called with a list of items; `results` reports its exceptions.

    Attributes:
        seconds: CPU time of the background thread.
    """

    def __init__(self, write: Callable[[list[T]], None]) -> None:
        self._write = write
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hyperribbon-recorder")
        self._changed = Condition()
        self._pending: list[tuple[T, int]] = []
        self._bytes = 0
        self._is_busy = False
        self._results: list[tuple[list[T], Exception | None]] = []
        self.seconds = 0.0

    def put(self, item: T, size: int) -> None:
        """Add an item for the writer, of a size in bytes; block while too much is pending."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= _PENDING_BYTES)
            self._pending.append((item, size))
            self._bytes += size
        self._pool.submit(self._drain)

    def results(self, *, wait: bool) -> list[tuple[list[T], Exception | None]]:
        """Return what the writer has written since the last call, and the errors, if any.

        Args:
            wait: Whether to wait until no item is pending.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: not self._pending and not self._is_busy)
            found, self._results = self._results, []
            return found

    def close(self) -> None:
        """Write pending items and stop the writer thread."""
        self._pool.shutdown()

    def _drain(self) -> None:
        with self._changed:
            batch, self._pending = self._pending, []
            if not batch:
                return
            self._is_busy = True
        begun, error = time.thread_time(), None
        items = [item for item, _ in batch]
        try:
            self._write(items)
        except Exception as problem:  # reported to the training thread when it next asks
            error = problem
        with self._changed:
            self.seconds += time.thread_time() - begun
            self._bytes -= sum(size for _, size in batch)
            self._is_busy = False
            self._results.append((items, error))
            self._changed.notify_all()


@dataclass(frozen=True)
class PendingRecord:
    """A captured record that is to be written.

    Attributes:
        draft: The record.
        state: Serialized state to resume from; None without.
    """

    draft: Draft
    state: bytes | None

    @property
    def array_bytes(self) -> int:
        """Size of the arrays of a record waiting for the writer, in bytes."""
        arrays = [*(self.draft.weights or {}).values(), *(self.draft.metrics or {}).values()]
        arrays += [] if self.draft.predictions is None else [self.draft.predictions]
        return sum(int(getattr(array, "nbytes", 8)) for array in arrays)


class RecordWriter:
    """Writes a Recorder's records and resume states in the background.

    The state of a record is written before the record; older states are removed after it. Records
    written together share one state, that of the last.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trajectory = Trajectory.create(folder)
        self._writer: BackgroundWriter[PendingRecord] | None = None

    def start(self, about: dict[str, Any]) -> None:
        """Reread the folder and start the writer of records described by `about`."""
        self.trajectory = Trajectory.create(self.folder, about=about)
        stored_path(self.folder, "state/initial")  # old states are removed there, not elsewhere
        self._writer = BackgroundWriter(self._write)

    def put(self, record: PendingRecord) -> None:
        """Queue a record for the writer."""
        assert self._writer is not None
        self._writer.put(record, record.array_bytes + len(record.state or b""))

    def results(self, *, wait: bool) -> list[tuple[list[PendingRecord], Exception | None]]:
        """Return the writer's results since the last call, optionally after waiting for all."""
        return [] if self._writer is None else self._writer.results(wait=wait)

    def close(self) -> None:
        """Write pending records and stop the writer."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    @property
    def seconds(self) -> float:
        """CPU time of the record writer."""
        return 0.0 if self._writer is None else self._writer.seconds

    @property
    def written(self) -> int | None:
        """Last step up to which the writer has all records on disk; None before the first."""
        return self.trajectory[-1].step if len(self.trajectory) else None

    def newest_state(self) -> int:
        """Return the newest step whose resume state the writer has on disk.

        A run killed while writing several may leave the last ones without a state.
        """
        steps = self.trajectory.steps.tolist()
        return next((s for s in reversed(steps) if find_state(self.folder, f"step-{s}")), steps[-1])

    def _write(self, batch: list[PendingRecord]) -> None:
        """Write records in the writer thread: all, or the first ones that fit on disk.

        If none were kept, a later and smaller batch could fit and would follow a gap.

        Raises:
            OSError: The disk is full; earlier records are on disk.
            SafetensorError: Likewise, raised by safetensors.
        """
        try:
            self._write_together(batch)
        except (OSError, SafetensorError):
            if len(batch) == 1:
                raise
            for record in batch:
                if self.written is None or record.draft.step > self.written:
                    self._write_together([record])

    def _write_together(self, batch: list[PendingRecord]) -> None:
        """Write records in the writer thread with one state, that of the last."""
        last, current = batch[-1], None
        if last.state is not None:
            current = save_state(self.folder, f"step-{last.draft.step}", last.state)
        self.trajectory.extend([record.draft for record in batch])
        if current is not None:
            remove_others(current, "step")

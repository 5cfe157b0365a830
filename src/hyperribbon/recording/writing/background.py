"""Background writing: in order, in batches when several records are pending."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition
from typing import Generic, TypeVar

__all__ = ["Promise", "Writer"]

_MOST_WAITING = 64 * 2**20  # bytes in memory before the training waits for the disk

T = TypeVar("T")


@dataclass(frozen=True)
class Promise(Generic[T]):
    """The result of writing some items: success or an error."""

    items: list[T]
    error: Exception | None


class Writer(Generic[T]):
    """Passes items in order to a function in a background thread.

    Items that arrive meanwhile are passed together in the next call. At most 64 MB, or one item,
    are pending; a process that exits normally writes them first.

    Args:
        write: Called with a list of items; exceptions are stored in the outcome.

    Attributes:
        seconds: CPU time of the background thread.
    """

    def __init__(self, write: Callable[[list[T]], None]) -> None:
        self._write = write
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hyperribbon-recorder")
        self._changed = Condition()
        self._waiting: list[tuple[T, int]] = []
        self._bytes = 0
        self._is_busy = False
        self._outcomes: list[Promise[T]] = []
        self.seconds = 0.0

    def put(self, item: T, size: int) -> None:
        """Add an item of a given size in bytes; blocks while too much is pending."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= _MOST_WAITING)
            self._waiting.append((item, size))
            self._bytes += size
        self._pool.submit(self._drain)

    def flush(self) -> None:
        """Wait until all pending items are written or have failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_busy)

    def outcomes(self) -> list[Promise[T]]:
        """Return the outcomes since the last call."""
        with self._changed:
            found, self._outcomes = self._outcomes, []
            return found

    def close(self) -> None:
        """Write pending items and stop the thread."""
        self._pool.shutdown()

    def _drain(self) -> None:
        with self._changed:
            batch, self._waiting = self._waiting, []
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
            self._outcomes.append(Promise(items, error))
            self._changed.notify_all()

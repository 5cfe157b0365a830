"""Writing beside the training: in order, several records at once where they have gathered."""

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
    """What became of some items: written, or not because of an error."""

    items: list[T]
    error: Exception | None


class Writer(Generic[T]):
    """Hands items to a function in another thread, in order.

    Items that come while it works are handed over together next time. At most 64 MB wait, or one
    item; a process that ends in the ordinary way writes them first.

    Args:
        write: Called with a list of items; what it raises is kept in the outcome.

    Attributes:
        seconds: Processor time that the other thread has taken.
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
        """Add an item of so many bytes; waits while too much waits to be written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= _MOST_WAITING)
            self._waiting.append((item, size))
            self._bytes += size
        self._pool.submit(self._drain)

    def flush(self) -> None:
        """Wait until everything that was put is written or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_busy)

    def outcomes(self) -> list[Promise[T]]:
        """Return what became of items since the last call."""
        with self._changed:
            found, self._outcomes = self._outcomes, []
            return found

    def close(self) -> None:
        """Write what is left and end the thread."""
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
        except Exception as problem:  # told to the training when it next asks
            error = problem
        with self._changed:
            self.seconds += time.thread_time() - begun
            self._bytes -= sum(size for _, size in batch)
            self._is_busy = False
            self._outcomes.append(Promise(items, error))
            self._changed.notify_all()

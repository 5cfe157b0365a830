"""Background measurements: queued fairly, with progress and cancellation."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hyperribbon.core.checks import ArgumentError

__all__ = ["Job", "Jobs"]

Work = Callable[[Callable[[float, Any], bool]], Any]

_KEPT_SECONDS = 600.0
_FORGOTTEN_SECONDS = 5.0  # a page that waits asks several times a second
_LOG = logging.getLogger(__name__)


@dataclass
class Job:
    """One measurement.

    Attributes:
        progress: Fraction of the work done.
        result: The result so far.
        finished: Whether it has ended, by itself or stopped.
        message: Text shown to the user: an error, or that it was stopped.
        settings: What the measurement belongs to.
    """

    progress: float = 0.0
    result: Any = None
    finished: bool = False
    message: str = ""
    settings: Any = None
    touched: float = field(default_factory=time.monotonic)
    started: float | None = None
    stopping: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """The measurements of all visitors.

    Each visitor has one; others queue. Users take turns, so a user with many requests delays only
    themselves. When the queue is full, an abandoned measurement is dropped. A measurement that
    exceeds the time limit is asked to stop, and its slot is freed whether or not it does.

    Args:
        at_once: Number of measurements that may run concurrently.
        waiting: Number of measurements per user that may be queued.
        seconds: Time limit per measurement.
    """

    def __init__(self, at_once: int = 2, waiting: int = 64, seconds: float = 120.0) -> None:
        self._at_once, self._waiting, self._seconds = at_once, waiting, seconds
        self._jobs: dict[str, Job] = {}
        self._running: list[Job] = []
        self._queues: OrderedDict[str, deque[tuple[Job, Work]]] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, visitor: str, work: Work, settings: Any = None, *, user: str = "") -> Job:
        """Start or queue a measurement, stopping the visitor's earlier one.

        Args:
            visitor: Identifier of the visit.
            work: Called with a progress callback, which returns False when it should stop.
            settings: What the measurement belongs to.
            user: Identifier for queueing; the pages of one browser share it.

        Returns:
            The measurement, running or waiting.

        Raises:
            ArgumentError: Too many of this user's measurements are queued.
        """
        with self._lock:
            self._forget_old()
            earlier = self._jobs.pop(visitor, None)
            if earlier is not None:
                earlier.stopping.set()
            queue = self._queues.setdefault(user, deque())
            if len(queue) >= self._waiting and not _drop_forgotten(queue):
                raise ArgumentError(
                    "measurements", len(queue), "as many as allowed are waiting", "Try again soon."
                )
            job = self._jobs[visitor] = Job(settings=settings, message="Waiting for its turn…")
            queue.append((job, work))
            self._go_on()
        return job

    def get(self, visitor: str) -> Job | None:
        """Return the visitor's measurement, if there is one."""
        with self._lock:
            self._go_on()
            job = self._jobs.get(visitor)
            if job is not None:
                job.touched = time.monotonic()
            return job

    def stop(self, visitor: str) -> None:
        """Ask the visitor's measurement to stop; its result so far is kept."""
        job = self.get(visitor)
        if job is not None:
            job.stopping.set()

    def _go_on(self) -> None:
        """Start queued measurements up to the limit, one per user in turn."""
        now = time.monotonic()
        busy = []
        for job in self._running:
            if not job.finished and now - (job.started or now) > self._seconds:
                job.stopping.set()
                job.message = f"Stopped after {self._seconds:g} s."
            elif not job.finished:
                busy.append(job)
        self._running = busy
        while self._queues and len(self._running) < self._at_once:
            user, queue = self._queues.popitem(last=False)
            while queue:
                job, work = queue.popleft()
                if job.stopping.is_set():
                    job.message, job.finished = "Stopped before it began.", True
                    continue
                job.started, job.message = now, ""
                self._running.append(job)
                threading.Thread(target=self._run, args=(job, work), daemon=True).start()
                break
            if queue:
                self._queues[user] = queue

    def _run(self, job: Job, work: Work) -> None:
        def report(progress: float, result: Any) -> bool:
            job.progress, job.result = progress, result
            if time.monotonic() - (job.started or 0.0) > self._seconds:
                job.stopping.set()
            return not job.stopping.is_set()

        try:
            job.result = work(report)
            if job.stopping.is_set():
                job.message = f"Stopped at {job.progress:.0%}; what was found is shown."
        except ArgumentError as error:
            job.message = str(error)
        except Exception:
            _LOG.warning("a measurement failed", exc_info=True)
            job.message = "The measurement failed; the explorer's terminal shows the error."
        finally:
            job.finished = True
            with self._lock:
                self._go_on()

    def _forget_old(self) -> None:
        now = time.monotonic()
        for visitor, job in list(self._jobs.items()):
            if now - job.touched > _KEPT_SECONDS:
                job.stopping.set()
                del self._jobs[visitor]


def _drop_forgotten(queue: deque[tuple[Job, Work]]) -> bool:
    """Drop the queued measurement polled longest ago, if it looks abandoned."""
    place = min(range(len(queue)), key=lambda i: queue[i][0].touched)
    job = queue[place][0]
    if time.monotonic() - job.touched < _FORGOTTEN_SECONDS:
        return False
    del queue[place]
    job.message, job.finished = "Nobody waited for it.", True
    return True

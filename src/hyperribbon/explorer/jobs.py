"""Measurements that run in the background: one a person, with progress and a way to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hyperribbon.core.checks import ArgumentError

__all__ = ["Job", "Jobs"]

_KEPT_SECONDS = 600.0


@dataclass
class Job:
    """One measurement.

    Attributes:
        progress: Share of the work that is done.
        result: The result so far.
        finished: Whether it has ended, by itself or stopped.
        message: What to tell the person: an error, or that it was stopped.
        settings: What the measurement belongs to.
    """

    progress: float = 0.0
    result: Any = None
    finished: bool = False
    message: str = ""
    settings: Any = None
    touched: float = field(default_factory=time.monotonic)
    stopping: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """The measurements of all visitors.

    Args:
        at_once: How many may run at the same time.
    """

    def __init__(self, at_once: int = 2) -> None:
        self._at_once = at_once
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(
        self,
        visitor: str,
        work: Callable[[Callable[[float, Any], bool]], Any],
        settings: Any = None,
    ) -> Job:
        """Start a measurement, stopping an earlier one of the same visitor.

        Args:
            visitor: Who asks.
            work: Called with a function to report to, which returns False when it should stop.
            settings: What the measurement belongs to.

        Raises:
            ArgumentError: Too many are running.
        """
        with self._lock:
            self._forget_old()
            earlier = self._jobs.pop(visitor, None)
            if earlier is not None:
                earlier.stopping.set()
            running = sum(not job.finished for job in self._jobs.values())
            if running >= self._at_once:
                raise ArgumentError(
                    "measurements", running, "as many as allowed are running", "Try again soon."
                )
            job = self._jobs[visitor] = Job(settings=settings)
        threading.Thread(target=_run, args=(job, work), daemon=True).start()
        return job

    def get(self, visitor: str) -> Job | None:
        """Return the visitor's measurement, if there is one."""
        with self._lock:
            job = self._jobs.get(visitor)
            if job is not None:
                job.touched = time.monotonic()
            return job

    def stop(self, visitor: str) -> None:
        """Ask the visitor's measurement to stop; what it has found so far is kept."""
        job = self.get(visitor)
        if job is not None:
            job.stopping.set()

    def _forget_old(self) -> None:
        now = time.monotonic()
        for visitor, job in list(self._jobs.items()):
            if now - job.touched > _KEPT_SECONDS:
                job.stopping.set()
                del self._jobs[visitor]


def _run(job: Job, work: Callable[[Callable[[float, Any], bool]], Any]) -> None:
    def report(progress: float, result: Any) -> bool:
        job.progress, job.result = progress, result
        return not job.stopping.is_set()

    try:
        job.result = work(report)
    except ArgumentError as error:
        job.message = str(error)
    else:
        if job.stopping.is_set():
            job.message = f"Stopped at {job.progress:.0%}; what was found is shown."
    job.finished = True

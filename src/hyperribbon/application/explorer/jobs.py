"""Background measurements: a few at once, with progress and cancellation."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hyperribbon.core.checks import ArgumentError

Report = Callable[[float, Any], bool]
"""Called with the fraction of work done and the result so far; returns False to stop."""

_KEPT_SECONDS = 600.0
_LOG = logging.getLogger(__name__)


@dataclass
class Job:
    """A measurement that a visitor of the explorer started: a background job.

    Attributes:
        settings: What the measurement belongs to.
        progress: Fraction of the work done.
        result: The result so far.
        finished: Whether it has ended, by itself or stopped.
        message: Text shown to the user: that it waits, was stopped, or an error.
        stop: Set to ask it to stop; its result so far is kept.
        polled: When its page last asked for it.
    """

    settings: Any
    progress: float = 0.0
    result: Any = None
    finished: bool = False
    message: str = "Waiting for its turn…"
    stop: threading.Event = field(default_factory=threading.Event)
    polled: float = field(default_factory=time.monotonic)


class Jobs:
    """The measurements of all visitors: one each, of which a few run at once and others wait.

    Args:
        at_once: Number of measurements that may run concurrently.
        waiting: Number of measurements that may exist unfinished.
        seconds: Time limit per measurement.
    """

    def __init__(self, at_once: int = 2, waiting: int = 64, seconds: float = 120.0) -> None:
        self._slots = threading.Semaphore(at_once)
        self._waiting, self._seconds = waiting, seconds
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(self, visitor: str, work: Callable[[Report], Any], settings: Any = None) -> Job:
        """Start or queue a visitor's measurement as a job, and stop the earlier one.

        Args:
            visitor: Identifier of the visit.
            work: Called with a progress callback, which returns False when it should stop.
            settings: What the measurement belongs to.

        Returns:
            The measurement, running or waiting.

        Raises:
            ArgumentError: Too many measurements are waiting.
        """
        with self._lock:
            oldest = time.monotonic() - _KEPT_SECONDS
            for name, job in list(self._jobs.items()):
                if name == visitor or job.polled < oldest:
                    job.stop.set()
                    del self._jobs[name]
            unfinished = sum(not job.finished for job in self._jobs.values())
            if unfinished >= self._waiting:
                reason = "too many measurements are waiting"
                raise ArgumentError("measurements", unfinished, reason, "Try again soon.")
            job = self._jobs[visitor] = Job(settings)
        threading.Thread(target=self._run, args=(job, work), daemon=True).start()
        return job

    def get(self, visitor: str) -> Job | None:
        """Return the visitor's job (a running measurement), if there is one."""
        job = self._jobs.get(visitor)
        if job is not None:
            job.polled = time.monotonic()
        return job

    def _run(self, job: Job, work: Callable[[Report], Any]) -> None:
        with self._slots:
            end = time.monotonic() + self._seconds

            def report(progress: float, result: Any) -> bool:
                job.progress, job.result = progress, result
                if time.monotonic() > end:
                    job.stop.set()
                return not job.stop.is_set()

            try:
                if not job.stop.is_set():
                    job.message = ""
                    job.result = work(report)
                if job.stop.is_set():
                    job.message = f"Stopped at {job.progress:.0%}; the results so far are shown."
            except ArgumentError as error:
                job.message = str(error)
            except Exception:
                _LOG.warning("a measurement failed", exc_info=True)
                job.message = "The measurement failed; the explorer's terminal shows the error."
            finally:
                job.finished = True

"""Where the items of a map run: in this process, or in several."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, Protocol

import torch

from hyperribbon.core.checks import check_positive_int

__all__ = ["ProcessWorkers", "SerialWorkers", "Workers"]


class Workers(Protocol):
    """Runs function(*job) for every job."""

    def run(self, function: Callable[..., None], jobs: Iterable[tuple[Any, ...]]) -> Iterator[None]:
        """Yield once for every finished job, in any order."""
        ...


class SerialWorkers:
    """One job after the other, in this process."""

    def run(self, function: Callable[..., None], jobs: Iterable[tuple[Any, ...]]) -> Iterator[None]:
        """Yield once for every finished job, in order."""
        for job in jobs:
            function(*job)
            yield None


class ProcessWorkers:
    """Several processes, with the cores divided between them.

    Args:
        processes: How many.
    """

    def __init__(self, processes: int) -> None:
        self.processes = check_positive_int("jobs", processes)

    def run(self, function: Callable[..., None], jobs: Iterable[tuple[Any, ...]]) -> Iterator[None]:
        """Yield once for every finished job, in the order they finish."""
        waiting = list(jobs)
        if not waiting:
            return
        threads = max(1, (os.cpu_count() or 1) // self.processes)
        with ProcessPoolExecutor(
            min(self.processes, len(waiting)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=torch.set_num_threads,
            initargs=(threads,),
        ) as pool:
            futures = [pool.submit(function, *job) for job in waiting]
            try:
                for future in as_completed(futures):
                    future.result()
                    yield None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

"""Where the items of a map run: in this process, in several, or on a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

import torch
from threadpoolctl import threadpool_limits

from hyperribbon.core.checks import ArgumentError, MissingExtraError, check_positive_int, validate

_CONNECTION_SECONDS = 10

Job = tuple[Any, ...]
Lost = Callable[[Job], Any]


class Workers(Protocol):
    """Workers that run function(*job) for every job."""

    def run(
        self, function: Callable[..., Any], jobs: Iterable[Job], lost: Lost | None = None
    ) -> Iterator[Any]:
        """Yield what each of the workers' jobs returned, in any order.

        Args:
            function: What to run; an exception in it ends all.
            jobs: Its arguments.
            lost: Called with a job whose process died, repeatedly, while it ran; what it returns
                is yielded instead. Without it the death ends all.
        """
        ...


class SerialWorkers:
    """Workers: one job after the other, in this process."""

    def run(
        self, function: Callable[..., Any], jobs: Iterable[Job], lost: Lost | None = None
    ) -> Iterator[Any]:
        """Yield what each job returned to the serial worker, in order."""
        for job in jobs:
            yield function(*job)


class ProcessWorkers:
    """Workers: several processes, with the cores divided between them.

    Args:
        processes: How many.
    """

    def __init__(self, processes: int) -> None:
        self.processes = check_positive_int("processes", processes)

    def run(
        self, function: Callable[..., Any], jobs: Iterable[Job], lost: Lost | None = None
    ) -> Iterator[Any]:
        """Yield what each job returned, in the order worker processes finish.

        When a process dies (killed for its memory, for example), the jobs that were running run
        again one by one: this finds the one that is to blame and loses no other.
        """
        waiting = list(jobs)[::-1]
        if len(waiting) < 2:
            yield from SerialWorkers().run(function, waiting)
            return
        while waiting:
            running: dict[Future[Any], Job] = {}
            try:
                yield from self._share(function, waiting, running)
            except BrokenProcessPool:
                for job in running.values():
                    yield self._run_alone(function, job, lost)

    def _share(
        self, function: Callable[..., Any], waiting: list[Job], running: dict[Future[Any], Job]
    ) -> Iterator[Any]:
        """Run the waiting jobs in worker processes; a dying one takes `running` along."""
        with self._pool(min(self.processes, len(waiting))) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < self.processes:
                        job = waiting.pop()
                        try:
                            running[pool.submit(function, *job)] = job
                        except BrokenProcessPool:
                            waiting.append(job)
                            raise
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        result = future.result()
                        del running[future]
                        yield result
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _run_alone(self, function: Callable[..., Any], job: Job, lost: Lost | None) -> Any:
        with self._pool(1) as pool:
            try:
                return pool.submit(function, *job).result()
            except BrokenProcessPool:
                if lost is None:
                    raise
                return lost(job)

    def _pool(self, processes: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_limit_threads,
            initargs=(max(1, (os.cpu_count() or 1) // self.processes),),
        )


class DaskWorkers:
    """A Dask cluster: SLURM through dask-jobqueue, Kubernetes, the cloud, or this machine.

    A worker that dies loses nothing but its running job, which Dask gives to another. Results are
    files, so the workers must see the store's folder at the same path.

    Args:
        address: The scheduler's address, such as "tcp://10.0.0.1:8786", or a `distributed.Client`.

    Raises:
        ArgumentError: No scheduler answers at that address.
        MissingExtraError: Dask is not installed.
    """

    def __init__(self, address: Any) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise MissingExtraError("distributed", "cluster", "Running on a Dask cluster") from None
        if isinstance(address, Client):
            self._client = address
            return
        remedy = "Start one with `dask scheduler` and give its address, tcp://HOST:8786."
        has_port = isinstance(address, str) and ":" in address
        if not has_port and not hasattr(address, "scheduler_address"):
            raise ArgumentError("dask", address, "expected the address of a scheduler", remedy)
        try:
            self._client = Client(address, timeout=_CONNECTION_SECONDS)
        except (AssertionError, OSError, TypeError, ValueError) as error:
            reason = f"no Dask scheduler answers there ({error})"
            raise ArgumentError("dask", address, reason, remedy) from None

    def run(
        self, function: Callable[..., Any], jobs: Iterable[Job], lost: Lost | None = None
    ) -> Iterator[Any]:
        """Yield what each job returned, in the order Dask workers finish."""
        from distributed import KilledWorker
        from distributed import as_completed as dask_as_completed

        futures = {
            self._client.submit(_run_on_worker, function, job, pure=False): job for job in jobs
        }
        try:
            for future in dask_as_completed(list(futures)):
                try:
                    result = future.result()
                except KilledWorker:
                    if lost is None:
                        raise
                    result = lost(futures[future])
                yield result
        finally:
            self._client.cancel(list(futures))


@validate()
def choose_workers(jobs: int = 1, dask: Any = None) -> Workers:
    """Return the workers for a number of processes or a Dask scheduler.

    Raises:
        ArgumentError: Both are given, jobs is not positive, or no scheduler answers.
    """
    jobs = check_positive_int("jobs", jobs)
    if dask is not None and jobs != 1:
        raise ArgumentError("jobs", jobs, "a Dask cluster is given too", "Give one of them.")
    if dask is not None:
        return DaskWorkers(dask)
    return SerialWorkers() if jobs == 1 else ProcessWorkers(jobs)


def _run_on_worker(function: Callable[..., Any], job: Job) -> Any:
    from distributed import get_worker

    _limit_threads(get_worker().state.nthreads)
    return function(*job)


def _limit_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    threadpool_limits(threads)

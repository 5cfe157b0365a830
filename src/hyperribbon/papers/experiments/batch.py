"""Many experiments: one after the other, side by side in processes, or on a Dask cluster."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hyperribbon.core.checks import ArgumentError, MissingExtraError, validate
from hyperribbon.core.store import RunFolder
from hyperribbon.papers.experiments.context import Progress, show_progress
from hyperribbon.papers.experiments.costs import cost_of
from hyperribbon.papers.experiments.registry import find_experiment
from hyperribbon.papers.experiments.runner import run as run_one
from hyperribbon.papers.experiments.workers import DaskWorkers, SerialWorkers, Workers


@dataclass(frozen=True)
class RunOutcome:
    """How one experiment of a batch ended.

    Attributes:
        id: The experiment.
        run: Its folder, when it worked.
        mistake: The invalid argument or missing extra that stopped it.
        broken: The traceback of any other error.
        seconds: How long it took.
    """

    id: str
    run: RunFolder | None
    mistake: ArgumentError | MissingExtraError | None
    broken: str | None
    seconds: float


@validate()
def run_experiments(
    ids: Sequence[str],
    *,
    workers: Workers | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[RunOutcome]:
    """Run a batch of experiments and yield how each ended, as they end.

    Several experiments run side by side, each on one worker, the longest first; a single one
    spreads the items of its maps over the workers. On a Dask cluster both become tasks. An
    experiment that fails does not stop the others.

    Args:
        ids: The experiments.
        workers: Where they run; one after the other in this process by default.
        progress: Receives the progress of the work.
        **options: Passed to `run` (config, preset, seeds, out, seed, with_data, fresh).
    """
    is_list = isinstance(ids, Sequence) and not isinstance(ids, str)
    if not is_list or not all(isinstance(id, str) for id in ids):
        raise ArgumentError("ids", ids, "expected a list of names", "Give ['ribbons/fig4'].")
    workers = workers or SerialWorkers()
    if len(ids) == 1 or isinstance(workers, SerialWorkers):
        for id in ids:
            yield _attempt(id, {**options, "workers": workers, "progress": progress})
        return
    preset = options.get("preset", "smoke")
    longest_first = sorted(ids, key=lambda id: _seconds(id, preset), reverse=True)
    attempt = _attempt_on_cluster if isinstance(workers, DaskWorkers) else _attempt
    jobs = [(id, options) for id in longest_first]
    with show_progress(progress, "experiments", len(ids)) as advance:
        for outcome in workers.run(attempt, jobs, _report_death):
            advance()
            yield outcome


def _seconds(id: str, preset: str) -> float:
    """Return how long an experiment of a batch takes at least; infinite if unknown."""
    try:
        cost = cost_of(find_experiment(id), preset)
    except (ArgumentError, ValueError):  # running it says what is wrong
        return 0.0
    return math.inf if cost is None else cost.seconds


def _attempt(id: str, options: dict[str, Any]) -> RunOutcome:
    started = time.monotonic()
    run, mistake, broken = None, None, None
    try:
        run = run_one(id, **options)
    except (ArgumentError, MissingExtraError) as error:
        mistake = error
    except Exception:
        broken = traceback.format_exc()
    return RunOutcome(id, run, mistake, broken, time.monotonic() - started)


def _report_death(job: tuple[Any, ...]) -> RunOutcome:
    return RunOutcome(job[0], None, None, "Its process died: was it killed for its memory?", 0.0)


def _attempt_on_cluster(id: str, options: dict[str, Any]) -> RunOutcome:
    from distributed import worker_client

    with worker_client() as client:
        return _attempt(id, {**options, "workers": DaskWorkers(client)})

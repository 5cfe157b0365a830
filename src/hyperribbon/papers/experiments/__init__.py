"""Every figure of the four papers, computed, drawn and judged claim by claim.

Names load on first use, so the command line lists experiments without importing torch.
"""

from typing import TYPE_CHECKING

from hyperribbon.core.lazy import lazy_attributes

if TYPE_CHECKING:
    from hyperribbon.papers.experiments.batch import RunOutcome, run_experiments
    from hyperribbon.papers.experiments.context import Context, Progress
    from hyperribbon.papers.experiments.names import PAPERS
    from hyperribbon.papers.experiments.registry import Experiment, all_experiments, find_experiment
    from hyperribbon.papers.experiments.runner import run
    from hyperribbon.papers.experiments.sweeping import sweep
    from hyperribbon.papers.experiments.workers import (
        DaskWorkers,
        ProcessWorkers,
        SerialWorkers,
        Workers,
        choose_workers,
    )

__all__ = [
    "PAPERS",
    "Context",
    "DaskWorkers",
    "Experiment",
    "RunOutcome",
    "ProcessWorkers",
    "Progress",
    "SerialWorkers",
    "Workers",
    "all_experiments",
    "choose_workers",
    "find_experiment",
    "run",
    "run_experiments",
    "sweep",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__)

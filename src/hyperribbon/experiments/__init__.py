"""Every figure of the four papers, computed, drawn and judged claim by claim."""

from hyperribbon.experiments.context import Context, Progress
from hyperribbon.experiments.registry import (
    PAPERS,
    Experiment,
    all_experiments,
    find_experiment,
)
from hyperribbon.experiments.runner import run_experiment
from hyperribbon.experiments.workers import ProcessWorkers, SerialWorkers, Workers

__all__ = [
    "PAPERS",
    "Context",
    "Experiment",
    "ProcessWorkers",
    "Progress",
    "SerialWorkers",
    "Workers",
    "all_experiments",
    "find_experiment",
    "run_experiment",
]

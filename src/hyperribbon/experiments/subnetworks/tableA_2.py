"""Table A.2 of [subnetworks]: shares of the weights by how much they changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks._drawing import judge_over_seeds
from hyperribbon.experiments.subnetworks._training import (
    TrainingConfig,
    mean_and_error,
    presets,
    source_of,
    trained_runs,
)
from hyperribbon.experiments.subnetworks._weights import layer_changes
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/tableA.2"
TITLE = "Shares of the weights by absolute change"

_WIDTH = 0.008
_PRINTED = (
    53.97, 16.48, 10.45, 6.79, 4.39, 2.80, 1.77, 1.12, 0.73, 0.44, 0.30, 0.19, 0.12, 0.08, 0.06,
    0.05, 0.03, 0.03, 0.03, 0.02, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01,
    0.01,
)  # fmt: skip
"""Percentages of the intervals [0, .008), [.008, .016), … of the table."""
_TOLERANCES = (2.5, 0.8, 0.8, 0.6, 0.5, 0.4, 0.3, 0.25)


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the table."""


PRESETS, PRESETS_WITH_DATA = presets(Config)


@dataclass(frozen=True)
class Result:
    """Percentages.

    Attributes:
        percent: (seeds, intervals), of all weights, in the intervals of the table.
        beyond: (seeds,), percentage that changed more than the table's end.
        source: What was trained.
    """

    percent: np.ndarray
    beyond: np.ndarray
    source: str


def compute(config: Config, context: Context) -> Result:
    """Count the changes of every run."""
    measured = context.map(_shares, trained_runs(config, context), "changes")
    shares = np.array(measured)
    return Result(shares, 100.0 - shares.sum(1), source_of(config))


def _shares(item: Mapping[str, Any]) -> np.ndarray:
    changes = np.concatenate([np.abs(end - start) for start, end in layer_changes(item)])
    edges = _WIDTH * np.arange(len(_PRINTED) + 1)
    return 100.0 * np.histogram(changes, edges)[0] / len(changes)


def plot(result: Result) -> Figure:
    """Draw measured against printed percentages."""
    figure, axis = new_figure()
    middles = _WIDTH * (np.arange(len(_PRINTED)) + 0.5)
    mean, error = mean_and_error(result.percent)
    axis.bar(middles, _PRINTED, width=0.9 * _WIDTH, color="0.85", label="printed")
    axis.errorbar(
        middles, mean, 2 * error, fmt="o", color=COLORS[0], ms=3, capsize=2, label="measured"
    )
    axis.set(yscale="log", xlabel="absolute change of a weight", ylabel="percentage of the weights")
    axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the intervals that hold most of the weights."""
    return [
        judge_over_seeds(
            f"{ID}/interval-{index + 1}",
            place="Table A.2",
            statement=f"{_PRINTED[index]}% of the weights change by {index * _WIDTH:.3f} to "
            f"{(index + 1) * _WIDTH:.3f}",
            expected=Band.around(_PRINTED[index], "paper", atol=tolerance),
            values=result.percent[:, index],
            why=f"{result.beyond.mean():.2f}% change more than the table's end; {result.source}",
        )
        for index, tolerance in enumerate(_TOLERANCES)
    ]

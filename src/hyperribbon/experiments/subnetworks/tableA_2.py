"""Table A.2 of [subnetworks]: shares of the weights by how much they changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.statements import Ledger, says
from hyperribbon.experiments.subnetworks._training import (
    SCALE,
    TRAINING,
    TrainingConfig,
    by_run,
    is_full,
    mean_and_error,
    presets,
    source_of,
    trained_runs,
)
from hyperribbon.experiments.subnetworks._weights import (
    PRINTED_SHARES,
    SHARE_TOLERANCES,
    SHARE_WIDTH,
    change_shares,
)
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/tableA.2"
TITLE = "Shares of the weights by absolute change"

LEDGER = Ledger(
    ID,
    *(
        says(
            f"interval-{index + 1}",
            "Table A.2",
            f"{index * SHARE_WIDTH:.5f} to {(index + 1) * SHARE_WIDTH:.5f} "
            f"{PRINTED_SHARES[index]:.2f}%",
            f"{PRINTED_SHARES[index]}% of the weights change by {index * SHARE_WIDTH:.3f} to "
            f"{(index + 1) * SHARE_WIDTH:.3f} in a run.",
            Band.around(PRINTED_SHARES[index], "printed", atol=0.005),
            setting=f"{TRAINING}: of the settings tried, these come nearest to the two tables",
            needs=SCALE,
            compare="prediction",
            changed="2026-11-17: mean of our runs within a tolerance of our own before",
        )
        for index in range(len(SHARE_TOLERANCES))
    ),
)


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the table."""


PRESETS, PRESETS_WITH_DATA = presets(Config, laptop={"seeds": 6})


@dataclass(frozen=True)
class Result:
    """Percentages.

    Attributes:
        percent: (seeds, intervals), of all weights, in the intervals of the table.
        beyond: (seeds,), percentage that changed more than the table's end.
        source: What was trained.
        full: Whether as in the paper, on all of MNIST.
    """

    percent: np.ndarray
    beyond: np.ndarray
    source: str
    full: bool


def compute(config: Config, context: Context) -> Result:
    """Count the changes of every run."""
    measured = context.map(change_shares, trained_runs(config, context), "changes")
    shares = np.array(measured)
    return Result(shares, 100.0 - shares.sum(1), source_of(config), is_full(config))


def plot(result: Result) -> Figure:
    """Draw measured against printed percentages."""
    figure, axis = new_figure()
    middles = SHARE_WIDTH * (np.arange(len(PRINTED_SHARES)) + 0.5)
    mean, error = mean_and_error(result.percent)
    axis.bar(middles, PRINTED_SHARES, width=0.9 * SHARE_WIDTH, color="0.85", label="printed")
    axis.errorbar(
        middles, mean, 2 * error, fmt="o", color=COLORS[0], ms=3, capsize=2, label="measured"
    )
    axis.set(yscale="log", xlabel="absolute change of a weight", ylabel="percentage of the weights")
    axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the intervals that hold most of the weights."""
    why = f"{result.beyond.mean():.2f}% change more than the table's end"
    return LEDGER.judge(
        {
            f"interval-{index + 1}": by_run(result, result.percent[:, index], why)
            for index in range(len(SHARE_TOLERANCES))
        }
    )

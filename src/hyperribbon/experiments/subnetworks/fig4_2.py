"""Fig. 4.2 of [subnetworks]: training and test loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks._drawing import draw_band, judge_over_seeds
from hyperribbon.experiments.subnetworks._training import (
    TrainingConfig,
    load_run,
    presets,
    source_of,
    trained_runs,
)
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/fig4.2"
TITLE = "Training and test loss"


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure."""


PRESETS, PRESETS_WITH_DATA = presets(Config, laptop={"seeds": 6})


@dataclass(frozen=True)
class Result:
    """Losses by epoch.

    Attributes:
        epochs: (e,).
        train_loss: (seeds, e), mean over the epoch's samples before their updates.
        test_loss: (seeds, e).
        milestones: (m,), epochs at which the rate falls.
        source: What was trained.
    """

    epochs: np.ndarray
    train_loss: np.ndarray
    test_loss: np.ndarray
    milestones: np.ndarray
    source: str


def compute(config: Config, context: Context) -> Result:
    """Read the recorded losses."""
    measured = context.map(_losses, trained_runs(config, context), "losses")
    return Result(
        measured[0]["epochs"],
        np.array([one["train"] for one in measured]),
        np.array([one["test"] for one in measured]),
        np.array(config.milestones),
        source_of(config),
    )


def _losses(item: Mapping[str, Any]) -> dict[str, np.ndarray]:
    table = load_run(item).trajectory.metrics().dropna(subset=["test_loss"])
    return {
        "epochs": table["epoch"].to_numpy(),
        "train": table["epoch_loss"].to_numpy(),
        "test": table["test_loss"].to_numpy(),
    }


def plot(result: Result) -> Figure:
    """Draw both losses."""
    figure, axis = new_figure()
    draw_band(axis, result.epochs, result.train_loss, color=COLORS[0], label="training")
    draw_band(axis, result.epochs, result.test_loss, color=COLORS[1], label="test")
    for epoch in result.milestones:
        axis.axvline(epoch, color="0.8", lw=1, zorder=0)
    axis.set(xlabel="epoch (grey: the rate falls)", ylabel="cross-entropy", yscale="log")
    axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge when the losses have converged."""
    final = result.train_loss[:, -1:]
    drop = result.train_loss[:, :1] - final
    late = result.epochs >= 0.75 * result.epochs[-1]
    return [
        judge_over_seeds(
            f"{ID}/converged",
            place="Fig. 4.2",
            statement="The training loss has converged after about 75 of 100 epochs",
            expected=Band.at_most(0.02, "paper"),
            values=((result.train_loss - final) / drop)[:, late].max(1),
            why="largest share of the total fall still to come after three quarters of the "
            f"epochs; {result.source}",
        ),
        judge_over_seeds(
            f"{ID}/test-flat",
            place="Fig. 4.2",
            statement="The test loss is flat after about 75 epochs",
            expected=Band.at_most(0.05, "paper"),
            values=np.ptp(result.test_loss[:, late], axis=1) / result.test_loss[:, -1],
            why=f"its relative range over the last quarter; {result.source}",
        ),
    ]

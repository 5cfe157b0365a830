"""Fig. 4.2 of [subnetworks]: training and test loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.statements import Ledger, says
from hyperribbon.experiments.subnetworks._drawing import draw_band
from hyperribbon.experiments.subnetworks._training import (
    SCALE,
    TRAINING,
    TrainingConfig,
    by_run,
    is_full,
    load_run,
    presets,
    source_of,
    trained_runs,
)
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/fig4.2"
TITLE = "Training and test loss"

LEDGER = Ledger(
    ID,
    says(
        "converged",
        "Fig. 4.2",
        "The model achieves convergence after approximately 75 epochs.",
        "After 75 of 100 epochs at most 0.02 of the training loss's whole fall is still to come "
        "(our threshold).",
        Band.at_most(0.02, "words"),
        setting=TRAINING,
        needs=SCALE,
    ),
    says(
        "test-flat",
        "Sec. 4.3",
        "the model converges (training and test losses flatten) after around 75 epochs",
        "From epoch 75 on the test loss stays within 0.05 of its final value (our threshold).",
        Band.at_most(0.05, "words"),
        setting=TRAINING,
        needs=SCALE,
    ),
)


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
        full: Whether as in the paper, on all of MNIST.
    """

    epochs: np.ndarray
    train_loss: np.ndarray
    test_loss: np.ndarray
    milestones: np.ndarray
    source: str
    full: bool


def compute(config: Config, context: Context) -> Result:
    """Read the recorded losses."""
    measured = context.map(_losses, trained_runs(config, context), "losses")
    return Result(
        measured[0]["epochs"],
        np.array([one["train"] for one in measured]),
        np.array([one["test"] for one in measured]),
        np.array(config.milestones),
        source_of(config),
        is_full(config),
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
    to_come = ((result.train_loss - final) / drop)[:, late]
    return LEDGER.judge(
        {
            "converged": by_run(
                result,
                to_come[:, 0],
                "share of the fall still to come after three quarters of the epochs",
            ),
            "test-flat": by_run(
                result,
                np.ptp(result.test_loss[:, late], axis=1) / result.test_loss[:, -1],
                "its relative range over the last quarter",
            ),
        }
    )

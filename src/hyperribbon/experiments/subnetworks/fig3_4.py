"""Fig. 3.4 of [subnetworks]: small changes of the whole network taken back, up to a threshold."""

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
    test_data,
    trained_runs,
)
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.subnetworks import sweep

ID = "subnetworks/fig3.4"
TITLE = "Parameter-wise re-initialisation of the whole network, by threshold"

LEDGER = Ledger(
    ID,
    says(
        "guessing",
        "Sec. 3.2.1, Fig. 3.4",
        "the same thresholds as in Figure 3.3 lead to significantly larger accuracy decay for "
        "critical parameters, with the eventual accuracy dropping below 0.2, equivalent to random "
        "guessing",
        "At the end of the scan, threshold 0.4, the test accuracy is below 0.2.",
        Band.at_most(0.2, "printed"),
        setting=TRAINING,
        needs=SCALE,
    ),
)


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure.

    Attributes:
        step: Distance of the thresholds.
        limit_threshold: Last threshold.
    """

    step: float = 0.01
    limit_threshold: float = 0.4


PRESETS, PRESETS_WITH_DATA = presets(
    Config, smoke={"step": 0.05}, laptop={"seeds": 6}, paper={"step": 0.005}
)


@dataclass(frozen=True)
class Result:
    """Accuracy by threshold.

    Attributes:
        thresholds: (t,).
        accuracy: (seeds, t).
        fraction: (seeds, t), share of the weights that was re-initialised.
        source: What was trained.
        full: Whether as in the paper, on all of MNIST.
    """

    thresholds: np.ndarray
    accuracy: np.ndarray
    fraction: np.ndarray
    source: str
    full: bool


def compute(config: Config, context: Context) -> Result:
    """Scan the threshold of every run."""
    count = round(config.limit_threshold / config.step)
    thresholds = np.round(np.arange(count + 1) * config.step, 6)
    items = [{**item, "thresholds": thresholds.tolist()} for item in trained_runs(config, context)]
    measured = context.map(_scan, items, "threshold scans")
    return Result(
        thresholds,
        np.array([one["accuracy"] for one in measured]),
        np.array([one["fraction"] for one in measured]),
        source_of(config),
        is_full(config),
    )


def _scan(item: Mapping[str, Any]) -> dict[str, Any]:
    run = load_run(item)
    scanned = sweep(
        run.model, run.final, run.initial, test_data(item), thresholds=item["thresholds"]
    )
    return {"accuracy": scanned.values.numpy(), "fraction": scanned.fractions.numpy()}


def plot(result: Result) -> Figure:
    """Draw accuracy and the share of re-initialised weights against the threshold."""
    figure, axis = new_figure()
    draw_band(axis, result.thresholds, result.accuracy, color=COLORS[0], label="test accuracy")
    draw_band(
        axis, result.thresholds, result.fraction, color=COLORS[1], ls="--",
        label="share re-initialised",
    )  # fmt: skip
    axis.axhline(0.1, color="0.5", ls=":", lw=1)
    axis.text(result.thresholds[-1], 0.11, "chance", ha="right", fontsize=8, color="0.4")
    axis.set(xlabel="threshold on the change, whole network", ylim=(0, 1.03))
    axis.legend(loc="center right")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the end of the scan."""
    last = result.accuracy[:, -1]
    why = f"at threshold {result.thresholds[-1]:g}, from {last.min():.3f} to {last.max():.3f}"
    return LEDGER.judge({"guessing": by_run(result, last, why)})

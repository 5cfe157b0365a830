"""Fig. 3.1 of [subnetworks]: accuracy when one layer is drawn anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.statements import Ledger, over_seeds, says
from hyperribbon.experiments.subnetworks._drawing import draw_layer_bars
from hyperribbon.experiments.subnetworks._layers import layer_measurements
from hyperribbon.experiments.subnetworks._training import (
    SCALE,
    TRAINING,
    TrainingConfig,
    by_run,
    is_full,
    presets,
    source_of,
)
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/fig3.1"
TITLE = "Re-randomising one layer destroys the network"

LEDGER = Ledger(
    ID,
    says(
        "chance",
        "Sec. 3.1.1, Fig. 3.1",
        "re-randomization of any single layer completely disrupts the learned representations. As "
        "a result, the classification accuracy drops to the level of random guessing (10% accuracy "
        "for ten classes)",
        "With one layer drawn anew the test accuracy is at most 0.2 for every layer; Sec. 3.2.1 "
        "calls an accuracy below 0.2 'equivalent to random guessing'.",
        Band.at_most(0.2, "words"),
        setting=TRAINING,
        needs=SCALE,
        changed="2026-11-17: at most 0.25 before, a number of our own",
    ),
    says(
        "accuracy",
        "Sec. 3.1.1",
        "The MLP achieves a high performance on the MNIST dataset, attaining an accuracy of "
        "0.9880.",
        "The test accuracy of a run is 0.9880.",
        Band.around(0.988, "printed", atol=0.00005),
        setting=TRAINING,
        needs="the learning rate, momentum and preparation of the inputs, which are not printed: "
        "those that match Tables A.1 and A.2 stay below the number",
        compare="prediction",
        changed="2026-11-17: 'fails' before, with a band of ±0.002 of our own",
    ),
)


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure.

    Attributes:
        draws: Re-randomisations of each layer.
    """

    draws: int = 5


PRESETS, PRESETS_WITH_DATA = presets(
    Config, smoke={"draws": 2}, laptop={"seeds": 6}, paper={"draws": 20}
)


@dataclass(frozen=True)
class Result:
    """Test accuracies.

    Attributes:
        baseline: (seeds,) of the trained networks.
        rerandomized: (seeds, layers), mean over draws, one layer drawn anew.
        source: What was trained.
        full: Whether as in the paper, on all of MNIST.
    """

    baseline: np.ndarray
    rerandomized: np.ndarray
    source: str
    full: bool


def compute(config: Config, context: Context) -> Result:
    """Re-randomise each layer of each run."""
    measured = layer_measurements(config, context, config.draws)
    return Result(
        measured["baseline"], measured["rerandomized"], source_of(config), is_full(config)
    )


def plot(result: Result) -> Figure:
    """Draw one bar a layer."""
    figure, axis = new_figure()
    draw_layer_bars(
        axis, result.rerandomized, color=COLORS[0], baseline=float(result.baseline.mean())
    )
    axis.axhline(0.1, color=COLORS[1], ls=":", lw=1)
    axis.set_xlim(0.0, None)
    axis.text(0.05, 0.11, "chance", fontsize=8, color=COLORS[1], va="bottom")
    axis.set_title("one layer re-randomised")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the fall to chance and the accuracy before it."""
    worst = int(result.rerandomized.mean(0).argmax())
    return LEDGER.judge(
        {
            "chance": by_run(
                result, result.rerandomized[:, worst], f"the best of the layers, layer {worst + 1}"
            ),
            "accuracy": over_seeds(result.baseline, result.source, comparable=False),
        }
    )

"""Fig. 3.1 of [subnetworks]: accuracy when one layer is drawn anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks._drawing import (
    draw_layer_bars,
    judge_over_seeds,
)
from hyperribbon.experiments.subnetworks._layers import layer_measurements
from hyperribbon.experiments.subnetworks._training import (
    TrainingConfig,
    is_full,
    presets,
    source_of,
)
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/fig3.1"
TITLE = "Re-randomising one layer destroys the network"


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
    found = [
        judge_over_seeds(
            f"{ID}/chance",
            place="Fig. 3.1, Sec. 3.1.1",
            statement="Re-randomising any single layer brings the accuracy down to guessing",
            expected=Band.at_most(0.25, "verification"),
            values=result.rerandomized[:, worst],
            why=f"the best of the layers, layer {worst + 1}; {result.source}",
        ),
        judge_over_seeds(
            f"{ID}/accuracy",
            place="Sec. 3.1.1",
            statement="The trained network reaches a test accuracy of 0.9880",
            expected=Band.around(0.988, "paper", atol=0.002),
            values=result.baseline,
            why=f"the start and rate that match Tables A.1 and A.2 stay below it; {result.source}",
        ),
    ]
    if result.full:
        found.append(
            judge_over_seeds(
                f"{ID}/trained",
                place="Sec. 3.1.1",
                statement="The network is well trained: test accuracy at least 0.978",
                expected=Band.at_least(0.978, "verification"),
                values=result.baseline,
                why=result.source,
            )
        )
    return found

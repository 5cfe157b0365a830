"""Fig. A.1 of [subnetworks]: layer-wise re-initialisation from a Gaussian and a LeCun start."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks._drawing import draw_layer_bars, judge_over_seeds
from hyperribbon.experiments.subnetworks._layers import layer_measurements
from hyperribbon.experiments.subnetworks._training import TrainingConfig, presets, source_of
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/figA.1"
TITLE = "Layer-wise re-initialisation from two kinds of start"


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure.

    Attributes:
        draws: Re-randomisations of each layer (measured along with Fig. 3.1).
        lecun_seeds: Runs from the LeCun start.
    """

    draws: int = 5
    lecun_seeds: int = 3


PRESETS, PRESETS_WITH_DATA = presets(
    Config,
    smoke={"draws": 2, "lecun_seeds": 1},
    laptop={"seeds": 6},
    paper={"draws": 20, "lecun_seeds": 6},
)


@dataclass(frozen=True)
class Result:
    """Test accuracies with one layer re-initialised.

    Attributes:
        gaussian: (seeds, layers), from the configured start.
        gaussian_baseline: (seeds,).
        lecun: (lecun seeds, layers), from the LeCun start.
        lecun_baseline: (lecun seeds,).
        start: What the first start is.
        source: What was trained.
    """

    gaussian: np.ndarray
    gaussian_baseline: np.ndarray
    lecun: np.ndarray
    lecun_baseline: np.ndarray
    start: str
    source: str


def compute(config: Config, context: Context) -> Result:
    """Re-initialise each layer of the runs from both starts."""
    gaussian = layer_measurements(config, context, config.draws)
    few = replace(config, seeds=config.lecun_seeds)
    lecun = layer_measurements(few, context, config.draws, init="lecun")
    return Result(
        gaussian["reinitialized"],
        gaussian["baseline"],
        lecun["reinitialized"],
        lecun["baseline"],
        f"Gaussian start, sd {config.init}" if config.init != "lecun" else "LeCun start",
        source_of(config),
    )


def plot(result: Result) -> Figure:
    """Draw one panel a start."""
    figure, axes = new_figure(1, 2, width="full", ratio=0.7, sharey=True)
    for axis, values, baseline, color, title in (
        (axes[0], result.gaussian, result.gaussian_baseline, COLORS[0], result.start),
        (axes[1], result.lecun, result.lecun_baseline, COLORS[2], "LeCun start"),
    ):
        draw_layer_bars(axis, values, color=color, baseline=float(baseline.mean()))
        axis.set_title(f"{title}, one layer re-initialised")
    axes[1].set_ylabel("")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the critical layer from both starts, and the printed accuracy."""
    found = []
    for name, values, baseline in (
        ("gaussian", result.gaussian, result.gaussian_baseline),
        ("lecun", result.lecun, result.lecun_baseline),
    ):
        drops = baseline[:, None] - values
        found.append(
            judge_over_seeds(
                f"{ID}/{name}-first-layer",
                place="Fig. A.1",
                statement=f"From a {name} start too, the first layer alone is critical: it costs "
                "more than any other by 0.1",
                expected=Band.at_least(0.1, "paper"),
                values=drops[:, 0] - drops[:, 1:].max(1),
                why=f"its drop minus the largest other drop; {result.source}",
            )
        )
    found.append(
        judge_over_seeds(
            f"{ID}/lecun-value",
            place="Sec. 3.2.1",
            statement="With the whole first layer re-initialised the accuracy is 0.5150",
            expected=Band(0.4, 0.65, "verification"),
            values=result.lecun[:, 0],
            why="the LeCun start comes closer to the printed number than the Gaussian one "
            f"({result.gaussian[:, 0].mean():.2f}); {result.source}",
        )
    )
    return found

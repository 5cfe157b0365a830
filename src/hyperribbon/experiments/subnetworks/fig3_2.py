"""Fig. 3.2 of [subnetworks]: accuracy when one layer goes back to its start."""

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

ID = "subnetworks/fig3.2"
TITLE = "Re-initialising one layer: the first is critical, the last are robust"


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure.

    Attributes:
        draws: Re-randomisations of each layer (measured along with Fig. 3.1).
    """

    draws: int = 5


PRESETS, PRESETS_WITH_DATA = presets(
    Config, smoke={"draws": 2}, laptop={"seeds": 6}, paper={"draws": 20}
)


@dataclass(frozen=True)
class Result:
    """Test accuracies with one layer re-initialised.

    Attributes:
        baseline: (seeds,) of the trained networks.
        reinitialized: (seeds, layers).
        critical: (seeds, layers), 1 where the drop exceeds 0.1 by two standard errors.
        robust: (seeds, layers), 1 where it stays below 0.1 by two standard errors.
        worst_class: (seeds, layers), lowest share of a class that is still recognised.
        source: What was trained.
        full: Whether as in the paper, on all of MNIST.
    """

    baseline: np.ndarray
    reinitialized: np.ndarray
    critical: np.ndarray
    robust: np.ndarray
    worst_class: np.ndarray
    source: str
    full: bool


def compute(config: Config, context: Context) -> Result:
    """Re-initialise each layer of each run."""
    measured = layer_measurements(config, context, config.draws)
    return Result(
        measured["baseline"],
        measured["reinitialized"],
        measured["critical"],
        measured["robust"],
        measured["worst_class"],
        source_of(config),
        is_full(config),
    )


def plot(result: Result) -> Figure:
    """Draw one bar a layer with its verdict."""
    figure, axis = new_figure()
    draw_layer_bars(
        axis, result.reinitialized, color=COLORS[0], baseline=float(result.baseline.mean())
    )
    verdicts = [
        "critical" if critical == 1 else "robust" if robust == 1 else "varies"
        for critical, robust in zip(result.critical.mean(0), result.robust.mean(0), strict=True)
    ]
    axis.set_xticklabels([f"{layer}\n{verdict}" for layer, verdict in enumerate(verdicts, 1)])
    axis.set_title("one layer re-initialised")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the critical first layer, the robust last ones, and the printed accuracy."""
    drops = result.baseline[:, None] - result.reinitialized

    def spread(layer: int) -> str:
        values = result.reinitialized[:, layer - 1]
        lost = result.worst_class[values.argmin(), layer - 1]
        return (
            f"accuracies from {values.min():.3f} to {values.max():.3f}, median "
            f"{np.median(values):.3f}; in the lowest run one digit is recognised only {lost:.0%} "
            f"of the time; {result.source}"
        )

    found = [
        judge_over_seeds(
            f"{ID}/layer1-critical",
            place="Fig. 3.2",
            statement="Layer 1 is critical: re-initialised, the accuracy falls by more than 0.1",
            expected=Band.at_least(0.1, "paper"),
            values=drops[:, 0],
            why=spread(1),
        ),
        *(
            judge_over_seeds(
                f"{ID}/layer{layer}-robust",
                place="Fig. 3.2",
                statement=f"Layer {layer} is robust: re-initialised, the accuracy falls by under "
                "0.05",
                expected=Band.at_most(0.05, "paper"),
                values=drops[:, layer - 1],
                why=spread(layer),
            )
            for layer in (2, 3, 4)
        ),
        judge_over_seeds(
            f"{ID}/layer1-printed",
            place="Sec. 3.2.1",
            statement="With the whole first layer re-initialised the accuracy is 0.5150",
            expected=Band.around(0.515, "paper", atol=0.05),
            values=result.reinitialized[:, 0],
            why=spread(1),
        ),
    ]
    if result.full:
        found += [
            judge_over_seeds(
                f"{ID}/layer1-value",
                place="Fig. 3.2",
                statement="Layer 1 re-initialised leaves an accuracy between 0.4 and 0.8",
                expected=Band(0.4, 0.8, "verification"),
                values=result.reinitialized[:, 0],
                why=spread(1),
            ),
            *(
                judge_over_seeds(
                    f"{ID}/layer{layer}-value",
                    place="Fig. 3.2",
                    statement=f"Layer {layer} re-initialised leaves an accuracy above 0.94",
                    expected=Band.at_least(0.94, "verification"),
                    values=result.reinitialized[:, layer - 1],
                    why=spread(layer),
                )
                for layer in (3, 4)
            ),
        ]
    return found

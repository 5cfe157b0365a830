"""Fig. 2 (a) of [linear_networks]: the same networks on raw inputs, without Assumption 2."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.linear_networks._sweeps import (
    SweepConfig,
    SweepResult,
    least_rise,
    plot_sweep,
    run_sweep,
)
from hyperribbon.experiments.linear_networks._training import presets, with_data

ID = "linear_networks/fig2-left"
TITLE = "Sharpness on raw inputs: the theory needs white ones"

Config, Result = SweepConfig, SweepResult

PRESETS = presets(
    Config(white=False), smoke={"shares": (0.1, 0.5), "width": 16, "epochs": 600}, paper={}
)
PRESETS_WITH_DATA = with_data(PRESETS)


def compute(config: SweepConfig, context: Context) -> SweepResult:
    """Train balanced networks on raw inputs for every share."""
    return run_sweep(config, context)


def plot(result: SweepResult) -> Figure:
    """Draw trained sharpness beside the prediction for white inputs."""
    figure = plot_sweep(result, "trained, raw inputs")
    for axis in figure.axes:
        axis.set_yscale("log")
    return figure


def claims(result: SweepResult) -> list[Claim]:
    """Judge whether the prediction fails and whether its trend does."""
    trained = result.trained[..., 0]
    ratio = trained / result.printed
    return [
        Claim.judge(
            f"{ID}/breaks",
            place="Sec. 5",
            statement="Without whitening, Eq. (14) breaks down",
            expected=Band.at_least(0.5, "paper"),
            measured=np.abs(ratio - 1).min(),
            why=(
                f"least relative difference from Eq. (14); trained networks are {ratio.min():.3g} "
                f"to {ratio.max():.3g} times as sharp: the input variances enter, not labels alone"
            ),
        ),
        Claim.judge(
            f"{ID}/inconsistent",
            place="Sec. 5",
            statement="On raw inputs, sharpness varies inconsistently with the largest share",
            expected=Band.at_most(0.0, "paper"),
            measured=least_rise(trained),
            why="least change from one share to the next larger one, over data sets",
        ),
    ]

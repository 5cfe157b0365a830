"""Fig. 2 (b) of [linear_networks]: Kaiming uniform starts, without Assumption 3."""

from __future__ import annotations

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

ID = "linear_networks/fig2-middle"
TITLE = "Sharpness from Kaiming uniform starts: layers out of balance"

Config, Result = SweepConfig, SweepResult

PRESETS = presets(
    Config(start="kaiming_uniform", scale=0.0, repeats=2),
    smoke={"shares": (0.1, 0.5), "width": 16, "lr": 0.05, "epochs": 1500, "repeats": 1},
    paper={"repeats": 5},
)
PRESETS_WITH_DATA = with_data(PRESETS)


def compute(config: SweepConfig, context: Context) -> SweepResult:
    """Train networks from Kaiming uniform starts on white inputs for every share."""
    return run_sweep(config, context)


def plot(result: SweepResult) -> Figure:
    """Draw trained sharpness beside both forms of the prediction."""
    return plot_sweep(result, "trained, Kaiming start")


def claims(result: SweepResult) -> list[Claim]:
    """Judge the prediction and the trend."""
    middle = result.trained.mean(axis=-1)
    excess = result.trained / result.general[..., None] - 1
    least, most = excess.min(), excess.max()
    return [
        Claim.judge(
            f"{ID}/imbalance",
            place="Sec. 5",
            statement="Sharpness rises with the share of the largest class",
            expected=Band.at_least(0.0, "paper"),
            measured=least_rise(middle),
            why="least change from one share to the next larger one, over data sets",
        ),
        Claim.judge(
            f"{ID}/intact",
            place="Sec. 5",
            statement="Predictions stay intact: sharpness is within 5% of a balanced minimum's",
            expected=Band(-0.05, 0.05, "paper"),
            measured=most,
            why=(
                f"trained networks are {least:.0%} to {most:.0%} sharper than balanced ones with "
                f"the same outputs; their balance defect ends at {result.defect.min():.2f} or more"
            ),
        ),
        Claim.judge(
            f"{ID}/sharper",
            place="Eq. (9)",
            statement="A network out of balance is sharper than the balanced one of equal outputs",
            expected=Band.at_least(0.0, "verification"),
            measured=least,
            why="least relative difference over data sets, shares and starts",
        ),
    ]

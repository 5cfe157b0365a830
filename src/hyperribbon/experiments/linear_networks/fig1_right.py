"""Fig. 1 (c) of [linear_networks]: sharpness of trained balanced networks and its predictions."""

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

ID = "linear_networks/fig1-right"
TITLE = "Sharpness of trained balanced networks against label imbalance"

Config, Result = SweepConfig, SweepResult

_DENSE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PRESETS = presets(
    Config(),
    smoke={"shares": (0.1, 0.5), "width": 16, "lr": 0.05, "epochs": 1500},
    paper={"shares": _DENSE},
)
PRESETS_WITH_DATA = with_data(PRESETS)


def compute(config: SweepConfig, context: Context) -> SweepResult:
    """Train balanced networks on white inputs for every share."""
    return run_sweep(config, context)


def plot(result: SweepResult) -> Figure:
    """Draw trained sharpness beside both forms of the prediction."""
    return plot_sweep(result, "trained, balanced")


def claims(result: SweepResult) -> list[Claim]:
    """Judge both predictions, the loss floor and the trend."""
    trained = result.trained[..., 0]
    general = np.abs(trained / result.general - 1)
    printed = trained / result.printed - 1
    worst = np.unravel_index(np.abs(printed).argmax(), printed.shape)
    shift = result.general[worst] / result.printed[worst] - 1
    found = [
        Claim.judge(
            f"{ID}/general-form",
            place="Eq. (13)",
            statement="Trained sharpness is L σ^{2(L−1)} with σ^L = σmax(YXᵀ)/(nσx²)",
            expected=Band.at_most(1e-3, "closed form"),
            measured=general.max(),
            why="largest relative difference over data sets and label shares",
        ),
        Claim.judge(
            f"{ID}/printed-form",
            place="Eq. (14)",
            statement="Trained sharpness is L σx^{2/L} αmax^{1−1/L}",
            expected=Band(-0.01, 0.01, "paper"),
            measured=printed[worst],
            why=(
                "largest relative difference; the printed form assumes zero loss, but a linear "
                f"map leaves a loss of {result.floor[worst]:.4f} there, and the general form of "
                f"Eq. (13), which allows for it, gives {shift:+.2%}"
            ),
        ),
        Claim.judge(
            f"{ID}/loss-floor",
            place="Assumption 1",
            statement="Training ends at the least loss a linear map can reach, (1 − ‖YXᵀ/n‖²)/2",
            expected=Band(-1e-3, 2e-2, "closed form"),
            measured=np.max(result.loss[..., 0] - result.floor),
            why="largest loss above the floor; the smallest classes are learnt last",
        ),
        Claim.judge(
            f"{ID}/imbalance",
            place="Sec. 4",
            statement="Sharpness rises with the share of the largest class",
            expected=Band.at_least(0.0, "paper"),
            measured=least_rise(trained),
            why="least change from one share to the next larger one, over data sets",
        ),
    ]
    if "mnist5k" in result.data:
        uniform = trained[result.data.index("mnist5k"), 0]
        found.append(
            Claim.judge(
                f"{ID}/mnist-uniform",
                place="Fig. 1 (c)",
                statement="Sharpness on 5,000 MNIST digits with equal classes",
                expected=Band.around(0.691, "verification", atol=0.002),
                measured=uniform,
                why=f"Eq. (14) says {result.printed[0, 0]:.4f}",
            )
        )
    return found

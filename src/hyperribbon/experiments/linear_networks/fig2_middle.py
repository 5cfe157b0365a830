"""Fig. 2 (b) of [linear_networks]: Kaiming uniform starts, without Assumption 3."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.linear_networks._sweeps import (
    NEEDS,
    SETTING,
    SweepConfig,
    SweepResult,
    least_rise,
    plot_sweep,
    run_sweep,
)
from hyperribbon.experiments.linear_networks._training import presets, with_data
from hyperribbon.experiments.statements import Ledger, observe, over_seeds, says

ID = "linear_networks/fig2-middle"
TITLE = "Sharpness from Kaiming uniform starts: layers out of balance"

LEDGER = Ledger(
    ID,
    says(
        "imbalance",
        "Sec. 5",
        "the theoretical predictions made in previous section stay intact, as the final sharpness "
        "increasing with label imbalance",
        "For every set, sharpness rises from each share of the largest class to the next.",
        Band.at_least(0.0, "printed"),
        setting=f"{SETTING}; Kaiming uniform start as PyTorch has it",
        needs=NEEDS,
    ),
    observe(
        "intact",
        "Sec. 5",
        "Sharpness is within 5% of a balanced minimum's for every set, share and start.",
        Band.at_most(0.05, "words"),
        needs=NEEDS,
    ),
    observe(
        "sharper",
        "Eq. (9)",
        "A network out of balance is sharper than the balanced one of equal outputs.",
        Band.at_least(0.0, "closed form"),
        needs=NEEDS,
    ),
)

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
    """Judge the trend and the distance from balance, one number a start."""
    excess = (result.trained / result.general[..., None] - 1).reshape(-1, result.trained.shape[-1])
    defect = f"the balance defect ends at {result.defect.min():.2f} or more"
    return LEDGER.judge(
        {
            "imbalance": over_seeds(
                [least_rise(one) for one in np.moveaxis(result.trained, -1, 0)],
                "least change from one share to the next larger one, over data sets",
            ),
            "intact": over_seeds(excess.max(axis=0), f"largest relative difference; {defect}"),
            "sharper": over_seeds(excess.min(axis=0), f"least relative difference; {defect}"),
        }
    )

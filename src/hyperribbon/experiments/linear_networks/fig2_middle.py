"""Fig. 2 (b) of [linear_networks]: Kaiming uniform starts, without Assumption 3."""

from __future__ import annotations

import numpy as np

from hyperribbon.experiments.judging import Measurements, over_seeds
from hyperribbon.experiments.kit import Context, Figure
from hyperribbon.experiments.linear_networks import _sweeps
from hyperribbon.experiments.linear_networks._training import presets, with_data
from hyperribbon.experiments.statements import Band, observe, says

TITLE = "Sharpness from Kaiming uniform starts: layers out of balance"

STATEMENTS = (
    says(
        "imbalance",
        "Sec. 5",
        "the theoretical predictions made in previous section stay intact, as the final sharpness "
        "increasing with label imbalance",
        "For every set, sharpness rises from each share of the largest class to the next.",
        Band.at_least(0.0, "printed"),
        setting=f"{_sweeps.SETTING}; Kaiming uniform start as PyTorch has it",
        needs=_sweeps.NEEDS,
    ),
    observe(
        "intact",
        "Sec. 5",
        "Sharpness is within 5% of a balanced minimum's for every set, share and start.",
        Band.at_most(0.05, "words"),
        needs=_sweeps.NEEDS,
    ),
    observe(
        "sharper",
        "Eq. (9)",
        "A network out of balance is sharper than the balanced one of equal outputs.",
        Band.at_least(0.0, "closed form"),
        needs=_sweeps.NEEDS,
    ),
)

Config, Result = _sweeps.SweepConfig, _sweeps.SweepResult

PRESETS = presets(
    Config(start="kaiming_uniform", scale=0.0, repeats=2),
    smoke={"shares": (0.1, 0.5), "width": 16, "lr": 0.05, "epochs": 1500, "repeats": 1},
    paper={"repeats": 5},
)
PRESETS_WITH_DATA = with_data(PRESETS)


def compute(config: _sweeps.SweepConfig, context: Context) -> _sweeps.SweepResult:
    """Train networks from Kaiming uniform starts on white inputs for every share."""
    return _sweeps.run_sweep(config, context)


def plot(result: _sweeps.SweepResult) -> Figure:
    """Draw trained sharpness beside both forms of the prediction."""
    return _sweeps.plot_sweep(result, "trained, Kaiming start")


def measure(result: _sweeps.SweepResult) -> Measurements:
    """Measure the trend and the distance from balance, one number for each start."""
    excess = (result.trained / result.general[..., None] - 1).reshape(-1, result.trained.shape[-1])
    defect = f"the balance defect ends at {result.defect.min():.2f} or more"
    return {
        "imbalance": over_seeds(
            [_sweeps.least_rise(one) for one in np.moveaxis(result.trained, -1, 0)],
            "least change from one share to the next larger one, over data sets",
        ),
        "intact": over_seeds(excess.max(axis=0), f"largest relative difference; {defect}"),
        "sharper": over_seeds(excess.min(axis=0), f"least relative difference; {defect}"),
    }

"""Fig. 1 (c) of [linear_networks]: sharpness of trained balanced networks and its predictions."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _sweeps
from hyperribbon.papers.experiments.linear_networks._training import presets, with_data

TITLE = "Sharpness of trained balanced networks against label imbalance"

STATEMENTS = kit.at_scale(
    _sweeps.NEEDS,
    kit.says(
        "imbalance",
        "Sec. 4",
        "the model learns sharper solutions when there is one class with disproportionately large "
        "number of labels; we illustrate this in the right panel in Figure 1",
        "For every set, sharpness rises from each share of the largest class to the next.",
        kit.Band.at_least(0.0, "printed"),
        setting=_sweeps.SETTING,
    ),
    kit.observe(
        "printed-form",
        "Fig. 1 (c), Eq. (14)",
        "Trained sharpness is within 5% of L σx^(2/L) αmax^(1−1/L) for every set and share.",
        kit.Band(-0.05, 0.05, "words"),
    ),
    kit.observe(
        "general-form",
        "Eq. (13)",
        "Trained sharpness is Lσ^(2(L−1)) with σ^L = σmax(YXᵀ)/(nσx²), to three digits.",
        kit.Band.at_most(1e-3, "closed form"),
    ),
    kit.observe(
        "loss-floor",
        "Assumption 1",
        "Training ends within 0.02 of the least loss a linear map can reach, (1 − ‖YXᵀ/n‖²)/2.",
        kit.Band(-1e-3, 2e-2, "closed form"),
    ),
)

Config, Result = _sweeps.SweepConfig, _sweeps.SweepResult

_DENSE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PRESETS = presets(
    Config(),
    smoke={"shares": (0.1, 0.5), "width": 16, "lr": 0.05, "epochs": 1500},
    paper={"shares": _DENSE},
)
PRESETS_WITH_DATA = with_data(PRESETS)


def compute(config: _sweeps.SweepConfig, context: kit.Context) -> _sweeps.SweepResult:
    """Train balanced networks on white inputs for every share (Fig. 1 right)."""
    return _sweeps.run_sweep(config, context)


def plot(result: _sweeps.SweepResult) -> kit.Figure:
    """Draw trained sharpness beside both forms of the prediction (Fig. 1 right)."""
    return _sweeps.plot_sweep(result, "trained, balanced")


def measure(result: _sweeps.SweepResult) -> kit.Measurements:
    """Measure both predictions, the loss floor and the trend (Fig. 1 right)."""
    trained = result.trained[..., 0]
    printed = trained / result.printed - 1
    worst = np.unravel_index(np.abs(printed).argmax(), printed.shape)
    shift = result.general[worst] / result.printed[worst] - 1
    return {
        "printed-form": kit.over_seeds(
            [printed[worst]],
            "largest relative difference; the printed form assumes zero loss, but a linear map "
            f"leaves {result.floor[worst]:.4f} there, and the general form gives {shift:+.2%}",
        ),
        "imbalance": _sweeps.measure_rise(result.trained),
        "general-form": kit.over_seeds(
            [np.abs(trained / result.general - 1).max()], "largest relative difference"
        ),
        "loss-floor": kit.over_seeds(
            [np.max(result.loss[..., 0] - result.floor)], "largest loss above the floor"
        ),
    }

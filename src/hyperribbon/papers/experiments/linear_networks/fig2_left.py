"""Fig. 2 (a) of [linear_networks]: the same networks on raw inputs, without Assumption 2."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _sweeps
from hyperribbon.papers.experiments.linear_networks._training import presets, with_data

TITLE = "Sharpness on raw inputs: the theory needs white ones"

_SETTING = f"{_sweeps.SETTING}; raw inputs"
STATEMENTS = kit.at_scale(
    _sweeps.NEEDS,
    kit.says(
        "breaks",
        "Sec. 5",
        "In this case, our theory breaks down immediately",
        "No trained network on raw inputs is within a half of Eq. (14).",
        kit.Band.at_least(0.5, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "inconsistent",
        "Sec. 5",
        "the sharpness of the learnt solution turns out to have inconsistent variations with "
        "maximum label proportion in the dataset",
        "For some set and share, sharpness falls when the largest share grows.",
        kit.Band.at_most(0.0, "printed"),
        setting=_SETTING,
    ),
    kit.says(
        "peak",
        "Sec. 4, on Fig. 2 (a)",
        "peak-sharpness is strongly influenced by the input-geometry",
        "The largest sharpness along training on raw inputs is at least twice that of a balanced "
        "minimum on white ones.",
        kit.Band.at_least(2.0, "words"),
        setting=_SETTING,
    ),
)

Config, Result = _sweeps.SweepConfig, _sweeps.SweepResult

PRESETS = presets(
    Config(white=False), smoke={"shares": (0.1, 0.5), "width": 16, "epochs": 600}, paper={}
)
PRESETS_WITH_DATA = with_data(PRESETS)


def compute(config: _sweeps.SweepConfig, context: kit.Context) -> _sweeps.SweepResult:
    """Train balanced networks on raw inputs for every share (Fig. 2 (a) of [linear_networks])."""
    return _sweeps.run_sweep(config, context)


def plot(result: _sweeps.SweepResult) -> kit.Figure:
    """Draw trained sharpness beside the prediction for white inputs (Fig. 2 (a))."""
    figure = _sweeps.plot_sweep(result, "trained, raw inputs")
    for axis in figure.axes:
        axis.set_yscale("log")
    return figure


def measure(result: _sweeps.SweepResult) -> kit.Measurements:
    """Measure how far the prediction fails, and its trend (Fig. 2 (a) of [linear_networks])."""
    ratio = result.trained[..., 0] / result.printed
    return {
        "breaks": kit.over_seeds(
            [np.abs(ratio - 1).min()],
            f"least relative difference from Eq. (14); trained networks are {ratio.min():.3g} "
            f"to {ratio.max():.3g} times as sharp",
        ),
        "inconsistent": _sweeps.measure_rise(result.trained),
        "peak": kit.over_seeds(
            [(result.peak[..., 0] / result.general).min()],
            "peak over the white prediction, the least of all sets and shares",
        ),
    }

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
    kit.observe(
        "any-inputs",
        "Eq. (9)",
        "With the inputs' own covariance in place of σx², Eq. (9) gives the trained sharpness from "
        "the map that was learnt, within 1% for every set and share.",
        kit.Band.at_most(0.01, "closed form"),
    ),
    kit.observe(
        "edge",
        "Sec. 5",
        "At the learning rate of the end, no network is above the edge of stability: the largest "
        "sharpness along training is below 2/η.",
        kit.Band.at_most(1.0, "closed form"),
    ),
)

Config, Result = _sweeps.SweepConfig, _sweeps.SweepResult

PRESETS = presets(
    Config(white=False), smoke={"shares": (0.1, 0.5), "width": 16, "epochs": 600}, paper={}
)
PRESETS_WITH_DATA = with_data(PRESETS)


def compute(config: _sweeps.SweepConfig, context: kit.Context) -> _sweeps.SweepResult:
    """Train balanced networks on raw inputs for every share (Fig. 2 left of [linear_networks])."""
    return _sweeps.run_sweep(config, context)


def plot(result: _sweeps.SweepResult) -> kit.Figure:
    """Draw trained sharpness, its predictions and the loss (Fig. 2 left of [linear_networks])."""
    count = len(result.data)
    look = {"width": "full" if count > 1 else "column", "ratio": 0.95}
    figure, axes = kit.new_figure(2, count, squeeze=False, sharex=True, sharey="row", **look)
    _sweeps.draw_sweep(result, axes[0], "trained, raw inputs")
    for row, (axis, below) in enumerate(axes.T):
        shares = result.shares[row]
        look = {"ls": "", "marker": "x", "color": "k", "ms": 7, "zorder": 5}
        axis.plot(shares, result.exact[row], label="Eq. (9) for these inputs", **look)
        edge, top = 2 / result.rate[row], 10 * result.peak.max()
        label = r"$2/\eta$ at the end (open: larger)"
        look = {"s": 18, "color": "0.5", "zorder": 2}
        axis.scatter(shares, np.minimum(edge, top / 1.5), marker="v", label=label, **look)
        beyond = edge > top
        axis.scatter(
            shares[beyond], np.full(beyond.sum(), top / 1.5), marker="v", c="w", s=5, zorder=3
        )
        axis.set(yscale="log", xlabel="", ylim=(0.5, top))
        below.plot(shares, result.loss[row, :, 0], "o", color=kit.COLORS[1], ms=5, label="loss")
        below.plot(shares, result.floor[row], marker="_", ms=14, ls="", color="k", label="floor")
        below.set_xlabel(r"largest label share $\alpha_{\max}$")
    axes[1, 0].set_ylabel("loss at the end")
    axes[1, 0].legend(fontsize=7)
    _sweeps.add_legend(figure, axes[0])
    return figure


def measure(result: _sweeps.SweepResult) -> kit.Measurements:
    """Measure how far the prediction fails, and its trend (Fig. 2 left of [linear_networks])."""
    ratio = result.trained[..., 0] / result.printed
    return {
        "breaks": kit.over_seeds(
            [np.abs(ratio - 1).min()],
            f"least relative difference from Eq. (14); trained networks are {ratio.min():.3g} "
            f"to {ratio.max():.3g} times as sharp",
        ),
        "inconsistent": _sweeps.measure_rise(result.trained),
        "any-inputs": kit.over_seeds(
            [np.abs(result.trained[..., 0] / result.exact - 1).max()],
            "largest relative difference; the loss ends up to "
            f"{(result.loss[..., 0] - result.floor).max():.3f} above the least of a linear map",
        ),
        "edge": kit.over_seeds(
            [(result.peak[..., 0] * result.rate / 2).max()],
            f"largest sharpness over 2/η; rates end between {result.rate.min():.0e} and "
            f"{result.rate.max():.0e}, for the schedule of App. C halves them wherever the loss "
            "stalls, and so stops training above the floor",
        ),
    }

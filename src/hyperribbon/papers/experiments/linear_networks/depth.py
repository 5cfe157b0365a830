"""Sharpness of trained balanced networks against depth and label imbalance, beside the theory."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from hyperribbon.application.inspection import leading_eigenvalues
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import read_moments
from hyperribbon.papers.experiments.linear_networks._sweeps import predictions

TITLE = "Sharpness by depth and label imbalance, trained and predicted"

_NEEDS = "5,000 images and 10,000 epochs"
_SETTING = "Fig. 1 (c)'s training with 2 to 8 layers; the paper's panel is a formula"
_QUOTE = "This effect is amplified by large depths, mainly due to the leading factor of L"
STATEMENTS = kit.at_scale(
    _NEEDS,
    kit.says(
        "amplified",
        "Sec. 4",
        _QUOTE,
        "The difference in sharpness between the largest share and the smallest grows from depth "
        "to depth.",
        kit.Band.at_least(0.0, "words"),
        setting=_SETTING,
        changed="2026-11-18: the ratio of both before, in which the factor L cancels",
    ),
    kit.says(
        "leading-factor",
        "Sec. 4",
        _QUOTE,
        "Mainly is at least half: from two layers to the most, the factor L makes up half or more "
        "of the growth of that difference, on a logarithmic scale, for every set.",
        kit.Band.at_least(0.5, "words"),
        setting=_SETTING,
    ),
    kit.observe(
        "general-form",
        "Eq. (13)",
        "The general form gives trained sharpness at every depth and imbalance, to three digits.",
        kit.Band.at_most(1e-3, "closed form"),
    ),
    kit.observe(
        "printed-form",
        "Eq. (14)",
        "The printed form is an upper bound of trained sharpness.",
        kit.Band.at_most(1e-3, "closed form"),
    ),
)


class Config(_training.TrainingConfig):
    """Setting of the sharpness of linear networks against their depth."""

    shares: tuple[float, ...] = (0.1, 0.5, 0.9)
    start: str = "balanced"
    depths: tuple[int, ...] = (1, 2, 3, 4, 6, 8)  # numbers of layers
    gain: float = 0.0625  # singular values of the whole network at the start, whatever its depth


PRESETS = _training.presets(
    Config(),
    smoke={"shares": (0.1, 0.5), "depths": (1, 2, 4), "width": 16, "lr": 0.05, "epochs": 1500},
    paper={"depths": (1, 2, 3, 4, 5, 6, 8, 10, 12)},
)
PRESETS_WITH_DATA = _training.with_data(PRESETS)


class Result(kit.Frozen):
    """Sharpness by data set, share and depth."""

    data: list[str]  # names of the data sets, m
    depths: np.ndarray  # (l,)
    shares: np.ndarray  # (s,), requested
    samples: np.ndarray  # (m, s), images used
    inputs: np.ndarray  # (m, s), pixels of an image
    trained: np.ndarray  # (m, s, l), at the end of training
    general: np.ndarray  # (m, s, l), Eq. (13) in its general form, through Eq. (9)
    printed: np.ndarray  # (m, s, l), Eq. (14)


def compute(config: Config, context: kit.Context) -> Result:
    """Train one balanced network for every data set, share and depth."""
    items = [
        {**item, "depth": depth, "scale": config.gain ** (1 / depth)}
        for item in _training.training_items(config, context)
        for depth in config.depths
    ]
    runs = context.map(_train, items, "training")
    shape = (len(config.data), len(config.shares), len(config.depths))
    columns = kit.stack(runs, "trained", "general", "printed", "samples", "inputs", shape=shape)
    return Result(
        data=list(config.data),
        depths=np.array(config.depths),
        shares=np.array(config.shares),
        samples=columns.pop("samples")[..., 0],
        inputs=columns.pop("inputs")[..., 0],
        **columns,
    )


def _train(item: kit.Item) -> dict[str, Any]:
    moments, facts = read_moments(item)
    trained = leading_eigenvalues(_training.train_item(item, moments).weights, moments)[0]
    return {"trained": trained, **predictions(facts, item["depth"])}


def plot(result: Result) -> kit.Figure:
    """Draw sharpness against depth, a panel for each data set."""
    figure, axes = _training.panels(result.data, result.samples, sharey=True)
    for row, axis in enumerate(axes):
        for column, share in enumerate(result.shares):
            at, color = (row, column), kit.COLORS[column]
            grid = np.linspace(result.depths[0], result.depths[-1], 200)
            largest = (result.printed[at][-1] / result.depths[-1]) ** (
                1 / (1 - 1 / result.depths[-1])
            )
            axis.plot(grid, grid * largest ** (1 - 1 / grid), ":", color=color)
            axis.plot(result.depths, result.general[at], "_", ms=14, color=color)
            label = rf"$\alpha={share:g}$"
            few = result.samples[at] < result.inputs[at]
            look = {"mec": color, "mfc": "white" if few else color, "ls": "", "label": label}
            axis.plot(result.depths, result.trained[at], "o", **look)
        axis.set(xlabel="depth $L$", xticks=result.depths)
    axes[0].set_ylabel(r"sharpness $\lambda_{\max}$")
    axes[0].legend(loc="upper left")
    handles = [
        Line2D([], [], color="0.3", label="trained", marker="o", ls=""),
        Line2D([], [], color="0.3", label="trained, $n<d_0$", marker="o", mfc="white", ls=""),
        Line2D([], [], color="0.3", label="Eq. (13), general", marker="_", ms=12, ls=""),
        Line2D([], [], color="0.3", label="Eq. (14)", ls=":"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=8)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure how sharpness depends on depth, and how well the prediction follows."""
    difference = np.abs(result.trained / result.general - 1)
    deep = result.depths >= 2
    depths = result.depths[deep]
    spread = (result.trained[:, -1] - result.trained[:, 0])[:, deep]
    growth = np.log(spread[:, -1] / spread[:, 0])
    return {
        "amplified": kit.over_seeds(
            [np.diff(spread, axis=1).min()], "least growth from depth to depth, over data sets"
        ),
        "leading-factor": kit.over_seeds(
            [(np.log(depths[-1] / depths[0]) / growth).min()],
            f"ln({depths[-1]}/{depths[0]}) over the logarithm of the difference's growth, least of "
            "all sets",
        ),
        "general-form": kit.over_seeds(
            [difference.max()], f"largest relative difference over {difference.size} networks"
        ),
        "printed-form": kit.over_seeds(
            [np.max(result.trained / result.printed - 1)], "largest relative excess"
        ),
    }

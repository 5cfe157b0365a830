"""Sharpness of balanced solutions against the number of samples, absent from Eq. (14)."""

from __future__ import annotations

import numpy as np

from hyperribbon.core import derive_seed
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks._data import NAMES, moments_of
from hyperribbon.papers.experiments.linear_networks._sweeps import predictions

TITLE = "Sharpness of balanced solutions against the number of samples"

STATEMENTS = kit.at_scale(
    "5,000 images",
    kit.says(
        "independent",
        "Sec. 4",
        "the sharpness at a balanced solution is independent of the dataset size n",
        "From the smallest number of samples to the largest, the sharpness of the balanced minimum "
        "changes by less than 5%.",
        kit.Band(-0.05, 0.05, "words"),
        setting="random subsets with equal classes, 4 layers, white inputs, n above the number of "
        "pixels as Assumption 2 asks; the paper shows no figure",
    ),
    kit.observe(
        "printed",
        "Eq. (14)",
        "At the largest n the balanced minimum is within 5% of Eq. (14).",
        kit.Band(-0.05, 0.05, "words"),
    ),
)


class Config(kit.Frozen):
    """Setting of the sharpness of linear networks against the number of samples."""

    data: tuple[str, ...] = ("mnist5k",)  # data sets
    sizes: tuple[int, ...] = (1000, 2000, 4500)  # numbers of samples, ascending
    share: float = 0.1  # of class 0; a tenth makes the ten classes equal
    depth: int = 4  # number of layers
    draws: int = 5  # random subsets of each size


PRESETS = kit.presets(
    Config(), smoke=Config(data=("digits",), sizes=(300, 1200), draws=2), paper=Config(draws=20)
)
PRESETS_WITH_DATA = {
    "smoke": PRESETS["smoke"],
    "laptop": Config(data=("mnist", "fashion_mnist"), sizes=(1000, 2000, 5000, 20_000)),
    "paper": Config(
        data=("mnist", "fashion_mnist"), sizes=(1000, 2000, 5000, 20_000, 50_000), draws=20
    ),
}


class Result(kit.Frozen):
    """Sharpness by data set, size and subset."""

    data: list[str]  # names of the data sets, m
    sizes: np.ndarray  # (k,)
    general: np.ndarray  # (m, k, r), of the balanced minimum
    printed: np.ndarray  # (m, k, r), Eq. (14)


def compute(config: Config, context: kit.Context) -> Result:
    """Compute the sharpness of linear networks on random subsets of many sizes."""
    shared = {"share": config.share, "depth": config.depth}
    seeds = [derive_seed(context.seed, "subset", draw) for draw in range(config.draws)]
    items = [
        {**shared, "data": data, "samples": samples, "data_seed": seed}
        for data in config.data
        for samples in config.sizes
        for seed in seeds
    ]
    found = np.array(context.map(_measure, items, "subsets"))
    shape = (len(config.data), len(config.sizes), config.draws)
    general, printed = found.T.reshape(2, *shape)
    return Result(list(config.data), np.array(config.sizes), general, printed)


def _measure(item: kit.Item) -> list[float]:
    predicted = predictions(moments_of(item), item["depth"])
    return [float(predicted["general"]), float(predicted["printed"])]


def plot(result: Result) -> kit.Figure:
    """Draw linear networks' sharpness against the number of samples."""
    figure, axis = kit.new_figure(ratio=0.75)
    for row, name in enumerate(result.data):
        general, printed, color = result.general[row], result.printed[row], kit.COLORS[row]
        axis.plot(result.sizes, general.mean(axis=1), "o", color=color, label=NAMES[name])
        axis.vlines(result.sizes, general.min(axis=1), general.max(axis=1), color=color)
        axis.axhline(printed.mean(), color="0.5", ls=":", label=None if row else "Eq. (14)")
    axis.set_ylim(0, 1.1 * result.printed.max())
    axis.set(xscale="log", xlabel="samples $n$", ylabel=r"sharpness $\lambda_{\max}$")
    axis.legend(loc="lower right")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure how sharpness changes with the number of samples n, and the printed form."""
    change = result.general[:, -1] / result.general[:, 0] - 1
    apart = result.general[:, -1] / result.printed[:, -1] - 1
    sizes = f"n = {result.sizes[0]} to {result.sizes[-1]}"
    return {
        "independent": kit.over_seeds(_farthest(change), f"{sizes}, the set that changes most"),
        "printed": kit.over_seeds(_farthest(apart), f"at n = {result.sizes[-1]}"),
    }


def _farthest(values: np.ndarray) -> np.ndarray:
    """Return for each subset the value farthest from zero over data sets."""
    return np.take_along_axis(values, np.abs(values).argmax(axis=0)[None], axis=0)[0]

"""Eq. (6) of [linear_networks]: the upper bound of the sharpness along training, by depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hyperribbon.application.inspection import leading_eigenvalues
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import read_moments
from hyperribbon.theory import linear_networks as theory

TITLE = "Upper bound of the sharpness along training, by depth"

_SETTING = (
    "white inputs, Fig. 1 (c)'s training from Kaiming uniform and balanced starts; the paper shows "
    "no figure of it"
)
STATEMENTS = kit.at_scale(
    "5,000 images and 10,000 epochs",
    kit.says(
        "bound",
        "Eq. (6)",
        "the spectral norm can be upper bounded as",
        "No largest Gauss-Newton eigenvalue along any training exceeds Eq. (6).",
        kit.Band.at_least(1 - 1e-6, "closed form"),
        setting=_SETTING,
    ),
    kit.says(
        "not-exact",
        "Sec. 2.2",
        "exactness does not work out for the spectral norm",
        "With three layers or more and a Kaiming start the bound ends at least 1% too high.",
        kit.Band.at_least(1.01, "words"),
        setting=_SETTING,
    ),
    kit.observe(
        "two-layers",
        "Eqs. (6), (10)",
        "With two layers the bound is the largest eigenvalue, balanced or not.",
        kit.Band(1 - 1e-6, 1 + 1e-6, "closed form"),
    ),
    kit.observe(
        "balanced",
        "Eqs. (6), (9)",
        "From a balanced start the bound stays within 1% of the largest eigenvalue at any depth.",
        kit.Band(1 - 1e-6, 1.01, "closed form"),
    ),
)


class Config(_training.TrainingConfig):
    """Setting of the bound of Eq. (6)."""

    depths: tuple[int, ...] = (2, 3, 4, 6, 8)  # numbers of layers
    gain: float = 0.0625  # singular values of the whole network at a balanced start
    records: int = 24  # epochs at which both are taken


PRESETS = _training.presets(
    Config(),
    smoke={"depths": (2, 4), "width": 16, "lr": 0.05, "epochs": 1000, "records": 6},
    paper={"records": 60},
)

_STARTS = ("kaiming_uniform", "balanced")


class Result(kit.Frozen):
    """Bound and largest Gauss-Newton eigenvalue (Eq. (6) of [linear_networks])."""

    samples: int  # images
    depths: np.ndarray  # (l,)
    epochs: np.ndarray  # (e,), recorded epochs
    bound: np.ndarray  # (2, l, e), Eq. (6) from Kaiming and from balanced starts
    largest: np.ndarray  # (2, l, e), by Lanczos

    @property
    def ratio(self) -> np.ndarray:
        """(2, l, e), bound over eigenvalue (Eq. (6) of [linear_networks])."""
        return self.bound / self.largest


def compute(config: Config, context: kit.Context) -> Result:
    """Train networks of several depths and take Eq. (6)'s bound and the eigenvalue."""
    (item,) = _training.training_items(config, context)
    items = [
        {
            **item,
            "start": start,
            "depth": depth,
            "scale": config.gain ** (1 / depth) if start == "balanced" else 0.0,
        }
        for start in _STARTS
        for depth in config.depths
    ]
    runs = context.map(_train, items, "training and bounds")
    return Result(
        samples=item["samples"],
        depths=np.array(config.depths),
        epochs=runs[0]["epochs"],
        **kit.stack(runs, "bound", "largest", shape=(2, len(config.depths))),
    )


def _train(item: kit.Item) -> dict[str, Any]:
    moments, _ = read_moments(item)

    def bound(layers: Sequence[np.ndarray]) -> float:
        return theory.sharpness_bound(layers, sigma_x=moments.sigma_x)

    def largest(layers: Sequence[np.ndarray]) -> float:
        return float(leading_eigenvalues(layers, moments, matrix=theory.ggn, tol=1e-8)[0])

    times = _training.record_times(item["epochs"], item["records"])
    return _training.train_and_record(item, moments, {"bound": bound, "largest": largest}, times)


def plot(result: Result) -> kit.Figure:
    """Draw Eq. (6)'s bound over the eigenvalue against epochs, a curve per depth."""
    figure, axes = kit.new_figure(1, 2, width="full", ratio=0.7, sharey=True)
    for axis, ratios, title in zip(
        axes, result.ratio, ("Kaiming start", "balanced start"), strict=True
    ):
        for depth, ratio, color in zip(result.depths, ratios, kit.shades(len(ratios)), strict=True):
            axis.plot(result.epochs, ratio, color=color, label=f"{depth} layers")
        axis.axhline(1, color="0.6", lw=0.8, ls=":", zorder=0)
        axis.set_title(f"{title}, n = {result.samples:,}", fontsize=8)
        _training.label_epochs(axis, result.epochs)
    axes[0].set_ylabel("Eq. (6) / largest eigenvalue")
    axes[1].legend(fontsize=7)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure whether the bound holds, and where it is attained (Eq. (6) of [linear_networks])."""
    free, balanced = result.ratio
    deep = result.depths > 2
    shallow = result.ratio[:, ~deep]
    return {
        "bound": kit.over_seeds(
            [result.ratio.min()], f"least of {result.ratio.size} ratios of bound to eigenvalue"
        ),
        "not-exact": kit.over_seeds(
            [free[deep, -1].min()],
            f"least ratio at the end; the largest along training is {free.max():.2f}",
        ),
        "two-layers": kit.over_seeds(
            [shallow.flat[np.abs(shallow - 1).argmax()]], "ratio farthest from one"
        ),
        "balanced": kit.over_seeds([balanced.max()], "largest ratio, over depths and epochs"),
    }

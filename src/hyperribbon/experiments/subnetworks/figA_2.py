"""Fig. A.2 of [subnetworks]: distributions of the weights before and after training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import kurtosis

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.statements import Ledger, observe
from hyperribbon.experiments.subnetworks._training import (
    LAYERS,
    SCALE,
    TrainingConfig,
    by_run,
    is_full,
    presets,
    source_of,
    trained_runs,
)
from hyperribbon.experiments.subnetworks._weights import layer_changes
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/figA.2"
TITLE = "Distribution of the weights of every layer before and after training"

_EDGES = np.linspace(-0.6, 0.6, 121)

LEDGER = Ledger(
    ID,
    *(
        observe(
            f"layer{layer}-tails",
            "Fig. A.2",
            f"Training widens the tails of layer {layer}: the excess kurtosis of its weights, zero "
            "at the Gaussian start, becomes positive.",
            Band.at_least(0.0, "words"),
            needs=SCALE,
            changed="2026-11-17: a claim before; the figure has no sentence about tails",
        )
        for layer in (1, 2, 3)
    ),
)


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure."""


PRESETS, PRESETS_WITH_DATA = presets(Config, laptop={"seeds": 6})


@dataclass(frozen=True)
class Result:
    """Histograms of the weights.

    Attributes:
        edges: (b + 1,) of the bins.
        before: (seeds, layers, b), densities at the start.
        after: (seeds, layers, b), densities after training.
        excess_kurtosis: (seeds, layers), of the trained weights.
        source: What was trained.
        full: Whether as in the paper, on all of MNIST.
    """

    edges: np.ndarray
    before: np.ndarray
    after: np.ndarray
    excess_kurtosis: np.ndarray
    source: str
    full: bool


def compute(config: Config, context: Context) -> Result:
    """Count the weights of every run."""
    measured = context.map(_histograms, trained_runs(config, context), "histograms")
    stacked = {key: np.array([one[key] for one in measured]) for key in measured[0]}
    return Result(
        _EDGES,
        stacked["before"],
        stacked["after"],
        stacked["kurtosis"],
        source_of(config),
        is_full(config),
    )


def _histograms(item: Mapping[str, Any]) -> dict[str, np.ndarray]:
    pairs = layer_changes(item)
    return {
        "before": np.array([np.histogram(a, _EDGES, density=True)[0] for a, _ in pairs]),
        "after": np.array([np.histogram(b, _EDGES, density=True)[0] for _, b in pairs]),
        "kurtosis": np.array([kurtosis(b) for _, b in pairs]),
    }


def plot(result: Result) -> Figure:
    """Draw one panel a layer."""
    figure, axes = new_figure(2, 2, width="full", ratio=0.55, sharex=True)
    centres = (result.edges[1:] + result.edges[:-1]) / 2
    floor = 0.5 * result.after[result.after > 0].min()
    for layer, axis in enumerate(axes.ravel()):
        for values, label, color in (
            (result.before, "before training", COLORS[5]),
            (result.after, "after training", COLORS[1]),
        ):
            mean = values[:, layer].mean(0)
            axis.fill_between(
                centres, floor, np.maximum(mean, floor), step="mid", color=color, alpha=0.45, lw=0,
                label=label,
            )  # fmt: skip
            axis.step(centres, np.maximum(mean, floor), where="mid", color=color, lw=1)
        axis.set(yscale="log", ylim=(floor, None))
        axis.set_title(f"{LAYERS[layer].lower()}, excess kurtosis after training "
                       f"{result.excess_kurtosis[:, layer].mean():.1f}")  # fmt: skip
    for axis in axes[1]:
        axis.set_xlabel("weight")
    for axis in axes[:, 0]:
        axis.set_ylabel("density")
    axes[0, 0].legend(loc="upper right")
    return figure


def claims(result: Result) -> list[Claim]:
    """Observe the tails that the trained weights grow."""
    return LEDGER.judge(
        {
            f"layer{layer}-tails": by_run(
                result, result.excess_kurtosis[:, layer - 1], "excess kurtosis"
            )
            for layer in (1, 2, 3)
        }
    )

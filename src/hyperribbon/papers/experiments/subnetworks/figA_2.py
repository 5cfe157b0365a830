"""Fig. A.2 of [subnetworks]: distributions of the weights before and after training."""

from __future__ import annotations

import numpy as np
from scipy.stats import kurtosis

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.papers.experiments.subnetworks._weights import layer_changes

TITLE = "Distribution of the weights of every layer before and after training"

_EDGES = np.linspace(-0.6, 0.6, 121)

STATEMENTS = (
    *(
        kit.observe(
            f"layer{layer}-tails",
            "Fig. A.2",
            f"Training widens the tails of layer {layer}: the excess kurtosis of its weights, zero "
            "at the Gaussian start, becomes positive.",
            kit.Band.at_least(0.0, "words"),
            needs=_runs.SCALE,
            changed="2026-11-17: a claim before; the figure has no sentence about tails",
        )
        for layer in (1, 2, 3)
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of Fig. A.2 of [subnetworks]."""


PRESETS, PRESETS_WITH_DATA = _runs.presets(Config)


class Result(_runs.OfRuns):
    """Histograms of the weights (Fig. A.2 of [subnetworks])."""

    edges: np.ndarray  # (b + 1,) of the bins
    before: np.ndarray  # (seeds, layers, b), densities at the start
    after: np.ndarray  # (seeds, layers, b), densities after training
    excess_kurtosis: np.ndarray  # (seeds, layers), of the trained weights


def compute(config: Config, context: kit.Context) -> Result:
    """Count the weights of every run (Fig. A.2 of [subnetworks])."""
    measured = context.map(_histograms, _runs.train_runs(config, context), "histograms")
    return Result(edges=_EDGES, **kit.stack(measured), **_runs.origin(config))


def _histograms(item: kit.Item) -> dict[str, np.ndarray]:
    pairs = layer_changes(item)
    return {
        "before": np.array([np.histogram(a, _EDGES, density=True)[0] for a, _ in pairs]),
        "after": np.array([np.histogram(b, _EDGES, density=True)[0] for _, b in pairs]),
        "excess_kurtosis": np.array([kurtosis(b) for _, b in pairs]),
    }


def plot(result: Result) -> kit.Figure:
    """Draw one panel for each layer (Fig. A.2 of [subnetworks])."""
    figure, axes = kit.new_figure(2, 2, width="full", ratio=0.55, sharex=True)
    centres = (result.edges[1:] + result.edges[:-1]) / 2
    floor = 0.5 * result.after[result.after > 0].min()
    for layer, axis in enumerate(axes.ravel()):
        for values, label, color in (
            (result.before, "before training", kit.COLORS[5]),
            (result.after, "after training", kit.COLORS[1]),
        ):
            mean = np.maximum(values[:, layer].mean(0), floor)
            look = {"color": color, "alpha": 0.45, "lw": 0, "label": label}
            axis.fill_between(centres, floor, mean, step="mid", **look)
            axis.step(centres, mean, where="mid", color=color, lw=1)
        name, tails = _runs.LAYERS[layer].lower(), result.excess_kurtosis[:, layer].mean()
        title = f"{name}, excess kurtosis after training {tails:.1f}"
        axis.set(yscale="log", ylim=(floor, None), title=title)
    for axis in axes[1]:
        axis.set_xlabel("weight")
    for axis in axes[:, 0]:
        axis.set_ylabel("density")
    axes[0, 0].legend(loc="upper right")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Observe the tails that the trained weights grow (Fig. A.2 of [subnetworks])."""
    return {
        f"layer{layer}-tails": result.by_run(
            result.excess_kurtosis[:, layer - 1], "excess kurtosis"
        )
        for layer in (1, 2, 3)
    }

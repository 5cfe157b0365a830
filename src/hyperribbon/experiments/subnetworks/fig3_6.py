"""Fig. 3.6 of [subnetworks]: pruning and re-initialising a growing share of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim, derive_seed
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks._drawing import draw_band, judge_over_seeds
from hyperribbon.experiments.subnetworks._training import (
    TrainingConfig,
    is_full,
    load_run,
    presets,
    source_of,
    test_data,
    trained_runs,
)
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.subnetworks import sweep

ID = "subnetworks/fig3.6"
TITLE = "Pruning and re-initialising by magnitude, by change and at random"

_OPERATIONS = ("reinitialize", "prune")
_CRITERIA = ("change", "magnitude", "random")
_VERIFIED = {
    "reinitialize-change": {0.5: 0.980, 0.8: 0.976, 0.9: 0.956, 0.95: 0.906},
    "reinitialize-magnitude": {0.5: 0.966, 0.8: 0.919, 0.9: 0.834, 0.95: 0.666},
    "prune-change": {0.5: 0.971, 0.8: 0.908, 0.9: 0.669, 0.95: 0.408},
    "prune-magnitude": {0.5: 0.977, 0.8: 0.909, 0.9: 0.666, 0.95: 0.418},
}


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure.

    Attributes:
        points: Number of fractions, evenly spaced from 0 to 1 in steps of 1/(points).
    """

    points: int = 40


PRESETS, PRESETS_WITH_DATA = presets(Config, smoke={"points": 20}, paper={"points": 100})


@dataclass(frozen=True)
class Result:
    """Accuracy by method and fraction.

    Attributes:
        fractions: (f,).
        accuracy: {"prune-change", …}: (seeds, f).
        source: What was trained.
        full: Whether as in the paper, on all of MNIST.
    """

    fractions: np.ndarray
    accuracy: dict[str, np.ndarray]
    source: str
    full: bool


def compute(config: Config, context: Context) -> Result:
    """Sweep every method over the fractions, for every run."""
    fractions = np.arange(config.points + 1) / config.points
    runs = trained_runs(config, context)
    methods = [(operation, criterion) for operation in _OPERATIONS for criterion in _CRITERIA]
    items = [
        {**run, "operation": operation, "criterion": criterion, "fractions": fractions.tolist()}
        for operation, criterion in methods
        for run in runs
    ]
    curves = np.array(context.map(_curve, items, "sub-networks"))
    curves = curves.reshape(len(methods), config.seeds, -1)
    accuracy = {f"{a}-{b}": curve for (a, b), curve in zip(methods, curves, strict=True)}
    return Result(fractions, accuracy, source_of(config), is_full(config))


def _curve(item: Mapping[str, Any]) -> np.ndarray:
    run = load_run(item)
    return sweep(
        run.model,
        run.final,
        run.initial,
        test_data(item),
        operation=item["operation"],
        criterion=item["criterion"],
        fractions=item["fractions"],
        seed=derive_seed(item["seed"], "random selection"),
    ).values.numpy()


def plot(result: Result) -> Figure:
    """Draw one panel an operation."""
    figure, axes = new_figure(1, 2, width="full", ratio=0.75, sharey=True)
    titles = {"reinitialize": "re-initialised", "prune": "pruned"}
    for axis, operation in zip(axes, _OPERATIONS, strict=True):
        for color, criterion in zip(COLORS, _CRITERIA, strict=False):
            label = {"random": "at random"}.get(criterion, f"smallest {criterion} first")
            draw_band(
                axis, result.fractions, result.accuracy[f"{operation}-{criterion}"],
                color=color, label=label,
            )  # fmt: skip
        axis.set(xlabel=f"fraction {titles[operation]}", ylim=(0, 1.03), xlim=(0, 1))
        axis.set_title(titles[operation])
    axes[0].set_ylabel("test accuracy")
    axes[0].legend(loc="lower left")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the order of the curves at .5, .8 and .95, and the values on full MNIST."""

    def at(method: str, fraction: float) -> np.ndarray:
        return result.accuracy[method][:, int(np.argmin(np.abs(result.fractions - fraction)))]

    found = []
    for fraction in (0.5, 0.8, 0.95):
        found.append(
            judge_over_seeds(
                f"{ID}/reinitialize-change-wins-{fraction:g}",
                place="Fig. 3.6",
                statement="Re-initialising by change keeps more accuracy than by magnitude, "
                f"p = {fraction:g}",
                expected=Band.at_least(0.0, "paper"),
                values=at("reinitialize-change", fraction) - at("reinitialize-magnitude", fraction),
                why=f"difference of the accuracies, same networks; {result.source}",
            )
        )
        found.append(
            judge_over_seeds(
                f"{ID}/prune-magnitude-wins-{fraction:g}",
                place="Sec. 3.3.2",
                statement="Pruning by magnitude keeps more accuracy than by change, "
                f"p = {fraction:g}",
                expected=Band.at_least(0.0, "paper"),
                values=at("prune-magnitude", fraction) - at("prune-change", fraction),
                why=f"beyond p = 0.5 the two are equal within the spread of seeds; {result.source}",
            )
        )
    for operation in _OPERATIONS:
        criteria = [at(f"{operation}-{c}", 0.8) for c in ("change", "magnitude")]
        found.append(
            judge_over_seeds(
                f"{ID}/{operation}-random-worst",
                place="Fig. 3.6",
                statement=f"{operation}: random selection is worse than either criterion, p = 0.8",
                expected=Band.at_least(0.0, "paper"),
                values=np.minimum(*criteria) - at(f"{operation}-random", 0.8),
                why=f"margin of the weaker criterion over random selection; {result.source}",
            )
        )
    for method, values in _VERIFIED.items() if result.full else ():
        for fraction, value in values.items():
            found.append(
                judge_over_seeds(
                    f"{ID}/{method}-{fraction:g}",
                    place="Fig. 3.6",
                    statement=f"Accuracy of {method.replace('-', ' by ')} at p = {fraction:g}",
                    expected=Band.around(value, "verification", atol=0.01 + 0.3 * (0.98 - value)),
                    values=at(method, fraction),
                    why=result.source,
                )
            )
    return found

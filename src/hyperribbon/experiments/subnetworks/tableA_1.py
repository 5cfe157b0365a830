"""Table A.1 of [subnetworks]: weights before and after training, and the setting that matches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.statements import Ledger, says
from hyperribbon.experiments.subnetworks._training import (
    LAYERS,
    SCALE,
    TRAINING,
    TrainingConfig,
    by_run,
    is_full,
    load_run,
    mean_and_error,
    presets,
    run_items,
    source_of,
    trained,
)
from hyperribbon.experiments.subnetworks._weights import (
    PRINTED_SHARES,
    SHARE_TOLERANCES,
    change_shares,
    weight_statistics,
)
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/tableA.1"
TITLE = "Means, standard deviations and correlations of the weights, layer by layer"

_FINAL_SD = np.array([0.054, 0.058, 0.058, 0.158])
_CORRELATION = np.array([0.930, 0.906, 0.921, 0.753])
_SD_TOLERANCE = np.array([0.001, 0.001, 0.001, 0.005])
_CORRELATION_TOLERANCE = np.array([0.004, 0.004, 0.004, 0.015])
_FITTED = f"{TRAINING}: of the settings tried, these come nearest to the two tables"
_COLUMNS = ("initial_mean", "initial_sd", "final_mean", "final_sd", "correlation")

_ROWS = (
    "Hidden 1 0.000, 0.050 0.000, 0.054 0.930",
    "Hidden 2 0.000, 0.050 0.003, 0.058 0.906",
    "Hidden 3 0.000, 0.050 0.004, 0.058 0.921",
    "Output 0.002, 0.049 0.002, 0.158 0.753",
)
"""As printed: layer; mean and sd of the initial, then of the final weights; correlation."""

LEDGER = Ledger(
    ID,
    *(
        says(
            f"{name}-{layer + 1}",
            "Table A.1",
            _ROWS[layer],
            f"{words}, {LAYERS[layer].lower()}: {printed[layer]:.3f} in a run.",
            Band.around(printed[layer], "printed", atol=0.0005),
            setting=_FITTED,
            needs=SCALE,
            compare="prediction",
            changed="2026-11-17: mean of our runs within a tolerance of our own before",
        )
        for layer in range(4)
        for name, words, printed in (
            ("final-sd", "Standard deviation of the final weights", _FINAL_SD),
            ("correlation", "Correlation of initial and final weights", _CORRELATION),
        )
    ),
)


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the table.

    Attributes:
        other_rates: Learning rates to compare with, one run each.
        other_starts: Standard deviations of other Gaussian starts, one run each; 0 for LeCun.
    """

    other_rates: tuple[float, ...] = (0.005, 0.02)
    other_starts: tuple[float, ...] = (0.0,)


PRESETS, PRESETS_WITH_DATA = presets(
    Config,
    smoke={"other_rates": (0.1,), "other_starts": ()},
    laptop={"seeds": 6},
    paper={"other_rates": (0.003, 0.005, 0.02, 0.05), "other_starts": (0.0, 0.03, 0.07)},
)


@dataclass(frozen=True)
class Result:
    """Statistics of the weights, layer by layer.

    Attributes:
        initial_mean: (seeds, layers).
        initial_sd: (seeds, layers).
        final_mean: (seeds, layers).
        final_sd: (seeds, layers).
        correlation: (seeds, layers), between start and end.
        settings: Names of the settings compared, the chosen one first.
        misfit: (settings,), distance to the printed Tables A.1 and A.2 in tolerances.
        accuracy: (settings,), on the test images.
        source: What was trained.
        full: Whether as in the paper, on all of MNIST.
    """

    initial_mean: np.ndarray
    initial_sd: np.ndarray
    final_mean: np.ndarray
    final_sd: np.ndarray
    correlation: np.ndarray
    settings: list[str]
    misfit: np.ndarray
    accuracy: np.ndarray
    source: str
    full: bool


def compute(config: Config, context: Context) -> Result:
    """Take the statistics of every run, and of one run with each other setting."""
    others = [(f"rate {rate:g}", {"lr": rate}) for rate in config.other_rates]
    others += [
        (f"start {start:g}" if start else "LeCun start", {"init": start or "lecun"})
        for start in config.other_starts
    ]
    items = run_items(config, context)
    items += [run_items(config, context, **change)[0] for _, change in others]
    measured = context.map(_statistics, trained(items, context), "statistics")
    table = {key: np.array([one[key] for one in measured]) for key in measured[0]}
    groups = [slice(config.seeds), *(slice(i, i + 1) for i in range(config.seeds, len(items)))]
    means = [{key: values[group].mean(0) for key, values in table.items()} for group in groups]
    return Result(
        **{key: table[key][: config.seeds] for key in _COLUMNS},
        settings=[f"rate {config.lr:g}, start {config.init}", *(name for name, _ in others)],
        misfit=np.array([_misfit(mean) for mean in means]),
        accuracy=np.array([mean["accuracy"] for mean in means]),
        source=source_of(config),
        full=is_full(config),
    )


def _statistics(item: Mapping[str, Any]) -> dict[str, Any]:
    accuracy = load_run(item).trajectory.metrics()["test_accuracy"].dropna().iloc[-1]
    shares = change_shares(item)
    return {**weight_statistics(item), "shares": shares, "accuracy": float(accuracy)}


def _misfit(mean: Mapping[str, np.ndarray]) -> float:
    """Return the root mean square distance to both printed tables, in tolerances."""
    count = len(SHARE_TOLERANCES)
    distances = [
        (mean["final_sd"] - _FINAL_SD) / _SD_TOLERANCE,
        (mean["correlation"] - _CORRELATION) / _CORRELATION_TOLERANCE,
        (mean["shares"] - PRINTED_SHARES)[:count] / SHARE_TOLERANCES,
    ]
    return float(np.sqrt(np.mean(np.square(np.concatenate(distances)))))


def plot(result: Result) -> Figure:
    """Draw measured against printed numbers, and the misfit of each setting."""
    figure, (left, middle, right) = new_figure(1, 3, width="full", ratio=1.0)
    layers = np.arange(1, len(_FINAL_SD) + 1)
    for axis, values, printed, label in (
        (left, result.final_sd, _FINAL_SD, "sd of the final weights"),
        (middle, result.correlation, _CORRELATION, "correlation start–end"),
    ):
        mean, error = mean_and_error(values)
        axis.bar(layers, printed, color="0.85", label="printed")
        axis.errorbar(
            layers, mean, 2 * error, fmt="o", color=COLORS[0], capsize=3, label="measured"
        )
        axis.set(ylabel=label, xticks=layers)
        axis.set_xticklabels([name.replace(" ", "\n") for name in LAYERS])
    left.legend(loc="upper left")
    order = np.arange(len(result.settings))[::-1]
    colors = [COLORS[0], *["0.6"] * (len(order) - 1)]
    right.barh(order, result.misfit, color=colors, height=0.6)
    right.set(yticks=order, xscale="log", xlabel="misfit / tolerance")
    right.set_yticklabels([name.replace(", ", "\n") for name in result.settings])
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge every printed number."""
    rows = zip(result.settings, result.misfit, result.accuracy, strict=True)
    why = "misfits in tolerances and test accuracies of the settings tried: " + "; ".join(
        f"{name}: {misfit:.2g}, {accuracy:.4f}" for name, misfit, accuracy in rows
    )
    return LEDGER.judge(
        {
            f"{key.replace('_', '-')}-{layer + 1}": by_run(
                result, getattr(result, key)[:, layer], why
            )
            for layer in range(len(LAYERS))
            for key in ("final_sd", "correlation")
        }
    )

"""Table A.1 of [subnetworks]: weights before and after training, and the setting that matches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs, _weights

TITLE = "Means, standard deviations and correlations of the weights, layer by layer"

_FINAL_SD = np.array([0.054, 0.058, 0.058, 0.158])
_CORRELATION = np.array([0.930, 0.906, 0.921, 0.753])
_INITIAL_MEAN = np.array([0.000, 0.000, 0.000, 0.002])
_FINAL_MEAN = np.array([0.000, 0.003, 0.004, 0.002])
_SD_TOLERANCE = np.array([0.001, 0.001, 0.001, 0.005])
_CORRELATION_TOLERANCE = np.array([0.004, 0.004, 0.004, 0.015])
_COLUMNS = ("initial_mean", "initial_sd", "final_mean", "final_sd", "correlation")

_ROWS = (
    "Hidden 1 0.000, 0.050 0.000, 0.054 0.930",
    "Hidden 2 0.000, 0.050 0.003, 0.058 0.906",
    "Hidden 3 0.000, 0.050 0.004, 0.058 0.921",
    "Output 0.002, 0.049 0.002, 0.158 0.753",
)
"""As printed: layer; mean and sd of the initial, then of the final weights; correlation."""

STATEMENTS = (
    *(
        _weights.says_printed(
            f"{name}-{layer + 1}",
            "Table A.1",
            _ROWS[layer],
            f"{words}, {_runs.LAYERS[layer].lower()}: {printed[layer]:.3f} "
            f"{_weights.REACHED if printed[layer] else 'in a run.'}",
            kit.Band.around(printed[layer], "printed", atol=0.0005),
            # An interval around a number printed as zero is always wider than the number.
            compare="prediction" if printed[layer] else "run",
        )
        for layer in range(4)
        for name, words, printed in (
            ("initial-mean", "Mean of the initial weights", _INITIAL_MEAN),
            ("final-mean", "Mean of the final weights", _FINAL_MEAN),
            ("final-sd", "Standard deviation of the final weights", _FINAL_SD),
            ("correlation", "Correlation of initial and final weights", _CORRELATION),
        )
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of the table (Table A.1 of [subnetworks])."""

    other_rates: tuple[float, ...] = (0.005, 0.02)  # learning rates to compare with, one run each
    # standard deviations of other Gaussian starts, one run each; 0 for LeCun
    other_starts: tuple[float, ...] = (0.0,)


PRESETS, PRESETS_WITH_DATA = _runs.presets(
    Config,
    smoke={"other_rates": (0.1,), "other_starts": ()},
    paper={"other_rates": (0.003, 0.005, 0.02, 0.05), "other_starts": (0.0, 0.03, 0.07)},
)


class Result(_runs.OfRuns):
    """Statistics of the weights, layer by layer (Table A.1 of [subnetworks])."""

    initial_mean: np.ndarray  # (seeds, layers)
    initial_sd: np.ndarray  # (seeds, layers)
    final_mean: np.ndarray  # (seeds, layers)
    final_sd: np.ndarray  # (seeds, layers)
    correlation: np.ndarray  # (seeds, layers), between start and end
    settings: list[str]  # names of the settings compared, the chosen one first
    misfit: np.ndarray  # (settings,), distance to the printed Tables A.1 and A.2 in tolerances
    accuracy: np.ndarray  # (settings,), on the test images


def compute(config: Config, context: kit.Context) -> Result:
    """Take the statistics of every run, and of one run with each other setting (Table A.1)."""
    others = [(f"rate {rate:g}", {"lr": rate}) for rate in config.other_rates]
    others += [
        (f"start {start:g}" if start else "LeCun start", {"init": start or "lecun"})
        for start in config.other_starts
    ]
    items = _runs.run_items(config, context)
    items += [_runs.run_items(config, context, **change)[0] for _, change in others]
    measured = context.map(_statistics, _runs.train_items(items, context), "statistics")
    table = kit.stack(measured)
    groups = [slice(config.seeds), *(slice(i, i + 1) for i in range(config.seeds, len(items)))]
    means = [{key: values[group].mean(0) for key, values in table.items()} for group in groups]
    return Result(
        **{key: table[key][: config.seeds] for key in _COLUMNS},
        settings=[f"rate {config.lr:g}, start {config.init}", *(name for name, _ in others)],
        misfit=np.array([_misfit(mean) for mean in means]),
        accuracy=np.array([mean["accuracy"] for mean in means]),
        **_runs.origin(config),
    )


def _statistics(item: kit.Item) -> dict[str, Any]:
    accuracy = _runs.load_run(item).trajectory.metrics()["test_accuracy"].dropna().iloc[-1]
    shares = _weights.change_shares(item)
    return {**_weights.weight_statistics(item), "shares": shares, "accuracy": float(accuracy)}


def _misfit(mean: Mapping[str, np.ndarray]) -> float:
    """Return the root mean square distance to both printed tables, in tolerances (Table A.1)."""
    count = len(_weights.SHARE_TOLERANCES)
    distances = [
        (mean["final_sd"] - _FINAL_SD) / _SD_TOLERANCE,
        (mean["correlation"] - _CORRELATION) / _CORRELATION_TOLERANCE,
        (mean["shares"] - _weights.PRINTED_SHARES)[:count] / _weights.SHARE_TOLERANCES,
    ]
    return float(np.sqrt(np.mean(np.square(np.concatenate(distances)))))


def plot(result: Result) -> kit.Figure:
    """Draw measured against printed numbers, and the misfit of each setting (Table A.1)."""
    figure, (left, middle, right) = kit.new_figure(1, 3, width="full", ratio=1.0)
    layers = np.arange(1, len(_FINAL_SD) + 1)
    for axis, values, printed, label in (
        (left, result.final_sd, _FINAL_SD, "sd of the final weights"),
        (middle, result.correlation, _CORRELATION, "correlation start–end"),
    ):
        mean, error = _runs.mean_and_error(values)
        axis.bar(layers, printed, color="0.85", label="printed")
        axis.errorbar(
            layers, mean, 2 * error, fmt="o", color=kit.COLORS[0], capsize=3, label="measured"
        )
        axis.set(xlabel="layer", ylabel=label, xticks=layers)
        axis.set_xticklabels([name.removeprefix("Hidden ").lower() for name in _runs.LAYERS])
    left.legend(loc="upper left")
    order = np.arange(len(result.settings))[::-1]
    colors = [kit.COLORS[0], *["0.6"] * (len(order) - 1)]
    right.barh(order, result.misfit, color=colors, height=0.6)
    right.set(yticks=order, xlabel="misfit / tolerance")
    right.set_yticklabels([name.replace(", ", "\n") for name in result.settings])
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure every printed number (Table A.1 of [subnetworks])."""
    rows = zip(result.settings, result.misfit, result.accuracy, strict=True)
    why = "misfits in tolerances and test accuracies of the settings tried: " + "; ".join(
        f"{name}: {misfit:.2g}, {accuracy:.4f}" for name, misfit, accuracy in rows
    )
    return {
        f"{key.replace('_', '-')}-{layer + 1}": result.by_run(getattr(result, key)[:, layer], why)
        for layer in range(len(_runs.LAYERS))
        for key in ("initial_mean", "final_mean", "final_sd", "correlation")
    }

"""Fig. 3.3 of [subnetworks]: small changes of one layer taken back, up to a threshold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.subnetworks import sweep_selection

TITLE = "Parameter-wise re-initialisation of one layer, by threshold"

_PRINTED_LIMIT = 0.4

STATEMENTS = (
    _runs.says_trained(
        "quantile95-layer1",
        "Sec. 3.2.1, Fig. 3.3",
        "most parameters in the first layer are robust to re-initialization, with approximately "
        "95% of parameters exhibiting changes of less than 0.05",
        "The change below which 95% of the first layer's weights lie is at most 0.05.",
        kit.Band.at_most(0.05, "printed"),
        changed="2026-11-17: a quantile of our own, 0.043, before",
    ),
    _runs.says_trained(
        "robust-majority",
        "Sec. 3.2.1",
        "This observation indicates that most parameters in the first layer are robust to "
        "re-initialization",
        "With the 95% of the first layer that changed least re-initialised, at most half of the "
        "accuracy is lost that the whole layer costs (half is our threshold).",
        kit.Band.at_most(0.5, "words"),
    ),
    _runs.says_trained(
        "reaches-whole-layer",
        "Sec. 3.2.1",
        "The decay eventually reaches a level comparable to whole-layer re-initialization as the "
        "maximal threshold increases.",
        "At the end of the printed scan, threshold 0.4, the accuracy of every layer is within 0.05 "
        "of that with the whole layer re-initialised (our margin for 'comparable').",
        kit.Band.at_most(0.05, "words"),
    ),
    kit.observe(
        "scan-complete",
        "Sec. 3.2.1",
        "A scan of the thresholds to 0.4 takes back every weight of every layer.",
        kit.Band(1, 1, "closed form"),
        needs=_runs.SCALE,
        changed="2026-11-17: a claim before, which the paper does not make",
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of Fig. 3.3 of [subnetworks]."""

    step: float = 0.01  # distance of the thresholds
    limit_threshold: float = 0.6  # last threshold; the paper's scan ends at 0.4


PRESETS, PRESETS_WITH_DATA = _runs.presets(Config, smoke={"step": 0.05}, paper={"step": 0.005})


class Result(_runs.OfRuns):
    """Accuracy by layer and threshold (Fig. 3.3 of [subnetworks])."""

    thresholds: np.ndarray  # (t,)
    accuracy: np.ndarray  # (seeds, layers, t)
    fraction: np.ndarray  # (seeds, layers, t), share of the layer's weights that was re-initialised
    quantile95: np.ndarray  # (seeds, layers), change below which 95% of the layer's weights lie
    largest: np.ndarray  # (seeds, layers), largest change
    baseline: np.ndarray  # (seeds,)


def compute(config: Config, context: kit.Context) -> Result:
    """Scan the threshold of every layer of every run (Fig. 3.3 of [subnetworks])."""
    count = round(config.limit_threshold / config.step)
    thresholds = np.round(np.arange(count + 1) * config.step, 6)
    items = [
        {**item, "layer": layer, "thresholds": thresholds.tolist()}
        for item in _runs.train_runs(config, context)
        for layer in range(1, len(config.widths))
    ]
    measured = context.map(_scan, items, "threshold scans")
    layers = len(config.widths) - 1

    def by_layer(key: str) -> np.ndarray:
        values = np.array([one[key] for one in measured])
        return values.reshape(config.seeds, layers, *values.shape[1:])

    names = ("accuracy", "fraction", "quantile95", "largest")
    return Result(
        thresholds=thresholds,
        **{name: by_layer(name) for name in names},
        baseline=by_layer("baseline")[:, 0],
        **_runs.origin(config),
    )


def _scan(item: kit.Item) -> dict[str, Any]:
    run = _runs.load_run(item)
    name = f"layer{item['layer']}.weight"
    change = (run.final[name] - run.initial[name]).abs().flatten().double()
    scanned = sweep_selection(
        run.model,
        run.final,
        run.initial,
        _runs.test_data(item),
        thresholds=item["thresholds"],
        params=[name],
    )
    untouched = sweep_selection(
        run.model, run.final, run.initial, _runs.test_data(item), fractions=[0.0]
    )
    return {
        "accuracy": scanned.values.numpy(),
        "fraction": scanned.fractions.numpy(),
        "quantile95": float(torch.quantile(change, 0.95)),
        "largest": float(change.max()),
        "baseline": float(untouched.values[0]),
    }


def plot(result: Result) -> kit.Figure:
    """Draw one panel for each layer with the threshold of 95% (Fig. 3.3 of [subnetworks])."""
    figure, axes = kit.new_figure(2, 2, width="full", ratio=0.6, sharex=True)
    for layer, axis in enumerate(axes.ravel()):
        _runs.draw_band(axis, result.thresholds, result.accuracy[:, layer], color=kit.COLORS[0])
        quantile = result.quantile95[:, layer].mean()
        axis.axvline(quantile, color=kit.COLORS[1], ls=":")
        late = quantile > 0.3 * result.thresholds[-1]
        at, beside = (quantile, 0.72 if layer == 0 else 0.06), 28 if layer == 0 else 4
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        place |= {"xytext": (-4 if late else beside, 0), "ha": "right" if late else "left"}
        text = f"95% of the weights\nchange less than {quantile:.3f}"
        axis.annotate(text, at, **place, color=kit.COLORS[1], fontsize=8)
        axis.axvspan(_PRINTED_LIMIT, result.thresholds[-1], color="0.93", lw=0, zorder=0)
        axis.set_title(f"({'abcd'[layer]}) {_runs.LAYERS[layer].lower()}")
        low = min(result.accuracy[:, layer].min(), 0.9)
        axis.set_ylim(low - 0.03, 1.0)
    for axis in axes[1]:
        axis.set_xlabel("threshold on the change")
    for axis in axes[:, 0]:
        axis.set_ylabel("test accuracy")
    corner = {"transform": axes[1, 1].transAxes, "ha": "right", "va": "top"}
    axes[1, 1].text(0.99, 0.97, "beyond the\nprinted scan", **corner, fontsize=8, color="0.4")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the robust majority of the first layer and the end of the scan (Fig. 3.3)."""
    printed = int(np.argmin(np.abs(result.thresholds - _PRINTED_LIMIT)))
    at_quantile = np.array(
        [
            np.interp(result.quantile95[seed, 0], result.thresholds, result.accuracy[seed, 0])
            for seed in range(len(result.baseline))
        ]
    )
    whole = np.maximum(result.baseline - result.accuracy[:, 0, -1], 1e-9)
    return {
        "quantile95-layer1": result.by_run(
            result.quantile95[:, 0],
            "of the other layers "
            + ", ".join(f"{value:.3f}" for value in result.quantile95[:, 1:].mean(0)),
        ),
        "robust-majority": result.by_run(
            (result.baseline - at_quantile) / whole, "share of the whole layer's drop"
        ),
        "reaches-whole-layer": result.by_run(
            np.abs(result.accuracy[:, :, printed] - result.accuracy[:, :, -1]).max(1),
            f"largest difference of a layer from threshold {result.thresholds[-1]:g}, which takes "
            f"back {result.fraction[:, :, -1].min():.4f} of every layer or more",
        ),
        "scan-complete": result.by_run(
            result.fraction[:, :, printed].min(1),
            "smallest share of a layer; weights of the output layer change by up to "
            f"{result.largest[:, 3].max():.2f}",
        ),
    }

"""Fig. 3.4 of [subnetworks]: small changes of the whole network taken back, up to a threshold."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.subnetworks import sweep_selection

TITLE = "Parameter-wise re-initialisation of the whole network, by threshold"

STATEMENTS = (
    _runs.says_trained(
        "guessing",
        "Sec. 3.2.1, Fig. 3.4",
        "the same thresholds as in Figure 3.3 lead to significantly larger accuracy decay for "
        "critical parameters, with the eventual accuracy dropping below 0.2, equivalent to random "
        "guessing",
        "At the end of the scan, threshold 0.4, the test accuracy is below 0.2.",
        kit.Band.at_most(0.2, "printed"),
    ),
    _runs.says_trained(
        "exceeds-layers",
        "Sec. 3.2.1",
        "once re-initialized together with the parameters that caused larger decays in the first "
        "layer, caused a larger decay than any of the individual layers",
        "At the end of the scan the accuracy is lower than with the same threshold in any one "
        "layer.",
        kit.Band.at_most(0.0, "words"),
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of Fig. 3.4 of [subnetworks]."""

    step: float = 0.01  # distance of the thresholds
    limit_threshold: float = 0.4  # last threshold


PRESETS, PRESETS_WITH_DATA = _runs.presets(Config, smoke={"step": 0.05}, paper={"step": 0.005})


class Result(_runs.OfRuns):
    """Accuracy by threshold (Fig. 3.4 of [subnetworks])."""

    thresholds: np.ndarray  # (t,)
    accuracy: np.ndarray  # (seeds, t)
    fraction: np.ndarray  # (seeds, t), share of the weights that was re-initialised
    layers: np.ndarray  # (seeds, layers), accuracy at the last threshold, one layer alone


def compute(config: Config, context: kit.Context) -> Result:
    """Scan the threshold of every run (Fig. 3.4 of [subnetworks])."""
    count = round(config.limit_threshold / config.step)
    thresholds = np.round(np.arange(count + 1) * config.step, 6)
    items = [
        {**item, "thresholds": thresholds.tolist()} for item in _runs.train_runs(config, context)
    ]
    measured = context.map(_scan, items, "threshold scans")
    return Result(thresholds=thresholds, **kit.stack(measured), **_runs.origin(config))


def _scan(item: kit.Item) -> dict[str, Any]:
    run = _runs.load_run(item)
    scan = partial(sweep_selection, run.model, run.final, run.initial, _runs.test_data(item))
    scanned = scan(thresholds=item["thresholds"])
    weights = [name for name in run.final if name.endswith("weight")]
    alone = [scan(thresholds=item["thresholds"][-1:], params=[name]) for name in weights]
    return {
        "accuracy": scanned.values.numpy(),
        "fraction": scanned.fractions.numpy(),
        "layers": np.array([float(one.values[0]) for one in alone]),
    }


def plot(result: Result) -> kit.Figure:
    """Draw accuracy and the share of re-initialised weights against the threshold (Fig. 3.4)."""
    figure, axis = kit.new_figure()
    _runs.draw_band(
        axis, result.thresholds, result.accuracy, color=kit.COLORS[0], label="test accuracy"
    )
    dashed = {"ls": "--", "color": kit.COLORS[1], "label": "share re-initialised"}
    _runs.draw_band(axis, result.thresholds, result.fraction, **dashed)
    axis.axhline(0.1, color="0.5", ls=":", lw=1)
    axis.text(result.thresholds[-1], 0.11, "chance", ha="right", fontsize=8, color="0.4")
    axis.set(xlabel="threshold on the change, whole network", ylim=(0, 1.03))
    axis.set_ylabel("test accuracy, share of the weights")
    axis.legend(loc="center right")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the end of the scan (Fig. 3.4 of [subnetworks])."""
    last = result.accuracy[:, -1]
    why = f"at threshold {result.thresholds[-1]:g}, from {last.min():.3f} to {last.max():.3f}"
    lowest = result.layers.min(1)
    return {
        "guessing": result.by_run(last, why),
        "exceeds-layers": result.by_run(
            last - lowest, f"accuracy minus the lowest of one layer, {lowest.mean():.3f}"
        ),
    }

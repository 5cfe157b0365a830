"""Fig. A.1 of [subnetworks]: layer-wise re-initialisation from a Gaussian and a LeCun start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.papers.experiments.subnetworks._layers import layer_measurements

TITLE = "Layer-wise re-initialisation from two kinds of start"

_LECUN = (
    "LeCun start: Sec. 2.2.1 says it is the primary one, and only Fig. A.1 is captioned Gaussian; "
    f"otherwise {_runs.TRAINING}"
)

STATEMENTS = (
    *(
        kit.says(
            f"{start}-first-layer",
            place,
            "The decay caused by re-initialization in the last three layers is significantly "
            "smaller than in the first layer.",
            "Re-initialising the whole first layer costs at least 0.1 more accuracy than any other "
            "layer (our threshold for 'significantly').",
            kit.Band.at_least(0.1, "words"),
            setting=setting,
            needs=_runs.SCALE,
        )
        for start, place, setting in (
            ("gaussian", "Sec. 3.2.1, Fig. A.1", _runs.TRAINING),
            ("lecun", "Sec. 3.2.1", _LECUN),
        )
    ),
    kit.says(
        "lecun-value",
        "Sec. 3.2.1",
        "even when the entire first layer is re-initialized, the lowest accuracy remains at 0.5150 "
        "(as shown in Figures 3.2 and A.1)",
        "With the first layer re-initialised the test accuracy of a run is 0.5150, from the LeCun "
        "start too.",
        kit.Band.around(0.515, "printed", atol=0.00005),
        setting=_LECUN,
        needs=_runs.SCALE,
        compare="prediction",
        changed="2026-11-17: between 0.4 and 0.65, a band of our own, before",
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of Fig. A.1 of [subnetworks]."""

    draws: int = 5  # re-randomisations of each layer (measured along with Fig. 3.1)
    lecun_seeds: int = 6  # runs from the LeCun start


PRESETS, PRESETS_WITH_DATA = _runs.presets(
    Config,
    smoke={"draws": 2, "lecun_seeds": 1, "init": 0.1},
    paper={"draws": 20},
)


class Result(_runs.OfRuns):
    """Test accuracies with one layer re-initialised (Fig. A.1 of [subnetworks])."""

    gaussian: np.ndarray  # (seeds, layers), from the configured start
    gaussian_baseline: np.ndarray  # (seeds,)
    lecun: np.ndarray  # (lecun seeds, layers), from the LeCun start
    lecun_baseline: np.ndarray  # (lecun seeds,)
    start: str  # what the first start is


def compute(config: Config, context: kit.Context) -> Result:
    """Re-initialise each layer of the runs from both starts (Fig. A.1 of [subnetworks])."""
    gaussian = layer_measurements(config, context, config.draws)
    few = replace(config, seeds=config.lecun_seeds)
    lecun = layer_measurements(few, context, config.draws, init="lecun")
    return Result(
        **_runs.origin(config),
        gaussian=gaussian["reinitialized"],
        gaussian_baseline=gaussian["baseline"],
        lecun=lecun["reinitialized"],
        lecun_baseline=lecun["baseline"],
        start=f"Gaussian start, sd {config.init}" if config.init != "lecun" else "LeCun start",
    )


def plot(result: Result) -> kit.Figure:
    """Draw one panel for each start (Fig. A.1 of [subnetworks])."""
    figure, axes = kit.new_figure(1, 2, width="full", ratio=0.7, sharey=True)
    for axis, values, baseline, color, title in (
        (axes[0], result.gaussian, result.gaussian_baseline, kit.COLORS[0], result.start),
        (axes[1], result.lecun, result.lecun_baseline, kit.COLORS[2], "LeCun start"),
    ):
        _runs.draw_layer_bars(axis, values, color=color, baseline=float(baseline.mean()))
        axis.set_title(f"{title}, one layer re-initialised")
    axes[1].set_ylabel("")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the critical layer from both starts, and the printed accuracy (Fig. A.1)."""
    measured = {}
    for name, values, baseline in (
        ("gaussian", result.gaussian, result.gaussian_baseline),
        ("lecun", result.lecun, result.lecun_baseline),
    ):
        drops = baseline[:, None] - values
        measured[f"{name}-first-layer"] = result.by_run(
            drops[:, 0] - drops[:, 1:].max(1), "its drop minus the largest other drop"
        )
    measured["lecun-value"] = result.by_run(
        result.lecun[:, 0], f"{result.gaussian[:, 0].mean():.2f} from the Gaussian start"
    )
    return measured

"""Peak of the sharpness along training against label imbalance, on white and on raw inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.application.inspection import linear_measurements
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import read_moments

TITLE = "Peak sharpness along training against label imbalance, on white and raw inputs"

_SETTING = (
    "4 layers of width 64 from Kaiming uniform starts, 10,000 epochs with the halved rate of "
    "App. C, on the same images as white and as raw inputs"
)
_QUOTE = (
    "This intuition is in disagreement with Cohen et al. [3, Caveat 2], which suggests that the "
    "model achieves lower peak-sharpness on simpler datasets"
)
STATEMENTS = kit.at_scale(
    "5,000 images and 10,000 epochs",
    kit.says(
        "simpler-white",
        "Sec. 4",
        _QUOTE,
        "On white inputs the peak at the largest share is at least twice that at the smallest, for "
        "every set.",
        kit.Band.at_least(2.0, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "simpler-raw",
        "Sec. 4",
        _QUOTE,
        "The same order on raw inputs: for every set the peak at the largest share is above that "
        "at the smallest.",
        kit.Band.at_least(1.0, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "geometry",
        "Sec. 4, on Fig. 2 (a)",
        "peak-sharpness is strongly influenced by the input-geometry",
        "For every set and share, the peak on raw inputs is at least twice that on white ones.",
        kit.Band.at_least(2.0, "words"),
        setting=_SETTING,
    ),
    kit.observe(
        "last",
        "Sec. 4",
        "On white inputs the peak is reached at the end, to 1%: there, peak and solution are one "
        "statement.",
        kit.Band.at_most(0.01, "words"),
    ),
)


class Config(_training.TrainingConfig):
    """Setting of the peaks."""

    shares: tuple[float, ...] = (0.1, 0.5, 0.9)
    records: int = 16  # epochs at which the sharpness is taken


PRESETS = _training.presets(
    Config(),
    smoke={"shares": (0.1, 0.5), "width": 16, "epochs": 400, "records": 6},
    paper={"records": 100},
)
PRESETS_WITH_DATA = _training.with_data(PRESETS)


class Result(kit.Frozen):
    """Sharpness along training, on white (0) and raw (1) inputs."""

    data: list[str]  # names of the data sets, m
    samples: np.ndarray  # (m, s), images used
    inputs: np.ndarray  # (m,), pixels of an image
    shares: np.ndarray  # (s,), of class 0
    epochs: np.ndarray  # (e,), recorded epochs
    sharpness: np.ndarray  # (m, s, 2, e)

    @property
    def peak(self) -> np.ndarray:
        """(m, s, 2), the peak of the sharpness along training."""
        return self.sharpness.max(axis=-1)


def compute(config: Config, context: kit.Context) -> Result:
    """Train on white and raw inputs for every set and share; follow sharpness to its peak."""
    items = _training.training_items(config, context)
    pairs = [{**item, "white": white} for item in items for white in (True, False)]
    runs = context.map(_train, pairs, "training")
    shape = (len(config.data), len(config.shares))
    return Result(
        data=list(config.data),
        samples=np.array([item["samples"] for item in items]).reshape(shape),
        inputs=np.array([run["inputs"] for run in runs]).reshape(*shape, 2)[:, 0, 0],
        shares=np.array(config.shares),
        epochs=runs[0]["epochs"],
        **kit.stack(runs, "sharpness", shape=(*shape, 2)),
    )


def _train(item: kit.Item) -> dict[str, Any]:
    moments, facts = read_moments(item, white=item["white"])
    times = _training.record_times(item["epochs"], item["records"])
    measure = linear_measurements(moments, ["sharpness"])
    pixels = len(facts["scales"]) + facts["dropped"]
    return {**_training.train_and_record(item, moments, measure, times), "inputs": pixels}


def plot(result: Result) -> kit.Figure:
    """Draw sharpness along training with its peak, a curve per share; rows: white, raw inputs."""
    columns = len(result.data)
    look = {"width": "full" if columns > 1 else "column", "ratio": 0.95}
    figure, axes = kit.new_figure(2, columns, squeeze=False, sharex=True, sharey="row", **look)
    for (row, column), axis in np.ndenumerate(axes):
        for place, share in enumerate(result.shares):
            few = result.samples[column, place] < result.inputs[column]
            values = result.sharpness[column, place, row]
            label = rf"$\alpha={share:g}$" + (", $n<d_0$" if few else "")
            look = {"color": kit.COLORS[place], "ls": "--" if few else "-", "label": label}
            axis.plot(result.epochs, values, **look)
            top = int(values.argmax())
            axis.plot(result.epochs[top], values[top], "o", color=kit.COLORS[place], ms=4)
        axis.set_yscale("log")
        _training.label_epochs(axis, result.epochs)
        if row == 0:
            title = _training.panel_title(result.data[column], result.samples[column])
            axis.set_title(title, fontsize=8)
            axis.set_xlabel("")
            axis.legend(fontsize=6)
    axes[0, 0].set_ylabel(r"$\lambda_{\max}$, white inputs")
    axes[1, 0].set_ylabel(r"$\lambda_{\max}$, raw inputs")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure how the peak grows with the largest share, and with the inputs' geometry."""
    white, raw = np.moveaxis(result.peak, -1, 0)
    growth = [peak[:, -1] / peak[:, 0] for peak in (white, raw)]
    ends = result.sharpness[:, :, 0, -1]
    each = ", ".join(f"{ratio:.2f}" for ratio in growth[1])
    return {
        "simpler-white": kit.over_seeds(
            [growth[0].min()], "peak at the largest share over that at the smallest, least of sets"
        ),
        "simpler-raw": kit.over_seeds(
            [growth[1].min()], f"the same on raw inputs; the sets give {each}"
        ),
        "geometry": kit.over_seeds(
            [(raw / white).min()],
            f"raw over white, least of all; the largest is {(raw / white).max():.0f}",
        ),
        "last": kit.over_seeds([(white / ends - 1).max()], "largest excess of the peak over it"),
    }

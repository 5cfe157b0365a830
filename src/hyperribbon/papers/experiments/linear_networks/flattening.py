"""Early flattening, on Eq. (11) of [linear_networks]: sharpness, trace and norm fall together."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.application.inspection import leading_eigenvalues
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import read_moments
from hyperribbon.theory import linear_networks as theory

TITLE = "Early flattening: sharpness, trace and parameter norm of new networks"

_EARLY = 100
_SETTING = (
    "2 and 4 layers of width 64 from Kaiming uniform starts, white inputs, 5,000 images, η = 0.01; "
    "the paper has no figure of it"
)
_QUOTE = "sharpness decreases since the parameter norm decreases in early-training"
STATEMENTS = kit.at_scale(
    "5,000 images and a network of width 64",
    kit.says(
        "norm",
        "Sec. 3, on Eq. (11)",
        _QUOTE,
        f"After {_EARLY} epochs the parameter norm is below its start, for every set and depth.",
        kit.Band.at_most(1.0, "printed"),
        setting=_SETTING,
    ),
    kit.says(
        "sharpness",
        "Sec. 3, on Eq. (11)",
        _QUOTE,
        "Where the parameter norm is least, sharpness is below its start, for every set and depth.",
        kit.Band.at_most(1.0, "printed"),
        setting=_SETTING,
    ),
    kit.says(
        "together",
        "Sec. 3, on Eq. (11)",
        "This relation provides insight into the progressive flattening observed in early-training",
        "While the norm falls, the trace falls too: in nine of ten records or more.",
        kit.Band.at_least(0.9, "words"),
        setting=_SETTING,
    ),
    kit.observe(
        "alignment",
        "Sec. 3",
        "The norm falls as long as outputs exceed their overlap with the labels: "
        "d‖θ‖²/dt = −2L·Tr(W(WΣ − M)ᵀ), to 1% at the start.",
        kit.Band(0.99, 1.01, "closed form"),
    ),
)


class Config(_training.TrainingConfig):
    """Setting of the early flattening."""

    depths: tuple[int, ...] = (2, 4)  # numbers of layers
    epochs: int = 3000
    records: int = 28  # epochs at which everything is taken


PRESETS = _training.presets(
    Config(), smoke={"width": 16, "epochs": 400, "records": 8}, paper={"records": 100}
)
PRESETS_WITH_DATA = _training.with_data(PRESETS)


class Result(kit.Frozen):
    """Sharpness, trace and norm along training (Eq. (11) of [linear_networks])."""

    data: list[str]  # names of the data sets, m
    samples: np.ndarray  # (m,), images used
    depths: np.ndarray  # (l,)
    epochs: np.ndarray  # (e,), recorded epochs
    sharpness: np.ndarray  # (m, l, e)
    trace: np.ndarray  # (m, l, e), Eq. (7), which is Eq. (11) for two layers
    norm: np.ndarray  # (m, l, e), sum of all squared weights
    slope: np.ndarray  # (m, l), measured d‖θ‖²/dt at the start over −2L·Tr(W(WΣ − M)ᵀ)


def compute(config: Config, context: kit.Context) -> Result:
    """Train new networks and follow how sharpness, trace and norm flatten (Eq. (11))."""
    items = _training.training_items(config, context)
    runs = context.map(
        _train, [{**item, "depth": depth} for item in items for depth in config.depths], "training"
    )
    shape = (len(config.data), len(config.depths))
    return Result(
        data=list(config.data),
        samples=np.array([item["samples"] for item in items]),
        depths=np.array(config.depths),
        epochs=runs[0]["epochs"],
        **kit.stack(runs, "sharpness", "trace", "norm", "slope", shape=shape),
    )


def _train(item: kit.Item) -> dict[str, Any]:
    moments, _ = read_moments(item)
    measure = {
        "sharpness": lambda layers: float(leading_eigenvalues(layers, moments)[0]),
        "trace": lambda layers: theory.trace(layers, moments),
        "norm": _training.squared_norm,
    }
    times = sorted({*_training.record_times(item["epochs"], item["records"]), _EARLY})
    run = _training.train_and_record(item, moments, measure, times)
    start = _training.start_weights(item, *moments.cross.shape)
    step = 1e-4  # short enough for the slope at the start
    before, after = _training.train_and_record(
        {**item, "lr": step, "epochs": 1}, moments, {"norm": _training.squared_norm}, (0, 1)
    )["norm"]
    product = theory.end_to_end(start)
    fall = 2 * item["depth"] * np.sum(product * (moments.times_inputs(product) - moments.cross))
    return {**run, "slope": (before - after) / step / fall}


def plot(result: Result) -> kit.Figure:
    """Draw how sharpness, trace and norm flatten, over their start, a row per depth (Eq. (11))."""
    rows, columns = result.norm.shape[1], len(result.data)
    look = {"width": "full" if columns > 1 else "column", "ratio": 0.9}
    figure, axes = kit.new_figure(rows, columns, squeeze=False, sharex=True, sharey="row", **look)
    for place, axis in np.ndenumerate(axes):
        at = place[::-1]
        for name, style in (("sharpness", "-"), ("trace", "--"), ("norm", ":")):
            values, color = getattr(result, name)[at], kit.COLORS[("-", "--", ":").index(style)]
            label = {"trace": "trace, Eq. (7)", "norm": r"norm $\|\theta\|^2$"}.get(name, name)
            axis.plot(result.epochs, values / values[0], style, color=color, label=label)
        least = int(result.norm[at].argmin())
        axis.axvline(result.epochs[least], color="0.7", lw=0.8, zorder=0)
        axis.axhline(1, color="0.7", lw=0.8, zorder=0)
        low = min(1, *(getattr(result, n)[at].min() / getattr(result, n)[at][0] for n in _DRAWN))
        axis.set_ylim(low - 0.05, 1.6)
        _training.label_epochs(axis, result.epochs)
        if place[0] == 0:
            axis.set_title(_training.panel_title(result.data[at[0]], result.samples[at[0]]))
        if place[0] < rows - 1:
            axis.set_xlabel("")
        if place[1] == 0:
            axis.set_ylabel(f"over the start, {result.depths[place[0]]} layers")
    axes[0, 0].legend(fontsize=7, loc="upper left")
    return figure


_DRAWN = ("sharpness", "trace", "norm")


def measure(result: Result) -> kit.Measurements:
    """Measure whether norm, sharpness and trace flatten together, and why (Eq. (11))."""
    early = int(np.searchsorted(result.epochs, _EARLY))
    least = result.norm.argmin(axis=-1)
    at_least = np.take_along_axis(result.sharpness, least[..., None], axis=-1)[..., 0]
    falls = [
        np.mean(np.diff(result.trace[place])[: max(1, end)] < 0)
        for place, end in np.ndenumerate(least)
    ]
    return {
        "norm": kit.over_seeds(
            [(result.norm[..., early] / result.norm[..., 0]).max()],
            f"largest ratio to the start, at epoch {result.epochs[early]}",
        ),
        "sharpness": kit.over_seeds(
            [(at_least / result.sharpness[..., 0]).max()],
            "largest ratio to the start; the norm is least at epochs "
            f"{result.epochs[least.min()]} to {result.epochs[least.max()]}",
        ),
        "together": kit.over_seeds(
            [min(falls)], "least share of the records up to the least norm at which the trace falls"
        ),
        "alignment": kit.over_seeds(
            [result.slope.flat[np.abs(result.slope - 1).argmax()]],
            "measured slope over the closed form, farthest from one",
        ),
    }

"""Fig. 3 of [linear_networks]: trace of the Hessian along training, estimated and by Eq. (7)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from hyperribbon.core import derive_seed, numpy_generator
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import read_moments
from hyperribbon.spectra import trace as estimate_trace
from hyperribbon.theory import linear_networks as theory

TITLE = "Sum of eigenvalues along training, sampled and in closed form"

_QUOTE = (
    "the approximation holds very well, even early in training when the loss is high so that "
    "Assumption 1 does not hold"
)
_SETTING = (
    "4 layers of width 256, η = 0.003, white inputs, 5,000 images, as in App. C: zᵀHz of 100 "
    "Gaussian z, drawn anew at every record"
)
STATEMENTS = kit.at_scale(
    "the networks of preset laptop",
    kit.says(
        "trace",
        "Sec. 2.2, on Fig. 3",
        _QUOTE,
        "Hutchinson's estimate and Eq. (7) agree within 1% on average over epochs and sets.",
        kit.Band(-0.01, 0.01, "words"),
        setting=_SETTING,
        compare="mean",
    ),
    kit.says(
        "early",
        "Sec. 2.2, on Fig. 3",
        _QUOTE,
        "They agree within 1% at the start of training too, on average over sets.",
        kit.Band(-0.01, 0.01, "words"),
        setting=f"{_SETTING}; epoch 0",
        compare="mean",
    ),
    kit.observe(
        "printed-error",
        "App. C",
        "Hutchinson's estimates scatter about Eq. (7) as their standard errors say: their scores "
        "have a root mean square of 1.",
        kit.Band(0.7, 1.3, "closed form"),
        compare="mean",
    ),
    kit.observe(
        "ours",
        "App. C",
        "So do those of hr.trace with as many products.",
        kit.Band(0.7, 1.3, "closed form"),
        compare="mean",
    ),
)


class Config(_training.TrainingConfig):
    """Setting of Fig. 3 of [linear_networks]."""

    width: int = 256
    lr: float = 0.003
    products: int = 100  # Hessian products an estimate may use
    records: int = 60  # epochs at which Eq. (7) is taken
    estimates: int = 8  # epochs among them at which the trace is estimated


PRESETS = _training.presets(
    Config(), smoke={"width": 24, "lr": 0.03, "epochs": 800}, paper={"estimates": 20}
)
PRESETS_WITH_DATA = _training.with_data(PRESETS)


class Result(kit.Frozen):
    """Trace along training (Fig. 3 of [linear_networks])."""

    data: list[str]  # names of the data sets, m
    samples: np.ndarray  # (m,), images used
    epochs: np.ndarray  # (e,), recorded epochs
    loss: np.ndarray  # (m, e)
    closed_form: np.ndarray  # (m, e), Eq. (7)
    estimated: np.ndarray  # (t,), places in `epochs` of the estimates
    printed: np.ndarray  # (m, t, 2), Hutchinson's estimate as printed, and its standard error
    ours: np.ndarray  # (m, t, 2), that of hr.trace
    products: int  # Hessian products of an estimate


def compute(config: Config, context: kit.Context) -> Result:
    """Train linear networks; take the Hessian's trace three ways (Fig. 3 of [linear_networks])."""
    items = _training.training_items(config, context)
    runs = context.map(_train, items, "training and traces")
    return Result(
        data=list(config.data),
        samples=np.array([item["samples"] for item in items]),
        epochs=runs[0]["epochs"],
        estimated=runs[0]["estimated"],
        products=config.products,
        **kit.stack(runs, "loss", "closed_form", "printed", "ours"),
    )


def _train(item: kit.Item) -> dict[str, Any]:
    moments, _ = read_moments(item)
    times = _training.record_times(item["epochs"], item["records"])
    places = _training.even_times(len(times) - 1, item["estimates"])
    limit, records = item["products"], count()

    def closed_form(layers: Sequence[np.ndarray]) -> float:
        return theory.trace(layers, moments)

    def sampled(layers: Sequence[np.ndarray]) -> list[list[float]]:
        place = next(records)
        if place not in places:
            return [[np.nan, np.nan], [np.nan, np.nan]]
        # Gaussian vectors have no preferred directions: those within the range of H are enough.
        hessian = theory.restrict_to_range(theory.hessian(layers, moments))
        seed = derive_seed(item["seed"], "vectors", place)
        z = numpy_generator(seed).standard_normal((hessian.shape[0], limit))
        values = np.sum(z * hessian.matmat(z), axis=0)
        found = estimate_trace(hessian, precision=1e-9, max_matvecs=limit, seed=seed)
        error = float(values.std(ddof=1)) / np.sqrt(limit)
        return [[float(values.mean()), error], [found.value, found.stderr]]

    measure = {"closed_form": closed_form, "sampled": sampled}
    run = _training.train_and_record(item, moments, measure, times)
    printed, ours = run.pop("sampled")[places].swapaxes(0, 1)
    return {**run, "estimated": np.array(places), "printed": printed, "ours": ours}


def plot(result: Result) -> kit.Figure:
    """Draw the traces and the loss against epochs, per data set (Fig. 3 of [linear_networks])."""
    figure, axes = _training.panels(result.data, result.samples)
    times = result.epochs[result.estimated]
    for row, axis in enumerate(axes):
        axis.plot(result.epochs, result.closed_form[row], color=kit.COLORS[0], label="Eq. (7)")
        for values, marker, color, label in (
            (result.printed[row], "o", kit.COLORS[1], "Hutchinson, 100 Gaussian vectors"),
            (result.ours[row], "x", "k", "hr.trace, as many products"),
        ):
            look = {"fmt": marker, "color": color, "ms": 4.5, "capsize": 2, "label": label}
            axis.errorbar(times, values[:, 0], 2 * values[:, 1], **look)
        _training.label_epochs(axis, result.epochs)
        second = axis.twinx()
        second.plot(result.epochs, result.loss[row], ":", color="0.45")
        second.spines["right"].set_visible(True)
        second.set_ylim(0, None)
        second.tick_params(colors="0.45")
        if row == len(axes) - 1:
            second.set_ylabel("loss (dotted)", color="0.45")
    axes[0].set_ylabel("trace of the Hessian")
    handles, _ = axes[0].get_legend_handles_labels()
    title = "± 2 standard errors"
    look = {"loc": "outside upper center", "fontsize": 8, "title_fontsize": 7}
    look["ncols"] = 3 if len(axes) > 1 else 1
    figure.legend(handles=handles, title=title, **look)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Compare Eq. (7)'s trace with estimates, by standard errors (Fig. 3 of [linear_networks])."""
    exact = result.closed_form[:, result.estimated]
    estimate, error = np.moveaxis(result.printed, -1, 0)
    relative, spread = estimate / exact - 1, error / exact
    scores = (estimate - exact) / error
    ours, own_error = np.moveaxis(result.ours, -1, 0)
    own = (ours - exact) / own_error
    freedom = result.products - 1
    each = f"{relative.size} estimates of {result.products} vectors each"
    return {
        "trace": kit.estimate(
            relative.mean(),
            np.sqrt((spread**2).sum()) / spread.size,
            f"mean of {each}; the farthest is {np.abs(scores).max():.1f} standard errors away",
            freedom=freedom,
        ),
        "early": kit.estimate(
            relative[:, 0].mean(),
            np.sqrt((spread[:, 0] ** 2).sum()) / len(spread),
            f"at losses up to {result.loss[:, 0].max():.2f}",
            freedom=freedom,
        ),
        "printed-error": kit.over_seeds(
            [np.sqrt(np.mean(scores**2))], f"root mean square of {scores.size} scores"
        ),
        "ours": kit.over_seeds(
            [np.sqrt(np.mean(own**2))],
            f"root mean square of {own.size} scores; its standard errors are "
            f"{(own_error / error).mean():.2f} times Hutchinson's on average",
        ),
    }

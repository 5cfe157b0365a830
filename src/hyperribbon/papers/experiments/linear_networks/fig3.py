"""Fig. 3 of [linear_networks]: trace of the Hessian along training, estimated and by Eq. (7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
    "4 layers of width 256, η = 0.003, white inputs, 5,000 images, 100 random vectors, as in App. C"
)
STATEMENTS = kit.at_scale(
    "the networks of preset laptop",
    kit.says(
        "trace",
        "Sec. 2.2, on Fig. 3",
        _QUOTE,
        "Sampled trace and Eq. (7) agree within 1% on average over epochs and sets.",
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
)


class Config(_training.TrainingConfig):
    """Setting of Fig. 3 of [linear_networks]."""

    width: int = 256
    lr: float = 0.003
    products: int = 100  # Hessian products an estimate may use
    records: int = 8  # epochs at which the trace is taken


PRESETS = _training.presets(
    Config(), smoke={"width": 24, "lr": 0.03, "epochs": 800}, paper={"records": 20}
)
PRESETS_WITH_DATA = _training.with_data(PRESETS)


class Result(kit.Frozen):
    """Trace along training (Fig. 3 of [linear_networks])."""

    data: list[str]  # names of the data sets, m
    epochs: np.ndarray  # (e,), recorded epochs
    loss: np.ndarray  # (m, e)
    closed_form: np.ndarray  # (m, e), Eq. (7)
    estimate: np.ndarray  # (m, e), from products with random vectors
    stderr: np.ndarray  # (m, e), standard error of the estimate
    products: int  # Hessian products an estimate used at most


def compute(config: Config, context: kit.Context) -> Result:
    """Train one network on each data set and take its trace both ways along the way (Fig. 3)."""
    runs = context.map(_train, _training.training_items(config, context), "training and traces")
    return Result(
        data=list(config.data),
        epochs=runs[0]["epochs"],
        products=config.products,
        **kit.stack(runs, "loss", "closed_form", "estimate", "stderr"),
    )


def _train(item: kit.Item) -> dict[str, Any]:
    moments, _ = read_moments(item)

    def closed_form(layers: Sequence[np.ndarray]) -> float:
        return theory.trace(layers, moments)

    def sampled(layers: Sequence[np.ndarray]) -> list[float]:
        hessian, limit = theory.hessian(layers, moments), item["products"]
        found = estimate_trace(hessian, precision=1e-9, max_matvecs=limit, seed=item["seed"])
        return [found.value, found.stderr]

    times = _training.record_times(item["epochs"], item["records"])
    measure = {"closed_form": closed_form, "sampled": sampled}
    run = _training.train_and_record(item, moments, measure, times)
    estimate, stderr = run.pop("sampled").T
    return {**run, "estimate": estimate, "stderr": stderr}


def plot(result: Result) -> kit.Figure:
    """Draw both traces against epochs, and the loss, a panel for each data set (Fig. 3)."""
    figure, axes = _training.panels(result.data)
    for row, axis in enumerate(axes):
        axis.plot(result.epochs, result.closed_form[row], color=kit.COLORS[0], label="Eq. (7)")
        look = {"fmt": "o", "color": kit.COLORS[1], "ms": 4, "capsize": 2}
        look["label"] = "sampled, ± 2 standard errors"
        axis.errorbar(result.epochs, result.estimate[row], 2 * result.stderr[row], **look)
        axis.set_xscale("symlog", linthresh=30)
        axis.set_xticks([0, *(t for t in (100, 1000, 10_000) if t <= result.epochs[-1])])
        axis.set_xlabel("epoch")
        second = axis.twinx()
        second.plot(result.epochs, result.loss[row], ":", color="0.45")
        second.spines["right"].set_visible(True)
        second.set_ylim(0, None)
        second.tick_params(colors="0.45")
        if row == len(axes) - 1:
            second.set_ylabel("loss (dotted)", color="0.45")
    axes[0].set_ylabel("trace of the Hessian")
    handles, _ = axes[0].get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside upper center", ncols=2, fontsize=8)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Compare Eq. (7) with the estimate, by its own standard error (Fig. 3 of [linear_networks]).

    The records of one training share their random vectors, so only data sets are independent.
    """
    relative = result.estimate / result.closed_form - 1
    error = result.stderr / result.closed_form / np.sqrt(len(result.data))
    scores = np.abs(result.estimate - result.closed_form) / result.stderr
    count = f"{relative.size} estimates of {result.products} products"
    return {
        "trace": kit.estimate(
            relative.mean(),
            error.mean(),
            f"mean of {count}; the farthest is {scores.max():.1f} standard errors away",
            freedom=result.products - 1,
        ),
        "early": kit.estimate(
            relative[:, 0].mean(),
            error[:, 0].mean(),
            f"at losses up to {result.loss[:, 0].max():.2f}",
            freedom=result.products - 1,
        ),
    }

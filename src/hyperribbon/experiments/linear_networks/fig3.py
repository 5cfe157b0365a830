"""Fig. 3 of [linear_networks]: trace of the Hessian along training, estimated and by Eq. (7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.core.linear_moments import Moments
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.linear_networks._data import read_moments
from hyperribbon.experiments.linear_networks._training import (
    TrainingConfig,
    panels,
    presets,
    record_times,
    train_item,
    training_items,
    with_data,
)
from hyperribbon.plots.style import COLORS
from hyperribbon.spectra import trace as estimate_trace
from hyperribbon.theory import linear_networks as theory

ID = "linear_networks/fig3"
TITLE = "Sum of eigenvalues along training, sampled and in closed form"


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure.

    Attributes:
        products: Hessian products an estimate may use.
        records: Epochs at which the trace is taken.
    """

    width: int = 256
    lr: float = 0.003
    products: int = 100
    records: int = 8


PRESETS = presets(Config(), smoke={"width": 24, "lr": 0.03, "epochs": 800}, paper={"records": 20})
PRESETS_WITH_DATA = with_data(PRESETS)


@dataclass(frozen=True)
class Result:
    """Trace along training.

    Attributes:
        data: Names of the data sets, m.
        epochs: (e,), recorded epochs.
        loss: (m, e).
        closed_form: (m, e), Eq. (7).
        estimate: (m, e), from products with random vectors.
        stderr: (m, e), standard error of the estimate.
        products: Hessian products an estimate used at most.
    """

    data: list[str]
    epochs: np.ndarray
    loss: np.ndarray
    closed_form: np.ndarray
    estimate: np.ndarray
    stderr: np.ndarray
    products: int


def compute(config: Config, context: Context) -> Result:
    """Train one network on each data set and take its trace both ways along the way."""
    runs = context.map(_train, training_items(config, context), "training and traces")
    return Result(
        data=list(config.data),
        epochs=runs[0]["epochs"],
        products=config.products,
        **{
            name: np.array([run[name] for run in runs])
            for name in ("loss", "closed_form", "estimate", "stderr")
        },
    )


def _train(item: Mapping[str, Any]) -> dict[str, Any]:
    moments, _ = read_moments(item)

    def traces(layers: Sequence[np.ndarray]) -> list[float]:
        return _traces(layers, moments, item["products"], item["seed"])

    run = train_item(
        item, moments, {"traces": traces}, record_times(item["epochs"], item["records"])
    )
    closed_form, estimate, stderr = run.measured["traces"].T
    return {
        "epochs": run.epochs,
        "loss": run.losses[run.epochs],
        "closed_form": closed_form,
        "estimate": estimate,
        "stderr": stderr,
    }


def _traces(
    layers: Sequence[np.ndarray], moments: Moments, products: int, seed: int
) -> list[float]:
    sampled = estimate_trace(
        theory.hessian(layers, moments), precision=1e-9, max_matvecs=products, seed=seed
    )
    return [theory.trace(layers, moments), sampled.value, sampled.stderr]


def plot(result: Result) -> Figure:
    """Draw both traces against epochs, and the loss, a panel for each data set."""
    figure, axes = panels(result.data)
    for row, axis in enumerate(axes):
        axis.plot(result.epochs, result.closed_form[row], color=COLORS[0], label="Eq. (7)")
        axis.errorbar(
            result.epochs, result.estimate[row], 2 * result.stderr[row],
            fmt="o", color=COLORS[1], ms=4, capsize=2, label="sampled, ± 2 standard errors",
        )  # fmt: skip
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
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8)
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge Eq. (7) by the estimate's own standard error."""
    scores = np.abs(result.estimate - result.closed_form) / result.stderr
    relative = np.abs(result.estimate / result.closed_form - 1)
    return [
        Claim.judge(
            f"{ID}/trace",
            place="Eq. (7), Fig. 3",
            statement="The closed form is the trace of the Hessian at every epoch",
            expected=Band.at_most(4.0, "closed form"),
            measured=scores.max(),
            why=(
                f"largest distance in standard errors over {scores.size} estimates of "
                f"{result.products} products; largest relative one {relative.max():.2%}"
            ),
        ),
        Claim.judge(
            f"{ID}/early",
            place="Sec. 2.2",
            statement="It holds early in training too, where the loss is high",
            expected=Band.at_most(4.0, "paper"),
            measured=scores[:, 0].max(),
            why=f"at epoch 0, with losses up to {result.loss[:, 0].max():.2f}, in standard errors",
        ),
    ]

"""Fig. 3 of [linear_networks]: trace of the Hessian along training, estimated and by Eq. (7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim, derive_seed, numpy_generator
from hyperribbon.core.linear_moments import Moments
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.linear_networks._data import (
    BUNDLED,
    FULL,
    NAMES,
    SMOKE,
    data_items,
    read_moments,
)
from hyperribbon.experiments.linear_networks._sweeps import record_times
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.spectra import trace as estimate_trace
from hyperribbon.theory import linear_networks as theory
from hyperribbon.training.linear_networks import (
    HalvingSchedule,
    draw_linear_weights,
    train_linear,
)

ID = "linear_networks/fig3"
TITLE = "Sum of eigenvalues along training, sampled and in closed form"


@dataclass(frozen=True)
class Config:
    """Setting of the figure.

    Attributes:
        data: Data sets.
        shares: Share of class 0.
        samples: Images.
        depth: Number of layers.
        width: Width of the hidden layers.
        start: How the weights start.
        lr: Learning rate at the start.
        epochs: Epochs of full-batch gradient descent.
        products: Hessian products an estimate may use.
    """

    data: tuple[str, ...]
    shares: tuple[float, ...] = (0.1,)
    samples: int = 5000
    depth: int = 4
    width: int = 256
    start: str = "kaiming_uniform"
    lr: float = 0.003
    epochs: int = 10_000
    products: int = 100


PRESETS = {
    "smoke": Config(data=SMOKE, samples=1500, width=24, lr=0.03, epochs=800),
    "laptop": Config(data=BUNDLED),
    "paper": Config(data=BUNDLED),
}
PRESETS_WITH_DATA = {
    "smoke": PRESETS["smoke"],
    "laptop": replace(PRESETS["laptop"], data=FULL),
    "paper": replace(PRESETS["paper"], data=FULL),
}


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
    items = [
        {
            **item,
            "depth": config.depth,
            "width": config.width,
            "start": config.start,
            "lr": config.lr,
            "epochs": config.epochs,
            "products": config.products,
            "seed": derive_seed(context.seed, "start"),
        }
        for item in data_items(config, context)
    ]
    runs = context.map(_train, items, "training and traces")
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
    classes, inputs = moments.cross.shape
    widths = [inputs, *[item["width"]] * (item["depth"] - 1), classes]
    weights = draw_linear_weights(widths, item["start"], generator=numpy_generator(item["seed"]))

    def traces(layers: Sequence[np.ndarray]) -> list[float]:
        return _traces(layers, moments, item["products"], item["seed"])

    run = train_linear(
        weights,
        moments,
        lr=item["lr"],
        epochs=item["epochs"],
        schedule=HalvingSchedule(),
        measure={"traces": traces},
        at=record_times(item["epochs"]),
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
    count = len(result.data)
    figure, axes = new_figure(
        1, count, width="full" if count > 1 else "column", ratio=0.95 if count > 1 else 0.75,
        squeeze=False,
    )  # fmt: skip
    for row, axis in enumerate(axes[0]):
        axis.plot(result.epochs, result.closed_form[row], color=COLORS[0], label="Eq. (7)")
        axis.errorbar(
            result.epochs, result.estimate[row], 2 * result.stderr[row],
            fmt="o", color=COLORS[1], ms=4, capsize=2, label="sampled, ± 2 standard errors",
        )  # fmt: skip
        axis.set_xscale("symlog", linthresh=30)
        axis.set(xlabel="epoch", title=NAMES[result.data[row]])
        second = axis.twinx()
        second.plot(result.epochs, result.loss[row], ":", color="0.45")
        second.spines["right"].set_visible(True)
        second.set_ylim(0, None)
        second.tick_params(colors="0.45")
        if row == count - 1:
            second.set_ylabel("loss (dotted)", color="0.45")
    axes[0, 0].set_ylabel("trace of the Hessian")
    handles, labels = axes[0, 0].get_legend_handles_labels()
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

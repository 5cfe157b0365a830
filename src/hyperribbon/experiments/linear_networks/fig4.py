"""Fig. 4 of [linear_networks]: error of Eq. (15) for the top ten eigenvalues along training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim, derive_seed, numpy_generator
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.linear_networks._data import (
    BUNDLED,
    FULL,
    NAMES,
    SMOKE,
    data_items,
    read_moments,
)
from hyperribbon.inspection import leading_eigenvalues
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory.linear_networks import shallow_eigenvalues
from hyperribbon.training.linear_networks import (
    HalvingSchedule,
    draw_linear_weights,
    train_linear,
)

ID = "linear_networks/fig4"
TITLE = "Error of Eq. (15) for the top ten eigenvalues of two layers"

_EPOCHS = (0, 30, 100, 300, 1000, 2000, 3000, 4000, 5000, 7000, 10_000)
_VERIFIED = {0: 9.9, 100: 8.1, 1000: 3.6, 3000: 1.0}
"""Percent by epoch on 5,000 MNIST digits, from one other start."""


@dataclass(frozen=True)
class Config:
    """Setting of the figure.

    Attributes:
        data: Data sets.
        shares: Share of class 0.
        samples: Images.
        width: Width of the hidden layer.
        start: How the weights start.
        lr: Learning rate at the start.
        at: Epochs at which the eigenvalues are taken; the last ends training.
        eigenvalues: How many.
    """

    data: tuple[str, ...]
    shares: tuple[float, ...] = (0.1,)
    samples: int = 5000
    width: int = 256
    start: str = "kaiming_uniform"
    lr: float = 0.001
    at: tuple[int, ...] = _EPOCHS
    eigenvalues: int = 10


PRESETS = {
    "smoke": Config(data=SMOKE, samples=1500, width=24, lr=0.01, at=(0, 100, 1000, 1500)),
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
    """Top eigenvalues along training.

    Attributes:
        data: Names of the data sets, m.
        epochs: (e,), recorded epochs.
        loss: (m, e).
        numeric: (m, e, k), eigenvalues of the Hessian by Lanczos.
        closed_form: (m, e, k), Eq. (15).
    """

    data: list[str]
    epochs: np.ndarray
    loss: np.ndarray
    numeric: np.ndarray
    closed_form: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """(m, e), mean relative error of the k eigenvalues in percent."""
        return 100 * np.abs(self.closed_form / self.numeric - 1).mean(axis=-1)


def compute(config: Config, context: Context) -> Result:
    """Train one network on each data set and take its top eigenvalues along the way."""
    items = [
        {
            **item,
            "width": config.width,
            "start": config.start,
            "lr": config.lr,
            "at": list(config.at),
            "eigenvalues": config.eigenvalues,
            "seed": derive_seed(context.seed, "start"),
        }
        for item in data_items(config, context)
    ]
    runs = context.map(_train, items, "training and eigenvalues")
    return Result(
        data=list(config.data),
        epochs=runs[0]["epochs"],
        **{
            name: np.array([run[name] for run in runs])
            for name in ("loss", "numeric", "closed_form")
        },
    )


def _train(item: Mapping[str, Any]) -> dict[str, Any]:
    moments, _ = read_moments(item)
    classes, inputs = moments.cross.shape
    k, seed = item["eigenvalues"], item["seed"]
    weights = draw_linear_weights(
        (inputs, item["width"], classes), item["start"], generator=numpy_generator(seed)
    )

    def numeric(layers: Sequence[np.ndarray]) -> np.ndarray:
        return leading_eigenvalues(layers, moments, k)

    def closed_form(layers: Sequence[np.ndarray]) -> np.ndarray:
        return shallow_eigenvalues(layers[0], layers[1], moments.sigma_x)[:k]

    run = train_linear(
        weights,
        moments,
        lr=item["lr"],
        epochs=max(item["at"]),
        schedule=HalvingSchedule(),
        measure={"numeric": numeric, "closed_form": closed_form},
        at=item["at"],
    )
    return {"epochs": run.epochs, "loss": run.losses[run.epochs], **run.measured}


def plot(result: Result) -> Figure:
    """Draw the mean error and the loss above its end against epochs."""
    figure, axis = new_figure(ratio=0.8)
    for color, name, errors in zip(COLORS, result.data, result.errors, strict=False):
        axis.plot(result.epochs, errors, "o-", color=color, label=NAMES[name])
    axis.set(
        yscale="log", xlabel="epoch", ylabel="mean error of Eq. (15), top 10 (%)",
    )  # fmt: skip
    axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the error's end and its fall."""
    errors = result.errors
    found = [
        Claim.judge(
            f"{ID}/end",
            place="Fig. 4, App. B",
            statement="At the end Eq. (15) gives the top ten eigenvalues of the Hessian",
            expected=Band.at_most(0.1, "verification"),
            measured=errors[:, -1].max(),
            why=(
                f"mean error in percent, largest over data sets, at a loss of "
                f"{result.loss[:, -1].max():.3f}: a stationary residual is enough"
            ),
        ),
        Claim.judge(
            f"{ID}/falls",
            place="App. B",
            statement="The approximation becomes increasingly precise as training progresses",
            expected=Band.at_most(0.0, "paper"),
            measured=np.diff(errors, axis=1).max(),
            why="largest change of the mean error (percent) from one record to the next",
        ),
    ]
    if "mnist5k" in result.data:
        row, epochs = result.data.index("mnist5k"), result.epochs.tolist()
        found += [
            Claim.judge(
                f"{ID}/epoch-{epoch}",
                place="Fig. 4 (a)",
                statement=f"Mean error in percent at epoch {epoch}",
                expected=Band.around(value, "verification", rtol=0.25),
                measured=errors[row, epochs.index(epoch)],
                why="within a quarter of what another random start gives",
            )
            for epoch, value in _VERIFIED.items()
            if epoch in epochs
        ]
    return found

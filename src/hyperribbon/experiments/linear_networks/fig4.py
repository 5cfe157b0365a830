"""Fig. 4 of [linear_networks]: error of Eq. (15) for the top ten eigenvalues along training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.linear_networks._data import NAMES, read_moments
from hyperribbon.experiments.linear_networks._training import (
    TrainingConfig,
    presets,
    train_item,
    training_items,
    with_data,
)
from hyperribbon.inspection import leading_eigenvalues
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory.linear_networks import shallow_eigenvalues

ID = "linear_networks/fig4"
TITLE = "Error of Eq. (15) for the top ten eigenvalues of two layers"

_EPOCHS = (0, 30, 100, 300, 1000, 2000, 3000, 4000, 5000, 7000, 10_000)
_VERIFIED = {0: 9.9, 100: 8.1, 1000: 3.6, 3000: 1.0}
"""Percent by epoch on 5,000 MNIST digits, from one other start."""


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure.

    Attributes:
        at: Epochs at which the eigenvalues are taken.
        eigenvalues: How many.
    """

    depth: int = 2
    width: int = 256
    lr: float = 0.001
    at: tuple[int, ...] = _EPOCHS
    eigenvalues: int = 10


PRESETS = presets(
    Config(),
    smoke={"width": 24, "lr": 0.01, "epochs": 1500, "at": (0, 100, 1000, 1500)},
    paper={},
)
PRESETS_WITH_DATA = with_data(PRESETS)


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
    runs = context.map(_train, training_items(config, context), "training and eigenvalues")
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
    k = item["eigenvalues"]

    def numeric(layers: Sequence[np.ndarray]) -> np.ndarray:
        return leading_eigenvalues(layers, moments, k)

    def closed_form(layers: Sequence[np.ndarray]) -> np.ndarray:
        return shallow_eigenvalues(layers[0], layers[1], moments.sigma_x)[:k]

    measure = {"numeric": numeric, "closed_form": closed_form}
    run = train_item(item, moments, measure, item["at"])
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

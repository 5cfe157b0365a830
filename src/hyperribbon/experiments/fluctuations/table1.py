"""Stationary properties below and above the interpolation threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import regression, simulation_item
from hyperribbon.plots.style import new_figure
from hyperribbon.theory import fluctuations as theory
from hyperribbon.training import simulate_one_layer

ID = "fluctuations/table1"
TITLE = "Stationary properties of linear regression"

REGIMES = ("under-parameterised", "over-parameterised")


@dataclass(frozen=True)
class Config:
    """Samples, both input dimensions, label noise; length of the simulation."""

    samples: int = 200
    inputs: tuple[int, int] = (40, 400)
    label_variances: tuple[float, ...] = (0.0, 0.01, 0.04)
    lr: float = 0.5
    batch_size: int = 10
    steps: int = 30_000
    chains: int = 64


PRESETS = {
    "smoke": Config(samples=40, inputs=(8, 80), steps=2000, chains=32),
    "laptop": Config(),
    "paper": Config(steps=300_000),
}


@dataclass(frozen=True)
class Result:
    """Rows are (regime, label noise): distance from the teacher, loss, variance over time."""

    samples: int
    inputs: list
    label_variances: np.ndarray
    distance: np.ndarray
    loss: np.ndarray
    variance: np.ndarray
    variance_error: np.ndarray
    shuffled: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Run SGD from zero weights until it is stationary in every regime."""
    items = [
        simulation_item(config, context.seed, inputs=N, label_variance=variance, sampling=sampling)
        for sampling in ("replacement", "shuffle")
        for N in config.inputs
        for variance in config.label_variances
    ]
    rows = np.array([list(part) for part in context.map(_stationary, items, label="chains of SGD")])
    table = rows.T.reshape(4, 2, len(config.inputs), len(config.label_variances))
    return Result(
        config.samples,
        list(config.inputs),
        np.array(config.label_variances),
        *table[:, 0],
        shuffled=table[2, 1],
    )


def _stationary(item: Mapping[str, Any]) -> list[float]:
    X, Y, u = regression(item["inputs"], item["samples"], item["label_variance"], item["seed"])
    stats = simulate_one_layer(
        X,
        Y,
        lr=item["lr"],
        batch_size=item["batch_size"],
        steps=item["steps"],
        chains=item["chains"],
        sampling=item["sampling"],
        start=np.zeros(item["inputs"]),
        seed=item["seed"],
    )
    w = theory.minimum_norm_solution(X, Y)
    mean = w + stats.mean
    return [
        float(np.sqrt(np.mean((mean - u) ** 2))),
        theory.regression_loss(X, Y, mean),
        stats.variance,
        stats.variance_error,
    ]


def plot(result: Result) -> Figure:
    """Draw the table."""
    figure, axis = new_figure(width="full", ratio=0.3)
    axis.axis("off")
    cells = [
        [
            REGIMES[row],
            f"{noise:g}",
            f"{result.distance[row, column]:.2g}",
            f"{result.loss[row, column]:.2g}",
            f"{result.variance[row, column]:.2g}",
            f"{result.shuffled[row, column]:.2g}",
        ]
        for row in range(2)
        for column, noise in enumerate(result.label_variances)
    ]
    table = axis.table(
        cells,
        colLabels=[
            "regime",
            r"$\sigma_\epsilon^2$",
            "distance from teacher",
            "final loss",
            "variance over time",
            "… with epoch shuffling",
        ],
        colWidths=[0.24, 0.08, 0.18, 0.14, 0.18, 0.18],
        loc="center",
        cellLoc="center",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.scale(1, 1.3)
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the cells of the table."""
    noisy = -1
    proportional = result.variance[0, 2] / result.variance[0, 1]
    error = proportional * np.sqrt(
        np.sum((result.variance_error[0, 1:] / result.variance[0, 1:]) ** 2)
    )
    unexplained = 1 - result.inputs[0] / result.samples
    expected_loss = result.label_variances[noisy] * unexplained / 2
    return [
        Claim.judge(
            f"{ID}/under-teacher",
            place="Table I",
            statement="Under-parameterised, no label noise: the student finds the teacher.",
            expected=Band(0.0, 1e-4, "paper"),
            measured=result.distance[0, 0],
            why="Root mean square distance of a weight from the teacher's.",
        ),
        Claim.judge(
            f"{ID}/under-loss",
            place="Table I",
            statement="Under-parameterised: the final loss is L* > 0 with label noise, "
            "σε²(1−N/P)/2.",
            expected=Band(0.8, 1.2, "closed form"),
            measured=result.loss[0, noisy] / expected_loss,
            why="Final loss over its mean over data.",
        ),
        Claim.judge(
            f"{ID}/under-fluctuations",
            place="Table I",
            statement="Under-parameterised: fluctuations are proportional to σε².",
            expected=Band.around(
                result.label_variances[2] / result.label_variances[1], "paper", rtol=0.05
            ),
            measured=proportional,
            uncertainty=error,
            why="Ratio of variances at the two label noises.",
        ),
        Claim.judge(
            f"{ID}/over-teacher",
            place="Table I",
            statement="Over-parameterised: the student differs from the teacher.",
            expected=Band.at_least(0.3, "paper"),
            measured=result.distance[1, 0],
            why="Root mean square distance, without label noise; teacher weights are of size 1.",
        ),
        Claim.judge(
            f"{ID}/over-loss",
            place="Table I",
            statement="Over-parameterised: the final loss vanishes, also with label noise.",
            expected=Band(0.0, 1e-6, "paper"),
            measured=result.loss[1, noisy],
            why="Final loss at the largest label noise.",
        ),
        Claim.judge(
            f"{ID}/over-fluctuations",
            place="Table I",
            statement="Over-parameterised: the fluctuations vanish.",
            expected=Band(0.0, 1e-6, "paper"),
            measured=result.variance[1, noisy] / result.variance[0, noisy],
            why="Variance over that of the under-parameterised network.",
        ),
        Claim.judge(
            f"{ID}/sampling-independent",
            place="Table I",
            statement="These properties do not depend on the sampling method.",
            expected=Band(0.8, 1.25, "paper"),
            measured=result.shuffled[0, noisy] / result.variance[0, noisy],
            uncertainty=result.variance_error[0, noisy] / result.variance[0, noisy],
            why="Variance with epoch shuffling, which suppresses it, over that with replacement.",
        ),
    ]

"""Variance of the weights over time against the input dimension, through the threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import (
    regression,
    seeds,
    simulate_fluctuations,
    simulation_item,
    unit_weights,
)
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory import fluctuations as theory

ID = "fluctuations/fig5a"
TITLE = "Weight variance through the interpolation threshold"


@dataclass(frozen=True)
class Config:
    """Samples, label noise, learning rate, batch; simulated and predicted dimensions."""

    samples: int = 200
    label_variance: float = 0.25
    lr: float = 0.1
    batch_size: int = 10
    simulated: tuple[int, ...] = (20, 40, 60, 80, 100, 120, 140, 160, 230, 300, 400)
    predicted: tuple[int, ...] = (
        *(10, 20, 40, 60, 80, 100, 120, 140, 160, 180, 190, 195, 200),
        *(205, 210, 230, 260, 300, 400),
    )
    steps: int = 100_000
    chains: int = 32
    anneal: float = 10.0
    realisations: int = 20


PRESETS = {
    "smoke": Config(
        samples=40,
        simulated=(4, 10, 20, 60),
        predicted=(4, 10, 20, 30, 38, 40, 42, 60),
        steps=6000,
        chains=16,
        realisations=5,
    ),
    "laptop": Config(),
    "paper": Config(steps=400_000, simulated=(*range(20, 181, 20), *range(220, 401, 20))),
}


@dataclass(frozen=True)
class Result:
    """Simulated and predicted variances, spread of the solution's weights, losses."""

    samples: int
    simulated: np.ndarray
    variance: np.ndarray
    variance_error: np.ndarray
    same_data: np.ndarray
    predicted: np.ndarray
    theory: np.ndarray
    spatial: np.ndarray
    train_loss: np.ndarray
    test_loss: np.ndarray
    limit: float


def compute(config: Config, context: Context) -> Result:
    """Simulate on one realisation of the data; average the closed forms over several."""
    items = [
        simulation_item(config, context.seed, inputs=N)
        if config.samples > N
        else simulation_item(config, context.seed, inputs=N, steps=1000, burn_in=0, anneal=1.0)
        for N in config.simulated
    ]
    parts = context.map(simulate_fluctuations, items, label="chains of SGD")
    rows = [
        np.mean(
            [_closed_forms(config, N, seed) for seed in seeds(context.seed, config.realisations)], 0
        )
        for N in config.predicted
    ]
    return Result(
        config.samples,
        np.array(config.simulated),
        np.array([p["variance"] for p in parts]),
        np.array([p["variance_error"] for p in parts]),
        np.array([np.trace(p["theory"]) / len(p["theory"]) for p in parts]),
        np.array(config.predicted),
        *np.array(rows).T,
        limit=unit_weights(config.lr, config.batch_size, config.label_variance),
    )


def _closed_forms(config: Config, N: int, seed: int) -> np.ndarray:
    """Return variance over time, variance across weights, train loss and test loss."""
    X, Y, u = regression(N, config.samples, config.label_variance, seed)
    H, C = theory.hessian(X), theory.noise_covariance(X, Y, config.batch_size)
    w = theory.minimum_norm_solution(X, Y)
    test = (np.sum((w - u) ** 2) / N + config.label_variance) / 2
    variance = np.trace(theory.stationary_covariance(H, C, config.lr)) / N
    return np.array([variance, np.var(w), theory.regression_loss(X, Y, w), test])


def plot(result: Result) -> Figure:
    """Draw the variances and losses against N."""
    figure, axis = new_figure(width="column", ratio=0.95)
    under = result.simulated < result.samples
    axis.errorbar(
        result.simulated[under],
        result.variance[under],
        2 * result.variance_error[under],
        fmt="o",
        color=COLORS[0],
        label="variance over time, SGD",
    )
    positive = result.theory > 0
    axis.plot(
        result.predicted[positive],
        result.theory[positive],
        "-.",
        color=COLORS[0],
        label="Eq. (2.30)",
    )
    axis.axhline(result.limit, ls=":", color=COLORS[0], label="Eq. (2.34)")
    axis.plot(
        result.predicted, result.spatial, "--", color=COLORS[1], label="variance across weights"
    )
    axis.plot(result.predicted, result.test_loss, color=COLORS[2], label="test loss")
    fitted = result.train_loss > 0
    axis.plot(
        result.predicted[fitted], result.train_loss[fitted], color=COLORS[3], label="train loss"
    )
    axis.axvline(result.samples, color="0.7", lw=0.8)
    axis.set_yscale("log")
    axis.set_ylim(result.limit * 1e-2, None)
    axis.set_xlabel("input dimension N")
    axis.legend(fontsize=7, loc="upper right")
    axis.set_title("N > P: variance over time is exactly zero", fontsize=8)
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the variance on both sides of the threshold and the peaks at it."""
    under = result.simulated < result.samples
    ratio = result.variance[under] / result.same_data[under]
    error = result.variance_error[under] / result.same_data[under]
    peak = result.predicted[int(np.argmax(result.test_loss))] / result.samples
    spatial_peak = result.predicted[int(np.argmax(result.spatial))] / result.samples
    smallest = result.predicted[0]
    return [
        Claim.judge(
            f"{ID}/variance",
            place="Fig. 5(a), Eq. (2.30)",
            statement="The variance over time is that of Eq. (2.30) on the same data.",
            expected=Band(0.95, 1.05, "paper"),
            measured=ratio.mean(),
            uncertainty=np.sqrt(np.sum(error**2)) / len(error),
            why="Mean over dimensions N < P of simulated over predicted variance.",
        ),
        Claim.judge(
            f"{ID}/interpolating",
            place="Eq. (2.16)",
            statement="Fluctuations vanish when N > P.",
            expected=Band(0.0, 1e-12, "paper"),
            measured=result.variance[~under].max(),
            why="Largest simulated variance beyond the threshold, begun at the solution.",
        ),
        Claim.judge(
            f"{ID}/limit",
            place="Eq. (2.34)",
            statement="For N/P → 0 the variance approaches λσε²/(2S), as 1 − N/P.",
            expected=Band(0.95, 1.05, "closed form"),
            measured=result.theory[0] / result.limit / (1 - smallest / result.samples),
            why=f"At N = {smallest}, over (1 − N/P).",
        ),
        Claim.judge(
            f"{ID}/double-descent",
            place="Fig. 5(a)",
            statement="Test loss and the variance across weights peak at N = P.",
            expected=Band(0.95, 1.05, "paper"),
            measured=max((peak, spatial_peak), key=lambda value: abs(value - 1)),
            why="Position of the peak in N/P, the one further from one.",
        ),
    ]

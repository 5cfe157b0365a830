"""Continuum against discrete time: the weight variance over learning rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import ArgumentError, Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import (
    regression,
    seeds,
    simulate_fluctuations,
    simulation_item,
)
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory import fluctuations as theory

ID = "fluctuations/discrete"
TITLE = "Continuum and discrete time"


@dataclass(frozen=True)
class Config:
    """A small task with few samples, learning rates up to the edge of stability."""

    inputs: int = 10
    samples: int = 20
    label_variance: float = 0.25
    batch_size: int = 10
    lrs: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
    steps: int = 40_000
    chains: int = 128


PRESETS = {
    "smoke": Config(steps=1500, lrs=(0.5, 2.0, 5.0), chains=64),
    "laptop": Config(),
    "paper": Config(steps=400_000),
}


@dataclass(frozen=True)
class Result:
    """Mean variance of a weight (rates,): simulated, exact, additive discrete, continuum."""

    lrs: np.ndarray
    measured: np.ndarray
    error: np.ndarray
    exact: np.ndarray
    additive: np.ndarray
    continuum: np.ndarray
    eigenvalue_error: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Simulate every learning rate on a task that is stable at the largest of them."""
    seed = _stable_realisation(config, context.seed)
    items = [simulation_item(config, seed, lr=lr, every=5) for lr in config.lrs]
    parts = context.map(simulate_fluctuations, items, label="chains of SGD")
    additive = [
        theory.stationary_covariance(p["hessian"], p["theory_noise"], lr, time="discrete")
        for p, lr in zip(parts, config.lrs, strict=True)
    ]

    def variance(matrices: list) -> np.ndarray:
        return np.array([np.trace(matrix) for matrix in matrices]) / config.inputs

    spectra = [[np.linalg.eigvalsh(p[key]) for key in ("covariance", "theory")] for p in parts]
    return Result(
        np.array(config.lrs),
        np.array([p["variance"] for p in parts]),
        np.array([p["variance_error"] for p in parts]),
        variance([p["discrete"] for p in parts]),
        variance(additive),
        variance([p["theory"] for p in parts]),
        np.array([np.max(measured / predicted - 1) for measured, predicted in spectra]),
    )


def _stable_realisation(config: Config, seed: int) -> int:
    """Return the first realisation with a finite covariance, its sharpest mode near the edge."""
    fastest = max(config.lrs)
    for candidate in seeds(seed, 50):
        X, Y, _ = regression(config.inputs, config.samples, config.label_variance, candidate)
        edge = fastest * np.linalg.eigvalsh(theory.hessian(X))[-1]
        if not 1.15 < edge < 1.4:
            continue
        try:
            theory.discrete_covariance(X, Y, fastest, config.batch_size)
        except ArgumentError:
            continue
        return candidate
    raise RuntimeError("no realisation is stable at the largest learning rate")


def plot(result: Result) -> Figure:
    """Draw simulated and predicted variance over λ, divided by λ."""
    figure, axis = new_figure(width="column", ratio=0.8)
    scale = result.lrs
    axis.errorbar(
        result.lrs,
        result.measured / scale,
        2 * result.error / scale,
        fmt="o",
        color="k",
        label="SGD",
    )
    axis.plot(result.lrs, result.exact / scale, "-", color=COLORS[0], label="discrete, exact")
    axis.plot(
        result.lrs, result.additive / scale, "--", color=COLORS[2], label="discrete, additive noise"
    )
    axis.plot(
        result.lrs, result.continuum / scale, ":", color=COLORS[1], label="continuum, Eq. (2.30)"
    )
    axis.set_xlabel(r"learning rate $\lambda$")
    axis.set_ylabel(r"variance / $\lambda$")
    axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge both forms at the largest learning rate, and at the smallest."""
    exact = result.measured / result.exact
    return [
        Claim.judge(
            f"{ID}/exact",
            place="Eq. (2.11)",
            statement=f"The discrete-time form is within 2% of SGD at λ = {result.lrs[-1]:g}.",
            expected=Band(0.98, 1.02, "verification"),
            measured=exact[-1],
            uncertainty=result.error[-1] / result.exact[-1],
            why="Simulated over exact discrete-time variance.",
        ),
        Claim.judge(
            f"{ID}/continuum-large",
            place="Sec. II B 1",
            statement="SGD and its continuum agree well even for rather large learning rates "
            f"(here λ = {result.lrs[-1]:g}, within 20%).",
            expected=Band(-0.2, 0.2, "paper"),
            measured=result.measured[-1] / result.continuum[-1] - 1,
            uncertainty=result.error[-1] / result.continuum[-1],
            why="Relative excess of the variance over Eq. (2.30); in the worst mode "
            f"{result.eigenvalue_error[-1]:.0%}.",
        ),
        Claim.judge(
            f"{ID}/continuum-small",
            place="Eq. (2.30)",
            statement=f"At λ = {result.lrs[0]:g} the continuum form is within 5%.",
            expected=Band(-0.05, 0.05, "paper"),
            measured=result.measured[0] / result.continuum[0] - 1,
            uncertainty=result.error[0] / result.continuum[0],
            why="Relative excess of the variance over Eq. (2.30).",
        ),
    ]

"""Continuum against discrete time: the weight variance over learning rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import ArgumentError, Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import (
    median_error,
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
    """A small task with few samples, learning rates up to the edge of stability; data sets."""

    inputs: int = 10
    samples: int = 20
    label_variance: float = 0.25
    batch_size: int = 10
    lrs: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
    steps: int = 20_000
    chains: int = 128
    realisations: int = 11


PRESETS = {
    "smoke": Config(steps=1500, lrs=(0.5, 2.0, 5.0), chains=64, realisations=3),
    "laptop": Config(),
    "paper": Config(steps=400_000),
}


@dataclass(frozen=True)
class Result:
    """Mean variance of a weight (data sets, rates): simulated, exact, additive, continuum."""

    lrs: np.ndarray
    measured: np.ndarray
    error: np.ndarray
    exact: np.ndarray
    additive: np.ndarray
    continuum: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Simulate every learning rate on data sets that are stable at the largest of them."""
    items = [
        simulation_item(config, seed, lr=lr, every=5)
        for seed in _stable_realisations(config, context.seed)
        for lr in config.lrs
    ]
    parts = context.map(simulate_fluctuations, items, label="chains of SGD")
    additive = [
        theory.stationary_covariance(p["hessian"], p["theory_noise"], item["lr"], time="discrete")
        for p, item in zip(parts, items, strict=True)
    ]
    shape = (config.realisations, len(config.lrs))

    def variance(matrices: list) -> np.ndarray:
        return np.array([np.trace(matrix) for matrix in matrices]).reshape(shape) / config.inputs

    return Result(
        np.array(config.lrs),
        np.array([p["variance"] for p in parts]).reshape(shape),
        np.array([p["variance_error"] for p in parts]).reshape(shape),
        variance([p["discrete"] for p in parts]),
        variance(additive),
        variance([p["theory"] for p in parts]),
    )


def _stable_realisations(config: Config, seed: int) -> list[int]:
    """Return the first data sets whose covariance is finite at the largest learning rate."""
    stable: list[int] = []
    for candidate in seeds(seed, 20 * config.realisations):
        X, Y, _ = regression(config.inputs, config.samples, config.label_variance, candidate)
        try:
            theory.discrete_covariance(X, Y, max(config.lrs), config.batch_size)
        except ArgumentError:
            continue
        stable.append(candidate)
        if len(stable) == config.realisations:
            return stable
    raise RuntimeError("too few data sets are stable at the largest learning rate")


def plot(result: Result) -> Figure:
    """Draw simulated and predicted variance over λ, relative to the continuum, by data set."""
    figure, axis = new_figure(width="column", ratio=0.8)
    for row, continuum in enumerate(result.continuum):
        for values, style, color, label in (
            (result.measured, "o", "k", "SGD"),
            (result.exact, "-", COLORS[0], "discrete, exact"),
            (result.additive, "--", COLORS[2], "discrete, additive noise"),
        ):
            ratio = values[row] / continuum
            axis.plot(
                result.lrs, ratio, style, ms=3, lw=1, color=color, label=None if row else label
            )
    axis.axhline(1, ls=":", color=COLORS[1], label="continuum, Eq. (2.30)")
    axis.set_yscale("log")
    axis.set_xlabel(r"learning rate $\lambda$")
    axis.set_ylabel("variance / continuum form")
    axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge both forms at the largest learning rate, and at the smallest."""
    exact, excess = result.measured / result.exact, result.measured / result.continuum - 1
    return [
        Claim.judge(
            f"{ID}/exact",
            place="Eq. (2.11)",
            statement=f"The discrete-time form is within 2% of SGD at λ = {result.lrs[-1]:g}.",
            expected=Band(0.98, 1.02, "verification"),
            measured=float(np.median(exact[:, -1])),
            uncertainty=median_error(exact[:, -1]),
            why="Simulated over exact variance, median over data sets, which range "
            f"{exact[:, -1].min():.3f}–{exact[:, -1].max():.3f}: where the noise feeds on itself "
            "so much that fourth moments diverge, a simulation falls short of its mean.",
        ),
        Claim.judge(
            f"{ID}/continuum-large",
            place="Sec. II B 1",
            statement="SGD and its continuum agree well even for rather large learning rates "
            f"(here λ = {result.lrs[-1]:g}, within 20%).",
            expected=Band(-0.2, 0.2, "paper"),
            measured=float(np.median(excess[:, -1])),
            uncertainty=median_error(excess[:, -1]),
            why="Relative excess of the variance over Eq. (2.30), median over data sets; more than "
            f"100% in {np.mean(excess[:, -1] > 1):.0%} of them.",
        ),
        Claim.judge(
            f"{ID}/continuum-small",
            place="Eq. (2.30)",
            statement=f"At λ = {result.lrs[0]:g} the continuum form is within 5%.",
            expected=Band(-0.05, 0.05, "paper"),
            measured=float(np.median(excess[:, 0])),
            uncertainty=median_error(excess[:, 0]),
            why="Relative excess of the variance over Eq. (2.30), median over data sets.",
        ),
    ]

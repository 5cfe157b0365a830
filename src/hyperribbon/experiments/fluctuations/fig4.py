"""Relaxation of the loss and of single weight modes near the interpolation threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import (
    median_error,
    regression,
    seeds,
    simulation_item,
)
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory import fluctuations as theory
from hyperribbon.training import trace_one_layer

ID = "fluctuations/fig4"
TITLE = "Relaxation of weight modes"


@dataclass(frozen=True)
class Config:
    """Task and run of the figure; `chains` runs give the mean, more data sets the loss's time."""

    inputs: int = 50
    samples: int = 52
    label_variance: float = 0.01
    lr: float = 0.1
    batch_size: int = 10
    steps: int = 300_000
    points: int = 120
    chains: int = 48
    modes: tuple[int, ...] = (0, 1, 5, 25)
    realisations: int = 400


PRESETS = {
    "smoke": Config(
        inputs=20, samples=24, steps=8000, points=40, chains=16, modes=(0, 1, 5), realisations=40
    ),
    "laptop": Config(),
    "paper": Config(steps=3_000_000),
}


@dataclass(frozen=True)
class Result:
    """Times t = λτ (T,), modes (T, k) of one run and their mean, theory, losses.

    `settling` (realisations,) is the time at which the loss falls below 2L*, over 1/ω₀.
    """

    times: np.ndarray
    modes: list
    rates: np.ndarray
    solution: np.ndarray
    single: np.ndarray
    mean: np.ndarray
    mean_error: np.ndarray
    theory: np.ndarray
    loss: np.ndarray
    final_loss: float
    slowest: float
    settling: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Trace chains of SGD from zero weights; time the mean loss of many data sets."""
    item = simulation_item(config, context.seed, points=config.points, modes=list(config.modes))
    traced = context.map(_relax, [item], label="chains of SGD")[0]
    settling = [_settling_time(config, seed) for seed in seeds(context.seed, config.realisations)]
    return Result(**traced, settling=np.array(settling))


def _settling_time(config: Config, seed: int) -> float:
    """Return ω₀t at which L(⟨z(t)⟩) of Eqs. (2.26), (2.27) falls below 2L*, from zero weights."""
    X, Y, _ = regression(config.inputs, config.samples, config.label_variance, seed)
    rates, V = np.linalg.eigh(theory.hessian(X))
    solution, final = V.T @ theory.minimum_norm_solution(X, Y), theory.regression_loss(X, Y)
    times = np.geomspace(1e-5, 30, 600)
    left = theory.mode_mean(times / rates[0], rates, 0 * rates, solution) - solution
    return float(times[np.argmax(0.5 * left**2 @ rates < final)])


def _relax(item: Mapping[str, Any]) -> dict:
    X, Y, _ = regression(item["inputs"], item["samples"], item["label_variance"], item["seed"])
    record = np.unique(np.geomspace(1, item["steps"], item["points"]).astype(int))
    start = np.zeros(item["inputs"])
    path = trace_one_layer(
        X,
        Y,
        lr=item["lr"],
        batch_size=item["batch_size"],
        record=record,
        chains=item["chains"],
        start=start,
        seed=item["seed"],
    )
    rates, V = np.linalg.eigh(theory.hessian(X))
    solution = V.T @ theory.minimum_norm_solution(X, Y)
    chosen = item["modes"]
    modes = (path @ V)[:, :, chosen]
    times = item["lr"] * record
    return {
        "times": times,
        "modes": chosen,
        "rates": rates[chosen],
        "solution": solution[chosen],
        "single": modes[:, 0],
        "mean": modes.mean(axis=1),
        "mean_error": modes.std(axis=1, ddof=1) / np.sqrt(modes.shape[1]),
        "theory": theory.mode_mean(times, rates[chosen], np.zeros(len(chosen)), solution[chosen]),
        "loss": np.array([theory.regression_loss(X, Y, w) for w in path[:, 0]]),
        "final_loss": theory.regression_loss(X, Y),
        "slowest": float(1 / rates[0]),
    }


def plot(result: Result) -> Figure:
    """Draw the modes relative to their solution, and the loss."""
    figure, (left, right) = new_figure(columns=2, width="full", ratio=0.75)
    for column, (mode, color) in enumerate(zip(result.modes, COLORS, strict=False)):
        scale = result.solution[column]
        left.semilogx(
            result.times, result.single[:, column] / scale, color=color, label=f"k = {mode}"
        )
        left.semilogx(result.times, result.theory[:, column] / scale, "--", color=color, lw=1)
    left.set_xlabel(r"time $t = \lambda\tau$")
    left.set_ylabel(r"$z_k(t)/z_k^*$")
    left.set_title("solid: one run of SGD; dashed: Eq. (2.27)")
    left.legend()
    right.loglog(result.times, result.loss, color=COLORS[0], label="loss, one run")
    right.axhline(result.final_loss, color="0.6", label="$L^*$")
    remaining = abs(1 - result.theory[:, 0] / result.solution[0])
    right.loglog(
        result.times, remaining, "--", color=COLORS[1], label="slowest mode, $|1-z_0/z_0^*|$"
    )
    right.axvline(min(result.slowest, result.times[-1]), color=COLORS[1], lw=0.8, ls=":")
    right.set_xlabel(r"time $t = \lambda\tau$")
    right.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the exponential relaxation and the early settling of the loss."""
    deviation = (result.mean - result.theory) / abs(result.solution)
    early = np.mean(result.settling < 0.1)
    return [
        Claim.judge(
            f"{ID}/modes",
            place="Fig. 4, Eq. (2.27)",
            statement="The modes relax exponentially with the Hessian's rates.",
            expected=Band.at_most(0.05, "paper"),
            measured=float(np.sqrt(np.mean(deviation[:, 1:] ** 2))),
            uncertainty=float(
                np.sqrt(np.mean((result.mean_error / result.solution)[:, 1:] ** 2))
                / np.sqrt(result.mean.size)
            ),
            why="Root mean square deviation of the mean over chains, relative to the solution.",
        ),
        Claim.judge(
            f"{ID}/loss-settles-first",
            place="Fig. 4, Sec. II B 3",
            statement="The loss reaches its floor (2L*) long before the slowest mode (0.1/ω₀).",
            expected=Band.at_most(0.1, "paper"),
            measured=float(np.median(result.settling)),
            uncertainty=median_error(result.settling),
            why=f"ω₀t, median over data sets; {early:.0%} of them settle before 0.1. With P − N = "
            "2 the slowest mode's share of the loss, ½ω₀z₀², is as large as L* itself.",
        ),
    ]

"""How minibatches are drawn decides how far weights wander: three schemes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import simulate_fluctuations, simulation_item
from hyperribbon.plots.style import COLORS, new_figure

ID = "fluctuations/sampling"
TITLE = "Three ways to draw minibatches"

SCHEMES = ("replacement", "without_replacement", "shuffle")


@dataclass(frozen=True)
class Config:
    """Input dimension, sample numbers, batch and learning rate; length of the simulation."""

    inputs: int = 100
    samples: tuple[int, ...] = (200, 500, 1000, 2000)
    label_variance: float = 0.01
    lr: float = 0.1
    batch_size: int = 10
    steps: int = 30_000
    chains: int = 64


PRESETS = {
    "smoke": Config(inputs=10, samples=(40, 200), steps=2000, chains=32),
    "laptop": Config(),
    "paper": Config(steps=400_000),
}


@dataclass(frozen=True)
class Result:
    """Variance over that with replacement, theory Eq. (2.30): (sample numbers, schemes)."""

    samples: np.ndarray
    ratio: np.ndarray
    error: np.ndarray
    finite_factor: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Simulate the three schemes on the same data."""
    items = [
        simulation_item(config, context.seed, samples=P, sampling=scheme)
        for P in config.samples
        for scheme in SCHEMES
    ]
    parts = context.map(simulate_fluctuations, items, label="chains of SGD")
    shape = (len(config.samples), len(SCHEMES))
    predicted = np.array([np.trace(p["discrete"]) / config.inputs for p in parts])
    P = np.array(config.samples)
    return Result(
        P,
        (np.array([p["variance"] for p in parts]) / predicted).reshape(shape),
        (np.array([p["variance_error"] for p in parts]) / predicted).reshape(shape),
        (P - config.batch_size) / (P - 1),
    )


def plot(result: Result) -> Figure:
    """Draw the variance of each scheme against the number of samples."""
    figure, axis = new_figure(width="column", ratio=0.8)
    for column, (scheme, color) in enumerate(zip(SCHEMES, COLORS, strict=False)):
        axis.errorbar(
            result.samples,
            result.ratio[:, column],
            2 * result.error[:, column],
            fmt="o-",
            color=color,
            label=scheme.replace("_", " "),
        )
    axis.plot(result.samples, result.finite_factor, "--", color="k", lw=0.9, label="(P−S)/(P−1)")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("samples P")
    axis.set_ylabel("variance / theory with replacement")
    axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge each scheme's variance, and the statement that they agree."""
    last = -1
    fresh = result.ratio[:, 1] / result.finite_factor
    fresh_error = result.error[:, 1] / result.finite_factor
    return [
        Claim.judge(
            f"{ID}/replacement",
            place="Eq. (2.14)",
            statement="With replacement the variance is the exact discrete-time one.",
            expected=Band(0.95, 1.05, "closed form"),
            measured=result.ratio[:, 0].mean(),
            uncertainty=np.sqrt(np.sum(result.error[:, 0] ** 2)) / len(result.ratio),
            why="Mean over sample numbers of simulated over predicted variance.",
        ),
        Claim.judge(
            f"{ID}/without-replacement",
            place="Appendix C",
            statement="Fresh subsets reduce it by (P−S)/(P−1).",
            expected=Band(0.95, 1.05, "closed form"),
            measured=fresh.mean(),
            uncertainty=np.sqrt(np.sum(fresh_error**2)) / len(fresh),
            why="Mean over sample numbers, divided by that factor.",
        ),
        Claim.judge(
            f"{ID}/shuffle",
            place="Table I",
            statement="Epoch shuffling, what a DataLoader does, cuts the variance below a tenth "
            f"at P = {result.samples[last]}.",
            expected=Band(0.0, 0.1, "verification"),
            measured=result.ratio[last, 2],
            uncertainty=result.error[last, 2],
            why="Within an epoch the noise cancels, and few modes relax faster than one epoch.",
        ),
        Claim.judge(
            f"{ID}/independence",
            place="Table I",
            statement="The fluctuations do not depend on the sampling method.",
            expected=Band(0.8, 1.25, "paper"),
            measured=result.ratio[last, 2] / result.ratio[last, 0],
            uncertainty=result.error[last, 2],
            why="Shuffled over independent sampling: false for epoch shuffling.",
        ),
    ]

"""Ordered weights of the samples in the gradient noise, from few samples to many."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, _regression
from hyperribbon.theory import fluctuations as theory

TITLE = "Weights of the samples in the gradient noise"

STATEMENTS = (
    kit.says(
        "limit",
        "Sec. II B 2, on Fig. 2(b)",
        "K essentially becomes a diagonal matrix of squared Gaussian random numbers.",
        "At the largest P the ordered entries are chi-square quantiles, on average within a tenth "
        "(our threshold).",
        kit.Band(1 - GOOD, 1 + GOOD, "words"),
        setting="N = 50 and P = 10,000 as in the figure, quantiles from 0.1 to 0.95",
        needs="P = 10,000 and 100 realisations",
    ),
    kit.says(
        "monotone",
        "Fig. 2, caption",
        "The various solid curves correspond to sample numbers ranging between P = 70 and P = 10 "
        "000 (from bottom to top)",
        "Every curve lies above that of the next smaller P, in the mean over its inner quantiles.",
        kit.Band(0, 0, "printed"),
        setting="N = 50, averages of 100 realisations or more as in the figure",
        needs="100 realisations",
    ),
    kit.observe(
        "mean",
        "Eq. (2.18)",
        "The entries average to σε²(1 − N/P), also at the smallest P (within 5%).",
        kit.Band(0.95, 1.05, "closed form"),
        compare="mean",
    ),
)


class Config(kit.Frozen):
    """Input dimension, sample numbers, realisations averaged (more of them for few samples)."""

    inputs: int
    samples: tuple[int, ...]
    realisations: int


PRESETS = kit.presets(
    Config(50, (70, 100, 150, 300, 1000, 10_000), 100),
    smoke=Config(20, (28, 40, 400), 10),
    paper=Config(50, (70, 80, 100, 150, 200, 300, 500, 1000, 3000, 10_000), 100),
)

_GRID = (np.arange(200) + 0.5) / 200


class Result(kit.Frozen):
    """Ordered entries of P·K in units of σε², on a common grid of quantiles (Fig. 2(b))."""

    inputs: int
    samples: list
    grid: np.ndarray
    entries: np.ndarray
    means: np.ndarray
    mean_errors: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Average the ordered squared residuals over realisations (Fig. 2(b) of [fluctuations])."""
    items = [
        {
            "inputs": config.inputs,
            "samples": P,
            "label_variance": 1.0,
            "realisations": config.realisations * max(1, 1000 // P),
            "seed": context.seed,
        }
        for P in config.samples
    ]
    parts = context.map(_ordered_weights, items)
    return Result(config.inputs, list(config.samples), _GRID, **kit.stack(parts))


def _ordered_weights(item: kit.Item) -> dict:
    entries, means = [], []
    for X, Y, _ in _regression.data_sets(item):
        weights = np.sort(theory.residual_weights(X, Y))
        entries.append(np.interp(_GRID, (np.arange(len(weights)) + 0.5) / len(weights), weights))
        means.append(weights.mean())
    return {
        "entries": np.mean(entries, axis=0),
        "means": float(np.mean(means)),
        "mean_errors": float(np.std(means) / np.sqrt(len(means))),
    }


def plot(result: Result) -> kit.Figure:
    """Draw the ordered entries against the fraction of samples (Fig. 2(b) of [fluctuations])."""
    figure, axis = kit.new_figure(width="column", ratio=0.8)
    colors = kit.shades(len(result.samples))
    for P, entries, color in zip(result.samples, result.entries, colors, strict=True):
        axis.semilogy(result.grid, entries, color=color, label=f"P = {P}")
    limit = chi2.ppf(result.grid, 1)
    axis.semilogy(result.grid, limit, ":", color="k", label=r"$(\epsilon^\mu)^2$")
    axis.set(xlabel="fraction of samples, ordered", ylabel=r"$P\,K^{\mu\mu}/\sigma_\epsilon^2$")
    axis.set_ylim(1e-4, 20)
    axis.legend(ncols=2)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the limit, the order of the curves and their mean (Fig. 2(b) of [fluctuations])."""
    few = int(np.argmin(result.samples))
    expected = 1 - result.inputs / result.samples[few]
    inner = (result.grid > 0.1) & (result.grid < 0.95)
    limit = result.entries[-1][inner] / chi2.ppf(result.grid[inner], 1)
    falls = np.diff(result.entries[:, inner].mean(axis=1)) <= 0
    return {
        "limit": kit.over_seeds(
            limit.mean(), f"ordered entries over quantiles at P = {result.samples[-1]}"
        ),
        "monotone": kit.over_seeds(falls.sum(), "neighbouring curves in the wrong order"),
        "mean": kit.estimate(
            result.means[few] / expected,
            result.mean_errors[few] / expected,
            f"mean entry over 1 − N/P at P = {result.samples[few]}",
        ),
    }

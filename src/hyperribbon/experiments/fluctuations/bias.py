"""Too few samples inflate the exponent of the variance–flatness relation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import linear_network
from hyperribbon.experiments.fluctuations._two_layer import two_layer_item
from hyperribbon.experiments.statements import Ledger, observe, over_seeds
from hyperribbon.noise import variance_flatness
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory import fluctuations as theory

ID = "fluctuations/bias"
TITLE = "Measured exponent against number of samples"

LEDGER = Ledger(
    ID,
    observe(
        "inflation",
        "Sec. III C 3",
        "Fits on the modes of 60 samples overstate the exponent by half or more.",
        Band.at_least(1.5, "words"),
    ),
    observe(
        "many",
        "Sec. III C 3",
        "Thousands of independent samples give the true exponent within 0.1.",
        Band(-0.1, 0.1, "words"),
    ),
    observe(
        "correction",
        "Sec. III C 3",
        "Resampling from the fitted Gaussian leaves less than half of the bias, in the mean.",
        Band(-0.5, 0.5, "words"),
        compare="mean",
    ),
    observe(
        "warning",
        "Sec. III C 3",
        "Every measurement says so when its samples are too few.",
        Band(1, 1, "words"),
    ),
)


@dataclass(frozen=True)
class Config:
    """Network of Fig. 9(a); numbers of independent samples; repetitions of each."""

    inputs: int = 50
    hidden: int = 40
    samples: int = 3000
    counts: tuple[int, ...] = (60, 150, 500, 2000, 8000)
    repetitions: int = 20


PRESETS = {
    "smoke": Config(inputs=10, hidden=8, samples=600, counts=(20, 100, 1000), repetitions=3),
    "laptop": Config(),
    "paper": Config(repetitions=200),
}


@dataclass(frozen=True)
class Result:
    """Exponents (counts, repetitions): as fitted, and after the estimated bias; the true one."""

    counts: np.ndarray
    fitted: np.ndarray
    corrected: np.ndarray
    warned: np.ndarray
    true: float


def compute(config: Config, context: Context) -> Result:
    """Draw samples with the covariance of Eq. (3.34) and fit the exponent to their modes."""
    item = two_layer_item(
        seed=context.seed,
        inputs=config.inputs,
        hidden=config.hidden,
        samples=config.samples,
        target_variance=1.0,
        lr=0.1,
        batch_size=100,
        steps=1,
        chains=1,
    )
    items = [{**item, "count": n, "repetitions": config.repetitions} for n in config.counts]
    parts = context.map(_fit, items, label="fits")
    return Result(
        np.array(config.counts),
        *(np.array([part[key] for part in parts]) for key in ("fitted", "corrected", "warned")),
        true=parts[0]["true"],
    )


def _fit(item: Mapping[str, Any]) -> dict:
    _, _, W1, W2 = linear_network(item)
    modes = theory.decompose(W1, W2)
    variances = theory.second_layer_variances(modes.D1, modes.D2, 0.1, 100, 1.0)[:, 0]
    H = W1 @ W1.T / item["inputs"]
    rng = np.random.default_rng([item["seed"], item["count"]])
    rows = []
    for repetition in range(item["repetitions"]):
        draws = rng.normal(size=(item["count"], len(variances))) * np.sqrt(variances)
        result = variance_flatness(draws @ modes.A.T, H, seed=repetition, warn=False, strict=False)
        rows.append([result.exponent, result.corrected_exponent, float(result.too_few_samples)])
    fitted, corrected, warned = np.array(rows).T
    return {
        "fitted": fitted,
        "corrected": corrected,
        "warned": warned,
        "true": theory.fit_exponent(variances, modes.D1),
    }


def plot(result: Result) -> Figure:
    """Draw fitted and corrected exponents against the number of samples."""
    figure, axis = new_figure(width="column", ratio=0.8)
    for values, color, name in (
        (result.fitted, COLORS[1], "fitted"),
        (result.corrected, COLORS[0], "bias removed"),
    ):
        axis.errorbar(
            result.counts,
            values.mean(axis=1),
            values.std(axis=1),
            fmt="o-",
            color=color,
            label=name,
        )
    axis.axhline(result.true, color="k", ls="--", lw=0.9, label=f"true, {result.true:.2f}")
    axis.set_xscale("log")
    axis.set_xlabel("independent samples")
    axis.set_ylabel(r"exponent $\psi$")
    axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the inflation, its estimate, the warning, and the large-sample limit."""
    few, middle, many = 0, len(result.counts) // 2, -1
    each = "one value a repetition"
    bias = result.fitted[middle].mean() - result.true
    return LEDGER.judge(
        {
            "inflation": over_seeds(
                result.fitted[few] / result.true,
                f"fitted over true exponent from {result.counts[few]} samples, {each}",
            ),
            "many": over_seeds(
                result.fitted[many] - result.true,
                f"fitted minus true exponent from {result.counts[many]} samples, {each}",
            ),
            "correction": over_seeds(
                (result.corrected[middle] - result.true) / bias,
                f"share of the mean bias left at {result.counts[middle]} samples, {each}",
            ),
            "warning": over_seeds(
                result.warned[few], f"whether it warned from {result.counts[few]} samples, {each}"
            ),
        }
    )

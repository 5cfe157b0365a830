"""Too few samples inflate the exponent of the variance–flatness relation."""

from __future__ import annotations

import numpy as np

from hyperribbon.noise import variance_flatness
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import _two_layer
from hyperribbon.theory import fluctuations as theory

TITLE = "Measured exponent against number of samples"

STATEMENTS = (
    kit.observe(
        "inflation",
        "Sec. III C 3",
        "Fits on the modes of 60 samples overstate the exponent by half or more.",
        kit.Band.at_least(1.5, "words"),
    ),
    kit.observe(
        "many",
        "Sec. III C 3",
        "Thousands of independent samples give the true exponent within 0.1.",
        kit.Band(-0.1, 0.1, "words"),
    ),
    kit.observe(
        "correction",
        "Sec. III C 3",
        "Variances of one half along the modes of the other leave less than half of the bias, in "
        "the mean.",
        kit.Band(-0.5, 0.5, "words"),
        compare="mean",
        changed="2026-11-18: the correction resampled from the fitted Gaussian before",
    ),
    kit.observe(
        "warning",
        "Sec. III C 3",
        "Every measurement warns when its samples are too few.",
        kit.Band(1, 1, "words"),
    ),
)


class Config(kit.Frozen):
    """Network of Fig. 9(a), and numbers of samples by which the exponent is biased."""

    inputs: int = 50
    hidden: int = 40
    samples: int = 3000
    counts: tuple[int, ...] = (60, 150, 500, 2000, 8000)
    repetitions: int = 20


PRESETS = kit.presets(
    Config(),
    smoke=Config(inputs=10, hidden=8, samples=600, counts=(20, 100, 1000), repetitions=3),
    paper=Config(repetitions=200),
)


class Result(kit.Frozen):
    """Exponents (counts, repetitions): as fitted, and after the estimated bias; the true one."""

    counts: np.ndarray
    fitted: np.ndarray
    corrected: np.ndarray
    warned: np.ndarray
    true: float


def compute(config: Config, context: kit.Context) -> Result:
    """Draw samples with the covariance of Eq. (3.34) and fit the exponent, whose bias is shown."""
    network = _two_layer.TwoLayerConfig(
        config.inputs, config.hidden, config.samples, target_variance=1.0
    )
    item = network.item(context.seed)
    items = [{**item, "count": n, "repetitions": config.repetitions} for n in config.counts]
    parts = context.map(_fit, items, label="fits")
    columns = kit.stack(parts, "fitted", "corrected", "warned")
    return Result(counts=np.array(config.counts), **columns, true=parts[0]["true"])


def _fit(item: kit.Item) -> dict:
    _, _, W1, W2 = _two_layer.linear_network(item)
    modes = theory.decompose(W1, W2)
    variances = theory.second_layer_variances(modes.D1, modes.D2, 0.1, 100, 1.0)[:, 0]
    H = W1 @ W1.T / item["inputs"]
    rng = np.random.default_rng([item["seed"], item["count"]])
    rows = []
    for _ in range(item["repetitions"]):
        draws = rng.normal(size=(item["count"], len(variances))) * np.sqrt(variances)
        result = variance_flatness(draws @ modes.A.T, H, warn=False, strict=False)
        rows.append([result.exponent, result.corrected_exponent, float(result.too_few_samples)])
    columns = dict(zip(("fitted", "corrected", "warned"), np.array(rows).T, strict=True))
    return {**columns, "true": theory.fit_exponent(variances, modes.D1)}


def plot(result: Result) -> kit.Figure:
    """Draw the bias of the exponent and its correction against the number of samples."""
    figure, axis = kit.new_figure(width="column", ratio=0.8)
    for values, color, name in (
        (result.fitted, kit.COLORS[1], "fitted"),
        (result.corrected, kit.COLORS[0], "bias removed"),
    ):
        mean, spread = values.mean(axis=1), values.std(axis=1)
        axis.errorbar(result.counts, mean, spread, fmt="o-", color=color, label=name)
    axis.axhline(result.true, color="k", ls="--", lw=0.9, label=f"true, {result.true:.2f}")
    axis.set(xscale="log", xlabel="independent samples", ylabel=r"exponent $\psi$")
    axis.legend()
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the exponent's bias, its estimate, the warning, and the large-sample limit."""
    few, middle, many = 0, len(result.counts) // 2, -1
    each = "one value per repetition"
    bias = result.fitted[middle].mean() - result.true
    return {
        "inflation": kit.over_seeds(
            result.fitted[few] / result.true,
            f"fitted over true exponent from {result.counts[few]} samples, {each}",
        ),
        "many": kit.over_seeds(
            result.fitted[many] - result.true,
            f"fitted minus true exponent from {result.counts[many]} samples, {each}",
        ),
        "correction": kit.over_seeds(
            (result.corrected[middle] - result.true) / bias,
            f"share of the mean bias left at {result.counts[middle]} samples, {each}",
        ),
        "warning": kit.over_seeds(
            result.warned[few], f"whether it warned from {result.counts[few]} samples, {each}"
        ),
    }

"""Stationary properties below and above the interpolation threshold."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import ROUGH, _regression
from hyperribbon.papers.simulation import simulate_one_layer
from hyperribbon.theory import fluctuations as theory

TITLE = "Stationary properties of linear regression"

_SMALL = 1e-3
"""How "exactly" and "vanish" are read at the end of a run: below a thousandth."""

STATEMENTS = (
    kit.says(
        "under-teacher",
        "Sec. II C 1",
        "for σϵ = 0, the network can fit the teacher weights exactly such that the loss "
        "exponentially approaches zero (up to machine precision).",
        "With N < P and no label noise, a weight is on average within a thousandth of the "
        "teacher's (our threshold), whose size is one.",
        kit.Band.at_most(_SMALL, "words"),
        setting="P = 200, N = 40, from zero weights",
        needs="30,000 steps",
    ),
    kit.says(
        "under-fluctuations",
        "Table I",
        "nonzero in general; vanish ∝ σϵ²",
        "With N < P the variance over time without label noise is below a thousandth of that with "
        "σε² = 0.01 (our threshold).",
        kit.Band.at_most(_SMALL, "words"),
        setting="P = 200, N = 40, from zero weights",
        needs="30,000 steps",
        changed="2026-11-17: the ratio at two nonzero σε² before, that of the σε² whatever SGD "
        "does",
    ),
    kit.says(
        "over-teacher",
        "Table I",
        "differ from teacher weights",
        "With N > P a weight is on average farther than a quarter from the teacher's (our "
        "threshold), whose size is one.",
        kit.Band.at_least(ROUGH, "words"),
        setting="P = 200, N = 400, without label noise",
    ),
    kit.says(
        "over-loss",
        "Table I",
        "vanishes (also if σϵ² > 0)",
        "With N > P the final loss is below a thousandth of the loss σε²/2 of the teacher itself "
        "(our threshold).",
        kit.Band.at_most(_SMALL, "words"),
        setting="P = 200, N = 400, σε² = 0.01",
        needs="30,000 steps",
    ),
    kit.says(
        "over-fluctuations",
        "Table I",
        "vanish [Eqs. (2.16) and (2.20)]",
        "With N > P the variance over time is below a thousandth of that with N < P (our "
        "threshold).",
        kit.Band.at_most(_SMALL, "words"),
        setting="P = 200, N = 400 and 40, σε² = 0.01, from zero weights",
        needs="30,000 steps",
    ),
)

REGIMES = ("under-parameterised", "over-parameterised")


class Config(_regression.SimulationConfig):
    """Samples, both input dimensions, label noise; length of the simulation (Table 1)."""

    samples: int = 200
    inputs: tuple[int, int] = (40, 400)
    label_variances: tuple[float, float] = (0.0, 0.01)
    lr: float = 0.5
    batch_size: int = 10
    steps: int = 30_000
    chains: int = 16


PRESETS = kit.presets(
    Config(), smoke=Config(samples=40, inputs=(8, 80), steps=2000), paper=Config(steps=300_000)
)


class Result(kit.Frozen):
    """Rows are (regime, label noise): distance from the teacher, loss, variance over time."""

    samples: int
    inputs: list
    label_variances: np.ndarray
    distance: np.ndarray
    loss: np.ndarray
    variance: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Run SGD until it is stationary in every regime of Table 1, from zero weights."""
    items = [
        config.item(context.seed, inputs=N, label_variance=variance)
        for N in config.inputs
        for variance in config.label_variances
    ]
    rows = np.array(context.map(_stationary, items, label="chains of SGD"))
    table = rows.T.reshape(3, len(config.inputs), len(config.label_variances))
    return Result(config.samples, list(config.inputs), np.array(config.label_variances), *table)


def _stationary(item: kit.Item) -> list[float]:
    X, Y, u = _regression.data_of(item)
    options = _regression.select(item, *_regression.CHAINS)
    stats = simulate_one_layer(X, Y, start=np.zeros(item["inputs"]), **options)
    mean = theory.minimum_norm_solution(X, Y) + stats.mean
    distance = float(np.sqrt(np.mean((mean - u) ** 2)))
    return [distance, theory.regression_loss(X, Y, mean), stats.variance]


def plot(result: Result) -> kit.Figure:
    """Draw Table 1 of [fluctuations]."""
    figure, axis = kit.new_figure(width="full", ratio=0.3)
    axis.axis("off")
    columns = {
        "distance from teacher": result.distance,
        "final loss": result.loss,
        "variance over time": result.variance,
    }
    cells = [
        [REGIMES[row], f"{noise:g}", *(f"{values[row, at]:.2g}" for values in columns.values())]
        for row in range(2)
        for at, noise in enumerate(result.label_variances)
    ]
    heads, widths = ["regime", r"$\sigma_\epsilon^2$", *columns], [0.28, 0.12, 0.22, 0.16, 0.22]
    table = axis.table(cells, colLabels=heads, colWidths=widths, loc="center", cellLoc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.scale(1, 1.3)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the cells of Table 1 of [fluctuations]."""
    noisy = result.variance[0, 1]
    return {
        "under-teacher": kit.over_seeds(result.distance[0, 0], "root mean square distance"),
        "under-fluctuations": kit.over_seeds(result.variance[0, 0] / noisy, "ratio of variances"),
        "over-teacher": kit.over_seeds(result.distance[1, 0], "root mean square distance"),
        "over-loss": kit.over_seeds(
            2 * result.loss[1, 1] / result.label_variances[1], "final loss over σε²/2"
        ),
        "over-fluctuations": kit.over_seeds(result.variance[1, 1] / noisy, "ratio of variances"),
    }

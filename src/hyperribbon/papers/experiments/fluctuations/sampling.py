"""How minibatches are drawn decides how far weights wander: three schemes."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, _regression

TITLE = "Three ways to draw minibatches"

_SETTING = "N = 100, λ = 0.1, S = 10, P/N from 2 to 20, the same data for both schemes"

STATEMENTS = (
    kit.says(
        "independence",
        "Table I, caption",
        "Note that these properties are independent of the sampling method (i.e., sampling with or "
        "without replacement).",
        "Fresh batches without replacement give the same variance of the weights as with "
        "replacement, within a tenth (our threshold).",
        kit.Band(1 - GOOD, 1 + GOOD, "words"),
        setting=_SETTING,
        needs="N = 100 and 15,000 steps of 32 chains",
        changed="2026-11-17: epoch shuffling was compared before, of which the sentence does not "
        "speak",
    ),
    kit.says(
        "without-replacement",
        "Appendix C",
        "The corresponding expression for sampling without replacement takes the same form but "
        "with the prefactor (P − S)/(S(P − 1)) instead of 1/S",
        "Fresh batches without replacement have (P−S)/(P−1) of the exact variance with "
        "replacement, within 5%.",
        kit.Band(0.95, 1.05, "closed form"),
        setting=_SETTING + "; at λ = 0.1 the variance is linear in the noise but for 1%",
        needs="N = 100 and 15,000 steps of 32 chains",
        compare="mean",
    ),
    kit.observe(
        "replacement",
        "Eq. (2.14)",
        "With replacement the variance is the exact discrete-time one, within 5%.",
        kit.Band(0.95, 1.05, "closed form"),
        compare="mean",
    ),
    kit.observe(
        "shuffle",
        "Table I",
        "Epoch shuffling, what a DataLoader does, cuts the variance below a tenth at P = 20N.",
        kit.Band.at_most(0.1, "words"),
        needs="N = 100 and 15,000 steps of 32 chains",
    ),
)

SCHEMES = ("replacement", "without_replacement", "shuffle")


class Config(_regression.RegressionConfig):
    """Input dimension and sample numbers; length of the simulation."""

    inputs: int = 100
    samples: tuple[int, ...] = (200, 500, 1000, 2000)
    steps: int = 15_000
    chains: int = 32


PRESETS = kit.presets(
    Config(),
    smoke=Config(inputs=10, samples=(40, 200), steps=2000, chains=32),
    paper=Config(steps=400_000),
)


class Result(kit.Frozen):
    """Variance over that with replacement, theory Eq. (2.30): (sample numbers, schemes)."""

    samples: np.ndarray
    ratio: np.ndarray
    error: np.ndarray
    finite_factor: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Simulate SGD under three sampling schemes on the same data."""
    items = [
        config.item(context.seed, samples=P, sampling=scheme)
        for P in config.samples
        for scheme in SCHEMES
    ]
    parts = context.map(_regression.simulate_fluctuations, items, label="chains of SGD")
    predicted = np.array([np.trace(p["discrete"]) / config.inputs for p in parts])
    simulated = kit.stack(parts, "variance", "variance_error")
    ratio, error = ((values / predicted).reshape(-1, len(SCHEMES)) for values in simulated.values())
    P = np.array(config.samples)
    return Result(P, ratio, error, (P - config.batch_size) / (P - 1))


def plot(result: Result) -> kit.Figure:
    """Draw the variance of each scheme against the number of samples."""
    figure, (above, below) = kit.new_figure(rows=2, width="column", ratio=0.6, sharex=True)
    for axis, shown in ((above, (0, 1)), (below, (2,))):
        for row in shown:
            label, style = SCHEMES[row].replace("_", " "), ("o-", "s-", "^-")[row]
            values, error = result.ratio[:, row], 2 * result.error[:, row]
            axis.errorbar(
                result.samples, values, error, fmt=style, color=kit.COLORS[row], label=label
            )
    above.plot(result.samples, result.finite_factor, "--", color="k", lw=0.9, label="(P−S)/(P−1)")
    below.set(xscale="log", yscale="log", xlabel="samples P")
    for axis in (above, below):
        axis.legend()
    figure.supylabel("variance / theory with replacement", fontsize=8)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure each sampling scheme's variance, and whether two of them agree."""
    own = "over that with replacement, one value per sample number"
    return {
        "independence": kit.over_seeds(result.ratio[:, 1] / result.ratio[:, 0], f"variance {own}"),
        "without-replacement": kit.over_seeds(
            result.ratio[:, 1] / result.finite_factor,
            "variance over (P−S)/(P−1) of the theory, one value per sample number",
        ),
        "replacement": kit.over_seeds(
            result.ratio[:, 0], "simulated over predicted variance, one value per sample number"
        ),
        "shuffle": kit.estimate(
            result.ratio[-1, 2],
            result.error[-1, 2],
            f"at P = {result.samples[-1]}: within an epoch the noise cancels, and few modes "
            "relax faster than one epoch",
        ),
    }

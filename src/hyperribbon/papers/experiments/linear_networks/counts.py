"""Number of non-zero eigenvalues of rectangular networks: the printed rules and the right ones."""

from __future__ import annotations

import numpy as np

from hyperribbon.core import derive_seed, numpy_generator
from hyperribbon.papers.experiments import kit
from hyperribbon.theory import linear_networks as theory

TITLE = "Non-zero eigenvalues of rectangular networks, counted"

STATEMENTS = (
    kit.says(
        "balanced-printed",
        "Sec. 3",
        "of the p eigenvalues of the Hessian, at most (min{d0, d1, …, dL})² are non-zero",
        "No balanced network has more, whatever its widths.",
        kit.Band(1.0, 1.0, "printed"),
        setting="random widths and depths, balanced weights as in App. C, white inputs",
    ),
    kit.says(
        "shallow-printed",
        "App. B",
        "at most min{d0, d1} × min{d1, d2} may be non-zero",
        "No network of two layers has more, whatever its widths.",
        kit.Band(1.0, 1.0, "printed"),
        setting="random widths, Gaussian weights, white inputs",
    ),
    kit.observe(
        "balanced-right",
        "Sec. 3",
        "Exactly r(d0 + dL − r) eigenvalues are non-zero.",
        kit.Band(1.0, 1.0, "closed form"),
    ),
    kit.observe(
        "shallow-right",
        "App. B",
        "Exactly d0d2 − (d0 − r1)(d2 − r2) eigenvalues are non-zero.",
        kit.Band(1.0, 1.0, "closed form"),
    ),
)


class Config(kit.Frozen):
    """Setting of the count of non-zero Hessian eigenvalues."""

    networks: int = 200  # random networks of each kind
    widest: int = 24  # widths are drawn from 1 to this
    deepest: int = 6  # depths of balanced ones are drawn from 2 to this
    group: int = 25  # networks in one piece of work


PRESETS = kit.presets(
    Config(), smoke=Config(networks=20, widest=12, group=20), paper=Config(networks=1000)
)


class Result(kit.Frozen):
    """Counts of non-zero Hessian eigenvalues of each linear network."""

    balanced: np.ndarray  # (m, 3), counted, by the rule r(d0 + dL − r), and by the printed (min d)²
    # (m, 3), counted, by d0d2 − (d0 − r1)(d2 − r2), and by the printed min(d0, d1)·min(d1, d2)
    shallow: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Count the non-zero Hessian eigenvalues of random linear networks."""
    groups = [
        {
            "networks": min(config.group, config.networks - start),
            "widest": config.widest,
            "deepest": config.deepest,
            "seed": derive_seed(context.seed, "networks", start),
        }
        for start in range(0, config.networks, config.group)
    ]
    found = context.map(_count, groups, "counting")
    kinds = ("balanced", "shallow")
    return Result(*(np.concatenate([group[kind] for group in found]) for kind in kinds))


def _count(item: kit.Item) -> dict[str, np.ndarray]:
    rng = numpy_generator(item["seed"])
    balanced, shallow = [], []
    for _ in range(item["networks"]):
        depth = int(rng.integers(2, item["deepest"] + 1))
        balanced.append(_balanced(rng.integers(1, item["widest"] + 1, depth + 1).tolist(), rng))
        shallow.append(_shallow(rng.integers(1, item["widest"] + 1, 3).tolist(), rng))
    return {"balanced": np.array(balanced), "shallow": np.array(shallow)}


def _balanced(widths: list[int], rng: np.random.Generator) -> tuple[int, int, int]:
    rank = min(widths)
    weights = theory.sample_balanced_weights(widths, rng.uniform(0.5, 1.5, rank), rng)
    right = theory.balanced_count(rank, len(weights), widths[0], widths[-1])
    return _count_nonzero(weights, rng), right, theory.printed_count(widths)


def _shallow(widths: list[int], rng: np.random.Generator) -> tuple[int, int, int]:
    d0, d1, d2 = widths
    W1, W2 = rng.standard_normal((d1, d0)), rng.standard_normal((d2, d1))
    printed = min(d0, d1) * min(d1, d2)
    return _count_nonzero([W1, W2], rng), theory.shallow_count(W1, W2), printed


def _count_nonzero(weights: list[np.ndarray], rng: np.random.Generator) -> int:
    """Count the non-zero Hessian eigenvalues: the rank of the Jacobian on white inputs."""
    width = weights[0].shape[1]
    X = theory.whiten(rng.standard_normal((width, width + 2))).inputs
    return int(np.linalg.matrix_rank(theory.jacobian(weights, X), rtol=1e-10))


def plot(result: Result) -> kit.Figure:
    """Draw the rules against the counted non-zero eigenvalues."""
    figure, axes = kit.new_figure(1, 2, width="full", ratio=0.75)
    axes[0].set_title("balanced, 2 to 6 layers")
    axes[1].set_title("two layers without balance")
    rules = ("$r\\,(d_0+d_L-r)$", "$d_0d_2-(d_0-r_1)(d_2-r_2)$")
    prints = ("$(\\min d)^2$", "$\\min(d_0,d_1)\\,\\min(d_1,d_2)$")
    for kind, values in enumerate((result.balanced, result.shallow)):
        axis, (counted, right, printed) = axes[kind], values.T
        label = f"printed: {prints[kind]}"
        axis.plot(counted, printed, "x", color=kit.COLORS[1], ms=5, alpha=0.7, label=label)
        axis.plot(counted, right, "o", color=kit.COLORS[0], ms=3.5, mfc="none", label=rules[kind])
        axis.plot([1, counted.max()], [1, counted.max()], color="0.6", lw=0.8, zorder=0)
        axis.set(xscale="log", yscale="log", xlabel="non-zero eigenvalues, counted")
        axis.legend(loc="upper left")
        axis.set_ylim(0.7, 12 * counted.max())
    axes[0].set_ylabel("by rule")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure each rule by the share of networks where it gives the counted number."""
    measured = {}
    for kind, values in (("balanced", result.balanced), ("shallow", result.shallow)):
        counted, by_rule, by_print = values.T
        share = f"share of {len(counted)} random networks"
        measured[f"{kind}-printed"] = kit.exact(
            np.mean(counted <= by_print),
            f"{share}; the printed rule omits the pairs of one non-zero and one zero singular "
            "value, which a rectangular network has",
        )
        measured[f"{kind}-right"] = kit.exact(np.mean(counted == by_rule), share)
    return measured

"""Stationary weight variance under momentum, decay, a preconditioner and shuffled epochs."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.core import numpy_generator
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import _regression
from hyperribbon.papers.simulation import chain_batches
from hyperribbon.theory import fluctuations as theory

TITLE = "Theory of the optimiser in use"

RULES: dict[str, dict[str, Any]] = {
    "SGD": {},
    "momentum 0.9": {"momentum": 0.9},
    "Nesterov 0.9": {"momentum": 0.9, "nesterov": True},
    "weight decay": {"weight_decay": 0.05},
    "Adam, fixed": {"momentum": 0.9, "dampening": 0.9, "preconditioner": True},
}
SAMPLINGS = ("replacement", "shuffle")

STATEMENTS = (
    kit.observe(
        "rows",
        "Eqs. (2.29), (2.30)",
        "In every row, an optimiser with a sampling, the simulated variance of the weights is that "
        "of `stationary_state` within 3%.",
        kit.Band.at_most(0.03, "closed form"),
        needs="64 chains of 4000 steps",
        compare="mean",
    ),
    kit.observe(
        "plain-theory",
        "Eq. (2.30)",
        "Eq. (2.30), which knows neither momentum nor shuffling, is off by a factor of three or "
        "more in at least one row.",
        kit.Band.at_least(3, "words"),
    ),
)


class Config(_regression.RegressionConfig):
    """Task and chains: a learning rate so small that noise does not depend on the weights."""

    inputs: int = 10
    samples: int = 400
    lr: float = 0.05
    batch_size: int = 40
    steps: int = 4000
    burn_in: int = 1200
    chains: int = 64


PRESETS = kit.presets(
    Config(),
    smoke=Config(inputs=4, samples=80, batch_size=20, steps=400, burn_in=200, chains=16),
    paper=Config(steps=40_000, chains=256),
)


class Result(kit.Frozen):
    """Variances (rules, samplings): simulated, of `stationary_state`, and of Eq. (2.30)."""

    simulated: np.ndarray
    predicted: np.ndarray
    plain: np.ndarray
    error: np.ndarray  # relative standard error of the simulated ones


def compute(config: Config, context: kit.Context) -> Result:
    """Simulate every optimiser on one layer, under both samplings and on the same data."""
    items = [
        config.item(context.seed, rule=rule, sampling=sampling)
        for rule in RULES
        for sampling in SAMPLINGS
    ]
    parts = context.map(_row, items, label="chains")
    return Result(**kit.stack(parts, shape=(len(RULES), len(SAMPLINGS))))


def _row(item: kit.Item) -> dict[str, float]:
    """Return the variance of the weights of one optimiser, simulated and predicted."""
    X, Y, _ = _regression.data_of(item)
    N, P = X.shape
    S, lr, rule = item["batch_size"], item["lr"], dict(RULES[item["rule"]])
    if "preconditioner" in rule:
        rule["preconditioner"] = np.geomspace(0.5, 2, N)
    H, decay = theory.hessian(X), rule.get("weight_decay", 0.0)
    rest = np.linalg.solve(H + decay * np.eye(N), X @ Y / P)  # where the chains come to rest
    shuffled = item["sampling"] == "shuffle"
    C = theory.noise_covariance(X, Y, S, rest, replacement=not shuffled)
    state = theory.stationary_state(H, C, lr, batches=P // S if shuffled else None, **rule)
    variances = _simulate(X, X.T @ rest - Y, rule, item)
    return {
        "simulated": float(variances.mean()),
        "predicted": float(np.trace(state.covariance) / N),
        "plain": float(np.trace(theory.lyapunov_covariance(H, C, lr)) / N),
        "error": float(variances.std(ddof=1) / np.sqrt(len(variances)) / variances.mean()),
    }


def _simulate(
    X: np.ndarray, residual: np.ndarray, rule: dict[str, Any], item: kit.Item
) -> np.ndarray:
    """Return an optimiser's mean square deviation of a weight from rest in every chain."""
    chains, data = item["chains"], np.ascontiguousarray(X.T)
    rng = numpy_generator(item["seed"], "optimisers", item["rule"], item["sampling"])
    batches = chain_batches(
        len(data), item["batch_size"], chains, sampling=item["sampling"], rng=rng
    )
    momentum, entering = rule.get("momentum", 0.0), 1 - rule.get("dampening", 0.0)
    factors, decay = rule.get("preconditioner", 1.0), rule.get("weight_decay", 0.0)
    # At rest the data's gradient and that of the decay cancel: both are measured from there.
    pull = -data.T @ residual / len(data)
    deviation, buffer = np.zeros((chains, len(X))), np.zeros((chains, len(X)))
    squares = np.zeros(chains)
    for step in range(item["burn_in"] + item["steps"]):
        indices = next(batches)
        x = data[indices]
        errors = np.einsum("rsn,rn->rs", x, deviation) + residual[indices]
        gradient = np.einsum("rs,rsn->rn", errors, x) / indices.shape[1] + pull + decay * deviation
        buffer = momentum * buffer + entering * gradient
        move = gradient + momentum * buffer if rule.get("nesterov") else buffer
        deviation = deviation - item["lr"] * factors * move
        if step >= item["burn_in"]:
            squares += np.mean(deviation**2, axis=1)
    return squares / item["steps"]


def plot(result: Result) -> kit.Figure:
    """Draw simulated over predicted variance, by the optimiser's theory and by Eq. (2.30)."""
    figure, axes = kit.new_figure(columns=2, width="full", ratio=0.75, sharey=True)
    place = np.arange(len(RULES))[::-1]
    for axis, column, sampling in zip(axes, range(2), SAMPLINGS, strict=True):
        for theirs, style, color, label in (
            (result.predicted, "o", kit.COLORS[0], "this optimiser and sampling"),
            (result.plain, "x", kit.COLORS[1], "plain SGD, Eq. (2.30)"),
        ):
            ratio = result.simulated[:, column] / theirs[:, column]
            error = 2 * ratio * result.error[:, column]
            axis.errorbar(ratio, place, xerr=error, fmt=style, ms=4, color=color, label=label)
        axis.axvline(1, color="0.6", lw=0.8)
        axis.set(xscale="log", xlabel="simulated / predicted variance", title=sampling)
        axis.set_yticks(place, list(RULES))
    axes[0].legend(fontsize=6)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure by how much the theories of the optimisers are off at worst."""
    own, plain = result.simulated / result.predicted, result.simulated / result.plain
    names = [f"{rule}, {sampling}" for rule in RULES for sampling in SAMPLINGS]
    worst = int(np.argmax(abs(np.log(plain))))
    rows = ", ".join(f"{n} {v:.3f}" for n, v in zip(names, own.ravel(), strict=True))
    return {
        "rows": kit.estimate(
            np.sqrt(np.mean((own - 1) ** 2)),
            np.sqrt(np.mean(result.error**2) / own.size),
            f"root mean square over rows; simulated over predicted: {rows}",
        ),
        "plain-theory": kit.over_seeds(
            np.exp(abs(np.log(plain)).max()),
            f"largest factor, {plain.ravel()[worst]:.2f} for {names[worst]}",
        ),
    }

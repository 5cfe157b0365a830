"""Continuum against discrete time: the weight variance over learning rates."""

from __future__ import annotations

import numpy as np

from hyperribbon.core import ArgumentError
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, _regression
from hyperribbon.theory import fluctuations as theory

TITLE = "Continuum and discrete time"

_LARGE = 1.0
"""A rather large learning rate: ten times that of the paper's figures."""

STATEMENTS = (
    kit.says(
        "continuum-large",
        "Sec. II B 1",
        "we find that the results obtained from Eqs. (2.13) and (2.11) agree well even for rather "
        "large learning rates.",
        "At λ = 1 the stationary variance of SGD is that of Eq. (2.13), whose noise depends on the "
        "weights, within a tenth in the mean over data sets (our thresholds).",
        kit.Band(-GOOD, GOOD, "words"),
        setting="N = 10, P = 20, S = 10; λ = 1 is ten times the rate of the figures and a fifth of "
        "the edge of stability of these data sets",
        needs="20,000 steps of 128 chains on 11 data sets",
        compare="mean",
        changed="2026-11-17: λ = 5, at the edge of stability, against Eq. (2.30) before, whose "
        "noise does not depend on the weights; the sentence is about Eq. (2.13)",
    ),
    kit.observe(
        "exact",
        "Eq. (2.11)",
        "The discrete-time form is within 2% of SGD at λ = 5, median over data sets.",
        kit.Band(0.98, 1.02, "closed form"),
        needs="20,000 steps of 128 chains on 11 data sets",
    ),
    kit.observe(
        "additive-edge",
        "Eq. (2.30)",
        "At the edge of stability (λ = 5) SGD's variance is twice that of Eq. (2.30) or more: its "
        "relative excess is at least one.",
        kit.Band.at_least(1, "words"),
    ),
)


class Config(_regression.SimulationConfig):
    """A small task, and learning rates up to the edge of stability (discrete time)."""

    inputs: int = 10
    samples: int = 20
    label_variance: float = 0.25
    batch_size: int = 10
    lrs: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
    steps: int = 20_000
    chains: int = 128
    realisations: int = 11


PRESETS = kit.presets(
    Config(),
    smoke=Config(steps=1500, lrs=(0.5, 1.0, 5.0), chains=64, realisations=3),
    paper=Config(steps=400_000),
)


class Result(kit.Frozen):
    """Mean variance of a weight in discrete time: simulated and by closed forms.

    `exact` and `additive` are in discrete time, `langevin` is Eq. (2.13), `continuum` Eq. (2.30).
    """

    lrs: np.ndarray
    measured: np.ndarray
    error: np.ndarray
    exact: np.ndarray
    additive: np.ndarray
    langevin: np.ndarray
    continuum: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Simulate SGD in discrete time at every stable learning rate."""
    items = [
        config.item(seed, lr=lr, every=5)
        for seed in _stable_realisations(config, context.seed)
        for lr in config.lrs
    ]
    parts = context.map(_regression.simulate_fluctuations, items, label="chains of SGD")
    additive = [
        theory.lyapunov_covariance(p["hessian"], p["theory_noise"], item["lr"], time="discrete")
        for p, item in zip(parts, items, strict=True)
    ]
    shape = (config.realisations, len(config.lrs))

    def variance(matrices: list) -> np.ndarray:
        return np.trace(matrices, axis1=1, axis2=2).reshape(shape) / config.inputs

    simulated = kit.stack(parts, "variance", "variance_error", shape=shape)
    return Result(
        np.array(config.lrs),
        simulated["variance"],
        simulated["variance_error"],
        variance([p["discrete"] for p in parts]),
        variance(additive),
        variance([_langevin_covariance(item) for item in items]),
        variance([p["theory"] for p in parts]),
    )


def _langevin_covariance(item: kit.Item) -> np.ndarray:
    """Return M of discrete Langevin steps, Eq. (2.13), NaN where it grows without bound.

    HM + MH = λ{C + [(1/P) Σ (xᵀMx) xxᵀ − HMH]/S}, solved for vec M.
    """
    N, S = item["inputs"], item["batch_size"]
    X, Y, _ = _regression.data_of(item)
    H, one = theory.hessian(X), np.eye(N)
    pairs = np.einsum("ip,jp->ijp", X, X).reshape(N * N, -1)
    fed_back = (pairs @ pairs.T / X.shape[1] - np.kron(H, H)) * item["lr"] / S
    operator = np.kron(H, one) + np.kron(one, H) - fed_back
    if np.linalg.eigvalsh(operator)[0] <= 0:
        return np.full((N, N), np.nan)
    C = theory.noise_covariance(X, Y, S)
    return np.linalg.solve(operator, item["lr"] * C.ravel()).reshape(N, N)


def _stable_realisations(config: Config, seed: int) -> list[int]:
    """Return the first data sets on which discrete SGD is stable at the largest learning rate."""
    stable: list[int] = []
    for candidate in _regression.seeds(seed, 20 * config.realisations):
        X, Y, _ = _regression.data_of(config.item(candidate))
        try:
            theory.discrete_covariance(X, Y, max(config.lrs), config.batch_size)
        except ArgumentError:
            continue
        stable.append(candidate)
        if len(stable) == config.realisations:
            return stable
    raise RuntimeError("too few data sets are stable at the largest learning rate")


def plot(result: Result) -> kit.Figure:
    """Draw variance in discrete time over λ, relative to the continuum, by data set."""
    figure, axis = kit.new_figure(width="column", ratio=0.8)
    for row, continuum in enumerate(result.continuum):
        for values, style, color, label in (
            (result.measured, "o", "k", "SGD"),
            (result.exact, "-", kit.COLORS[0], "discrete, exact"),
            (result.additive, "--", kit.COLORS[2], "discrete, additive noise"),
            (result.langevin, "-.", kit.COLORS[3], "continuum, Eq. (2.13)"),
        ):
            name, ratio = None if row else label, values[row] / continuum
            axis.plot(result.lrs, ratio, style, ms=3, lw=1, color=color, label=name)
    axis.axhline(1, ls=":", color=kit.COLORS[1], label="continuum, Eq. (2.30)")
    axis.set(yscale="log", xlabel=r"learning rate $\lambda$", ylabel="variance / continuum form")
    axis.legend()
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure how far the continuum is from discrete time, and the discrete forms at the edge."""
    large = int(np.argmin(abs(result.lrs - _LARGE)))
    excess = result.measured / result.langevin - 1
    edge = result.measured[:, -1] / result.exact[:, -1]
    by_rate = ", ".join(
        f"{value:+.0%} at {rate:g}"
        for rate, value in zip(result.lrs, np.median(excess, axis=0), strict=True)
        if np.isfinite(value)
    )
    return {
        "continuum-large": kit.over_seeds(
            excess[:, large],
            f"excess over Eq. (2.13), one value per data set; its median by rate: {by_rate}",
        ),
        "exact": kit.estimate(
            np.median(edge),
            _regression.median_error(edge),
            f"simulated over exact variance, from {edge.min():.3f} to {edge.max():.3f}: where "
            "fourth moments diverge, a simulation falls short of its mean",
            freedom=len(edge) - 1,
        ),
        "additive-edge": kit.over_seeds(
            result.measured[:, -1] / result.continuum[:, -1] - 1,
            "excess over Eq. (2.30), one value per data set",
        ),
    }

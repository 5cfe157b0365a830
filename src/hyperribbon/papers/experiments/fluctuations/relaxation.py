"""Two-layer networks relax mode by mode: growth of variances and decay of correlations."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, _two_layer
from hyperribbon.theory import fluctuations as theory

TITLE = "Relaxation of two-layer modes"

_SETTING = (
    "N_i = 20, N_h = 12, P = 4000, S = 100; the paper prints none and assumes white inputs, which "
    "at P = 200N_i differ by about √(N_i/P) = 7% in a mode"
)

STATEMENTS = kit.at_scale(
    "P = 4000 and 1000 chains",
    kit.says(
        "growth",
        "Sec. III D",
        "their variance saturates at late times at the equilibrium value [Eq. (3.41)]",
        "The variances of an ensemble started at one point grow as Eq. (3.41), within a tenth in "
        "the mean over times and groups of modes.",
        kit.Band(1 - GOOD, 1 + GOOD, "closed form"),
        setting=_SETTING,
        compare="mean",
    ),
    kit.says(
        "correlation",
        "Sec. III D",
        "modes with ωk > 0 relax towards zero [Eq. (3.40)]",
        "The mean correlation in time of a group of modes is that of Eq. (3.40) within a tenth of "
        "the stationary variance, at all times.",
        kit.Band.at_most(GOOD, "closed form"),
        setting=_SETTING,
    ),
    kit.says(
        "zero-modes",
        "Sec. III D",
        "Modes χk belonging to eigenvalues ωk = 0 remain fixed at their initialization",
        "Their variance stays below a hundredth of that of a moving mode (a tenth in amplitude; "
        "our threshold).",
        kit.Band.at_most(GOOD**2, "words"),
        setting=_SETTING + "; at the end of the growth",
    ),
)


class Config(_two_layer.TwoLayerConfig):
    """Network, task and ensemble whose modes grow, then decorrelate (relaxation)."""

    inputs: int = 20
    hidden: int = 12
    samples: int = 4000
    batch_size: int = 100
    steps: int = 3000
    chains: int = 1000
    points: int = 13


PRESETS = kit.presets(
    Config(),
    smoke=Config(inputs=8, hidden=5, samples=800, steps=600, chains=300, points=7),
    paper=Config(chains=8000),
)


class Result(kit.Frozen):
    """Relaxation of groups of modes (T, 3): variances, correlations, predictions.

    `error` is the relative standard error of a variance, mean over the modes that move.
    """

    times: np.ndarray
    groups: list
    variances: np.ndarray
    predicted_variances: np.ndarray
    correlations: np.ndarray
    predicted_correlations: np.ndarray
    error: float
    drift: float


def compute(config: Config, context: kit.Context) -> Result:
    """Follow the relaxation of modes χ = RᵀZ of an ensemble started at the solution."""
    item = config.item(context.seed, points=config.points)
    return Result(**context.map(_follow, [item], label="chains of SGD")[0])


def _follow(item: kit.Item) -> dict:
    X, Y, W1, W2 = _two_layer.linear_network(item)
    half = item["steps"] // 2
    offsets = np.linspace(0, half, item["points"]).astype(int)
    run = _two_layer.run_chains(item, (X, Y, W1, W2), np.concatenate([offsets, half + offsets]))
    modes = theory.decompose(W1, W2)
    rates, R = np.linalg.eigh(theory.drift_matrix(modes))
    z1 = np.einsum("ho,tchi->tci", modes.V, run.W1 - W1)
    z2 = (run.W2 - W2)[:, :, 0, :] @ modes.A
    moved = np.concatenate([z1, z2], axis=2) @ R
    chi = moved - moved.mean(axis=1, keepdims=True)
    input_variance = 1 / item["inputs"]
    unexplained = float(np.mean((Y - W2 @ W1 @ X) ** 2))
    strength = theory.noise_strength(item["lr"], item["batch_size"], input_variance, unexplained)
    unit = strength / (2 * input_variance)
    times = item["lr"] * offsets
    count = len(offsets)
    late = chi[count - 1 :]
    fast, fixed = rates > 1.5 * modes.D2[0], rates <= 1e-9
    groups = [fast, ~fast & ~fixed, fixed]
    predicted = theory.mode_variance(times, rates, input_variance, strength) / unit
    start = theory.mode_variance(item["lr"] * half, rates, input_variance, strength) / unit
    decay = theory.mode_correlation(times, rates, input_variance) * start

    def group_means(array: np.ndarray) -> np.ndarray:
        return np.stack([array[:, group].mean(axis=1) for group in groups], axis=1)

    return {
        "times": times,
        "groups": ["D₁+D₂ (fast)", "near D₂ (slow)", "zero modes"],
        "variances": group_means(np.mean(chi[:count] ** 2, axis=1) / unit),
        "predicted_variances": group_means(predicted),
        "correlations": group_means(np.mean(late * late[0], axis=1) / unit),
        "predicted_correlations": group_means(decay),
        "error": float(np.sqrt(2 / item["chains"] / (~fixed).sum())),
        "drift": float(np.mean(moved[count - 1][:, fixed].mean(axis=0) ** 2) / unit),
    }


def plot(result: Result) -> kit.Figure:
    """Draw the relaxation of three groups of modes: growth and decorrelation."""
    figure, axes = kit.new_figure(columns=2, width="full", ratio=0.75)
    pairs = (
        (result.variances, result.predicted_variances, r"$\langle\chi_k^2(t)\rangle$"),
        (result.correlations, result.predicted_correlations, r"$\langle\chi_k(t)\chi_k(0)\rangle$"),
    )
    for axis, (measured, predicted, name) in zip(axes, pairs, strict=True):
        for column, group in enumerate(result.groups):
            axis.plot(result.times, measured[:, column], "o", color=kit.COLORS[column], label=group)
            axis.plot(result.times, predicted[:, column], "-", color=kit.COLORS[column])
        axis.set(xlabel=r"time $t = \lambda\tau$", ylabel=f"{name} [$\\sigma_R^2/2\\sigma_x^2$]")
    axes[0].legend()
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the modes' relaxation: growth, decorrelation, and those that stay."""
    growth = result.variances[1:, :2] / result.predicted_variances[1:, :2]
    difference = abs(result.correlations[:, :2] - result.predicted_correlations[:, :2])
    fixed = result.variances[-1, 2]
    return {
        "growth": kit.estimate(
            growth.mean(), result.error, "mean ratio of measured and predicted variance"
        ),
        "correlation": kit.estimate(
            difference.max(), result.error, "largest difference over times and groups"
        ),
        "zero-modes": kit.estimate(
            fixed,
            fixed * result.error,
            "variance over the ensemble; its mean drifts along them, by "
            f"{result.drift:.2g} of that unit in square: a nonlinear effect of the noise",
        ),
    }

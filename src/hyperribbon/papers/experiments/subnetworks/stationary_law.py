"""Eqs. (2.11)–(2.16) of [subnetworks]: the noise of SGD and the law its weights settle in."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.core import derive_seed, numpy_generator
from hyperribbon.noise import stationary_covariance
from hyperribbon.papers.experiments.judging import Measurements, over_seeds
from hyperribbon.papers.experiments.kit import Context, Figure, Frozen, Item, presets, stack
from hyperribbon.papers.experiments.statements import Band, observe, says
from hyperribbon.plots.style import COLORS, new_figure

TITLE = "Gradient noise by batch size, and the stationary law of SGD"

_HESSIAN = np.array([[1.0, 0.6], [0.6, 0.8]])
_NOISE = np.array([[2.0, -0.5], [-0.5, 0.3]])
_EDGES = np.linspace(-2.5, 2.5, 51)

STATEMENTS = (
    says(
        "noise-by-batch",
        "Eq. (2.11)",
        "for qualitative analysis [32, 27] we assume it is a mean-zero Gaussian random variable "
        "whose covariance scales roughly as 1/b",
        "The variance of a mini-batch gradient falls as b to the power −1: the slope of its "
        "logarithm is −1 ± 0.1.",
        Band.around(-1, "closed form", atol=0.1),
        setting="independent draws of b samples of a linear regression, as the text assumes",
    ),
    says(
        "gibbs-law",
        "Eq. (2.16)",
        "Rewriting in terms of log P(θ) and integrating gives",
        "With constant isotropic noise the weights settle in exp(−βL) with β = 2b/(ησ²): at the "
        "smallest step the total variation distance is at most 0.05 (our margin).",
        Band.at_most(0.05, "closed form"),
        setting="SGD in a double well L = (θ² − 1)²/4, all chains started in one well; the "
        "equation is for any loss, to leading order in the step",
        needs="20,000 chains, whose own scatter is a distance of 0.02",
    ),
    observe(
        "order",
        "Eq. (2.16)",
        "At ten times the step and the same β the distance is larger: the law is of leading order.",
        Band.at_least(0.0, "closed form"),
    ),
    observe(
        "anisotropic",
        "Eq. (2.14)",
        "With anisotropic noise the covariance solves Lyapunov's equation within 0.05 of itself.",
        Band.at_most(0.05, "closed form"),
    ),
    observe(
        "no-detailed-balance",
        "Eq. (2.15)",
        "There the law of Eq. (2.15), covariance (η/2b) H⁻¹ times the mean noise, is off by more "
        "than 0.2 of the covariance: detailed balance needs isotropic noise.",
        Band.at_least(0.2, "closed form"),
    ),
)


class Config(Frozen):
    """Setting of the experiment."""

    chains: int = 20_000  # independent runs of SGD
    steps: tuple[float, ...] = (0.02, 0.2)  # learning rates
    beta: float = 8.0  # inverse temperature, kept by the batch size
    time: float = 60.0  # learning rate times updates
    batches: tuple[int, ...] = (1, 4, 16, 64)  # batch sizes whose noise is measured
    draws: int = 4_000  # mini-batches of each
    seeds: int = 5  # independent repetitions


PRESETS = presets(
    Config(),
    smoke=Config(chains=8_000, steps=(0.02, 0.2), time=60.0, batches=(1, 8), draws=300, seeds=2),
    paper=Config(chains=100_000, steps=(0.01, 0.02, 0.2), draws=40_000, seeds=10),
)


class Result(Frozen):
    """Noise, laws and covariances."""

    batches: np.ndarray  # (b,)
    variances: np.ndarray  # (seeds, b), of a mini-batch gradient, summed over directions
    steps: np.ndarray  # (h,)
    histograms: np.ndarray  # (seeds, h, bins), probabilities of the weights
    law: np.ndarray  # (bins,), those of exp(−βL)
    covariance: np.ndarray  # (seeds, 2, 2), of the weights under anisotropic noise
    lyapunov: np.ndarray  # (2, 2), as the Lyapunov equation predicts
    balance: np.ndarray  # (2, 2), as detailed balance would have it
    chains: int  # independent runs of SGD behind each histogram


def compute(config: Config, context: Context) -> Result:
    """Run the chains whose stationary law is compared, and measure the noise of the batch sizes."""
    seeds = [derive_seed(context.seed, "chains", number) for number in range(config.seeds)]
    measured = context.map(_run, [{**vars(config), "seed": s} for s in seeds], "chains")
    middle = (_EDGES[1:] + _EDGES[:-1]) / 2
    weights = np.exp(-config.beta * (middle**2 - 1) ** 2 / 4)
    noise = _scaled_noise(config.steps[0], config.beta)
    return Result(
        batches=np.array(config.batches),
        steps=np.array(config.steps),
        **stack(measured, "variances", "histograms", "covariance"),
        law=weights / weights.sum(),
        chains=config.chains,
        lyapunov=stationary_covariance(_HESSIAN, noise, config.steps[0], "discrete"),
        balance=np.linalg.inv(_HESSIAN) / config.beta,
    )


def _run(item: Item) -> dict[str, Any]:
    rng = numpy_generator(item["seed"], "noise")
    histograms = []
    for step in item["steps"]:
        variance = 2 / (step * item["beta"])  # σ²/b, so that 2b/(ησ²) = β
        theta = np.ones(item["chains"])
        for _ in range(round(item["time"] / step)):
            noise = np.sqrt(variance) * rng.standard_normal(len(theta))
            theta = theta - step * (theta * (theta**2 - 1) + noise)
        histograms.append(np.histogram(theta, _EDGES)[0] / len(theta))
    return {
        "histograms": np.array(histograms),
        "variances": _batch_variances(item, rng),
        "covariance": _anisotropic(item, rng),
    }


def _batch_variances(item: Item, rng: np.random.Generator) -> np.ndarray:
    """Return the mini-batch gradient variance of the stationary law's regression, by batch size."""
    inputs = rng.standard_normal((500, 5)) * np.arange(1, 6)
    targets = inputs.sum(1) + rng.standard_normal(500)
    gradients = (inputs @ np.full(5, 0.8) - targets)[:, None] * inputs
    return np.array(
        [
            gradients[rng.integers(500, size=(item["draws"], size))].mean(1).var(0).sum()
            for size in item["batches"]
        ]
    )


def _anisotropic(item: Item, rng: np.random.Generator) -> np.ndarray:
    """Return the stationary covariance of SGD in a quadratic well with anisotropic noise."""
    step = item["steps"][0]
    factor = np.linalg.cholesky(_scaled_noise(step, item["beta"]))
    theta = np.zeros((item["chains"], 2))
    for _ in range(round(item["time"] / step / 3)):  # no barrier: a third is six relaxation times
        noise = rng.standard_normal(theta.shape) @ factor.T
        theta = theta - step * (theta @ _HESSIAN + noise)
    return np.cov(theta.T)


def _scaled_noise(step: float, beta: float) -> np.ndarray:
    """Return Σ/b whose mean is the stationary law's noise at inverse temperature β."""
    return _NOISE * 2 / (step * beta) / (np.trace(_NOISE) / 2)


def _distances(result: Result) -> np.ndarray:
    """Return total variation distances of histograms from the stationary law, (seeds, h)."""
    return np.abs(result.histograms - result.law).sum(-1) / 2


def plot(result: Result) -> Figure:
    """Draw noise by batch size, weights beside the stationary law, covariances as ellipses."""
    figure, (left, middle, right) = new_figure(1, 3, width="full", ratio=1.0)
    mean = result.variances.mean(0)
    left.loglog(result.batches, mean, "o", color=COLORS[0], label="measured")
    left.loglog(result.batches, mean[0] * result.batches[0] / result.batches, "k:", label="1/b")
    left.set(xlabel="batch size $b$", ylabel="variance of the gradient")
    left.legend()
    width = _EDGES[1] - _EDGES[0]
    for color, step, counts in zip(COLORS, result.steps, result.histograms.mean(0), strict=False):
        middle.stairs(counts / width, _EDGES, color=color, label=rf"$\eta={step:g}$")
    middle.stairs(result.law / width, _EDGES, color="k", ls=":", label=r"$e^{-\beta L}$")
    middle.set(xlabel=r"$\theta$", ylabel="density", title="double well")
    middle.legend(loc="lower center", bbox_to_anchor=(0.5, 1.1), fontsize=7)
    angles = np.linspace(0, 2 * np.pi, 200)
    circle = np.array([np.cos(angles), np.sin(angles)])
    for matrix, style, label in (
        (result.covariance.mean(0), {"color": COLORS[0]}, "measured"),
        (result.lyapunov, {"color": "k", "ls": ":"}, "Lyapunov"),
        (result.balance, {"color": COLORS[1], "ls": "--"}, "Eq. (2.15)"),
    ):
        right.plot(*(np.linalg.cholesky(matrix) @ circle), **style, label=label)
    right.set(aspect="equal", xlabel=r"$\theta_1$", ylabel=r"$\theta_2$")
    right.set_title("anisotropic noise")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.1), fontsize=7)
    return figure


def measure(result: Result) -> Measurements:
    """Measure the noise's power, the distance from the stationary law, and anisotropy's effect."""
    logs = np.log(result.batches)
    slopes = [np.polyfit(logs, np.log(row), 1)[0] for row in result.variances]
    distances = _distances(result)
    size = np.linalg.norm(result.covariance, axis=(1, 2))

    def missed(matrix: np.ndarray) -> np.ndarray:
        return np.linalg.norm(result.covariance - matrix, axis=(1, 2)) / size

    steps = ", ".join(f"{value:.3f}" for value in distances.mean(0))
    return {
        "noise-by-batch": over_seeds(slopes, f"b from {result.batches[0]} to {result.batches[-1]}"),
        "gibbs-law": over_seeds(
            distances[:, 0],
            f"distances at steps {', '.join(map(str, result.steps))}: {steps}",
            comparable=result.chains >= 20_000,
        ),
        "order": over_seeds(distances[:, -1] - distances[:, 0], "difference of the distances"),
        "anisotropic": over_seeds(missed(result.lyapunov), "relative Frobenius distance"),
        "no-detailed-balance": over_seeds(missed(result.balance), "relative Frobenius distance"),
    }

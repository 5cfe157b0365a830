"""The parts of the PCA matrix in closed form and from training, shared by Figs. 3 and 5."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes

from hyperribbon.papers.experiments.judging import Observed, exact
from hyperribbon.papers.experiments.kit import COLORS, Context, Frozen, presets
from hyperribbon.papers.experiments.ribbons._shared import CIRCLES, Trained, training_item
from hyperribbon.theory.ribbons import Ribbon

_LATE = (10**6, 10**7)
"""Training times far beyond 1/(αλn), which is 18,000 steps in this setting."""


class Config(Frozen):
    """Setting of Fig. 5 of [ribbons]."""

    samples: int = 50  # n
    dimensions: int = 100  # d of the inputs
    slope: float = 0.2  # c
    steps: int = 50  # T
    variance_w: float = 0.1  # σw²
    variance_star: float = 2.0  # σ*²
    alpha: float = 1.0  # learning rate
    batches: int = 10  # independent batches of trained models
    initialisations: int = 1000  # models in a batch
    draws: int = 2000  # draws of the true weights, for the spread of the targets' norm


PRESETS = presets(
    Config(),
    smoke=Config(batches=3, initialisations=100, draws=50),
    paper=Config(batches=40, draws=20_000),
)


class Result(Frozen):
    """Eigenvalues of the parts of P, each (n,), descending."""

    P: np.ndarray  # covariance of all points
    P1: np.ndarray  # their second moment
    P1_y: np.ndarray  # part of the targets
    P1_sigma: np.ndarray  # part of the initial weights
    lambda_P2: float  # the eigenvalue of P₂
    norms: np.ndarray  # (draws,), ‖y‖²/(σ*² tr K) of drawn targets
    simulated: np.ndarray  # (batches, n), eigenvalues of P(N, T), one row for each batch alone
    simulated_together: np.ndarray  # (n,), of all batches together
    # (batches,), their second moments along the three leading eigenvectors of P₁, over the closed
    # form
    projections: np.ndarray
    mean_exponent: float  # d ln λ(P₂)/d ln T where T ≫ 1/(αλn)
    initialisations: int  # N of all batches together
    steps: int  # T


def compute(config: Config, context: Context) -> Result:
    """Evaluate the parts of P in closed form and train models beside them."""
    sigma = {"sigma_star": config.variance_star**0.5, "sigma_w": config.variance_w**0.5}
    setting: dict[str, Any] = {**sigma, "alpha": config.alpha}
    ribbon = Ribbon.exponential(config.samples, config.slope, steps=config.steps, **setting)
    rng = context.rng("targets")
    drawn = [
        Ribbon.exponential(config.samples, config.slope, rng=rng, **sigma).targets
        for _ in range(config.draws)
    ]
    own = {"dimensions": config.dimensions, "slope": config.slope, "steps": [config.steps]}
    items = [
        training_item(config, context, "weights", batch, **own, **setting)
        for batch in range(config.batches)
    ]
    trained = Trained(context, items)
    late = [
        Ribbon.exponential(config.samples, config.slope, steps=steps, **setting).spectrum("P2")[0]
        for steps in _LATE
    ]
    return Result(
        **{part: ribbon.spectrum(part) for part in ("P", "P1", "P1_y", "P1_sigma")},
        lambda_P2=float(ribbon.spectrum("P2")[0]),
        norms=(np.square(drawn).sum(axis=1)) / (config.variance_star * ribbon.eigenvalues.sum()),
        simulated=trained.each[:, 0],
        simulated_together=trained.together[0],
        projections=trained.projections,
        mean_exponent=float(np.diff(np.log(late))[0] / np.diff(np.log(_LATE))[0]),
        initialisations=config.batches * config.initialisations,
        steps=config.steps,
    )


def handover(result: Result) -> int:
    """Return the first index, from 1, at which P₁^y, the targets' part, is below P₁^σ."""
    return int((result.P1_y < result.P1_sigma).argmax()) + 1


def measure_head_and_tail(result: Result, whole: Literal["P", "P1"]) -> dict[str, Observed]:
    """Measure which eigenvalues of P or P₁ are nearer, in logarithms, to P₁^y than to P₁^σ.

    Args:
        result: The spectra.
        whole: Which of them is compared with its parts.
    """
    values = getattr(result, whole)
    logs = np.log(np.maximum([values, result.P1_y, result.P1_sigma], 1e-300))
    nearer_targets = np.abs(logs[0] - logs[1]) < np.abs(logs[0] - logs[2])
    last = handover(result) - 1
    head = np.abs(values[:3] / result.P1_y[:3] - 1).max()
    tail = np.abs(values[10:] / result.P1_sigma[10:] - 1).max()
    return {
        "head": exact(
            nearer_targets[:last].mean(),
            f"share of the first {last} indices; the first three differ by {head:.1%} at most",
        ),
        "tail": exact(
            1 - nearer_targets[last:].mean(),
            f"share of the indices from {last + 1} on; beyond 10 they differ by {tail:.1%} at most",
        ),
    }


def decay_ratio(result: Result) -> float:
    """Return how many times as fast P falls as its part P₁^y, before the handover."""
    last = max(handover(result) - 2, 1)
    fall = np.log([spectrum[0] / spectrum[last] for spectrum in (result.P, result.P1_y)])
    return float(fall[0] / fall[1])


def draw_parts(axis: Axes, result: Result, color: str) -> None:
    """Draw the eigenvalues of both parts of P₁ and, in a colour, those of trained models."""
    index, visible = np.arange(1, len(result.P) + 1), result.P1_y > 1e-9
    initial, trained = r"$P_1^{\sigma_w}$, initial weights", result.simulated_together
    axis.semilogy(index[visible], result.P1_y[visible], color=COLORS[0], label="$P_1^y$, targets")
    axis.semilogy(index, result.P1_sigma, color=COLORS[1], label=initial)
    label = f"$P(N,T)$, $N={result.initialisations}$ models"
    axis.semilogy(index[::2], trained[::2], **CIRCLES, color=color, label=label)
    axis.set(xlabel="index $i$", ylabel="eigenvalue", ylim=(1e-8, 2))
    axis.legend(loc="lower left", bbox_to_anchor=(0.2, 0.0), labelspacing=0.2)

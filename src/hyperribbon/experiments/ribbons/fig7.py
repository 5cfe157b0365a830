"""Fig. 7 of [ribbons]: the spectrum of trained models by training time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim, derive_seed
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.ribbons._simulation import (
    moments_of_training,
    pca_spectra,
    projected_variances,
    simulation_says,
)
from hyperribbon.experiments.statements import Ledger, observe, over_seeds, says
from hyperribbon.plots.style import SEQUENTIAL, new_figure
from hyperribbon.theory.ribbons import Ribbon

ID = "ribbons/fig7"
TITLE = "Eigenvalues of P(N, T) by training time"

_SETTING = (
    "d = 100, n = 50, c = 0.1, σw² = 1, α = 1/λ1 as printed, σ* = 3 for the paper does not state it"
)
_AS_PLOTTED = (
    "; of T·P, whose eigenvalues Sec. II.C means by λ and to which the caption refers (Fig. 4)"
)
_CHANGED = "2026-11-17: judged of P before, whose points are a mean over T"
LEDGER = Ledger(
    ID,
    says(
        "tail-grows",
        "Fig. 7, caption",
        "As training time T increases, the eigenvalues in the tail increase in magnitude",
        "The last eigenvalue of T·P(N,T) is larger at the last training time than at the second.",
        Band.at_least(1.0, "printed"),
        setting=_SETTING + _AS_PLOTTED,
        changed=_CHANGED,
    ),
    says(
        "head-grows",
        "Fig. 7, caption",
        "This also causes an increase in the largest eigenvalue in the head, due to the "
        "diminishing magnitude of P2(T)",
        "The largest eigenvalue of T·P(N,T) is larger at the last training time than at the "
        "second.",
        Band.at_least(1.0, "printed"),
        setting=_SETTING + _AS_PLOTTED,
        changed=_CHANGED,
    ),
    simulation_says(_SETTING),
    observe(
        "tail-share",
        "Fig. 7",
        "The tail grows relative to the head, λn/λ1.",
        Band.at_least(1.0, "words"),
    ),
    observe(
        "tail-of-P",
        "Fig. 7",
        "The last eigenvalue of P itself, a mean over the steps, falls with the training time.",
        Band.at_most(1.0, "words"),
    ),
)


@dataclass(frozen=True)
class Config:
    """Setting of the figure; the paper does not state σ*.

    Attributes:
        samples: n.
        dimensions: d.
        slope: c.
        sigma_w: Standard deviation of the initial weights.
        sigma_star: Standard deviation of the true weights.
        steps: Training times.
        batches: Independent batches of models.
        initialisations: Models in a batch.
    """

    samples: int = 50
    dimensions: int = 100
    slope: float = 0.1
    sigma_w: float = 1.0
    sigma_star: float = 3.0
    steps: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    batches: int = 8
    initialisations: int = 500


PRESETS = {
    "smoke": Config(steps=(1, 4, 16, 64, 128), batches=2, initialisations=200),
    "laptop": Config(),
    "paper": Config(steps=(1, 4, 16, 64, 256, 1024, 4096), batches=20),
}


@dataclass(frozen=True)
class Result:
    """Eigenvalues by training time.

    Attributes:
        steps: (t,).
        closed_form: (t, n), of P(T).
        simulated: (t, n), of P(N, T), all batches together.
        batches: (b, t, n), each batch alone.
        projections: (b,), second moments of each batch along the three leading eigenvectors of
            P₁ over the closed form, mean over training times.
        lambda_P2: (t,), the eigenvalue of P₂.
        initialisations: N of all batches.
    """

    steps: np.ndarray
    closed_form: np.ndarray
    simulated: np.ndarray
    batches: np.ndarray
    projections: np.ndarray
    lambda_P2: np.ndarray
    initialisations: int


def compute(config: Config, context: Context) -> Result:
    """Train models and evaluate the closed form at the same times."""
    setting: dict[str, Any] = {
        "sigma_w": config.sigma_w,
        "sigma_star": config.sigma_star,
        "alpha": 1.0,
    }
    items = [
        {
            "samples": config.samples,
            "dimensions": config.dimensions,
            "slope": config.slope,
            "steps": list(config.steps),
            "initialisations": config.initialisations,
            "inputs_seed": derive_seed(context.seed, "inputs"),
            "seed": derive_seed(context.seed, "weights", batch),
            **setting,
        }
        for batch in range(config.batches)
    ]
    moments = context.map(moments_of_training, items, "gradient descent")
    ribbons = [
        Ribbon.exponential(config.samples, config.slope, steps=steps, **setting)
        for steps in config.steps
    ]
    count = config.initialisations
    return Result(
        steps=np.array(config.steps),
        closed_form=np.array([ribbon.spectrum() for ribbon in ribbons]),
        simulated=pca_spectra(moments, count, config.steps),
        batches=np.array([pca_spectra([batch], count, config.steps) for batch in moments]),
        projections=np.array(
            [
                np.mean([projected_variances(*pair, t)[:3] for t in range(len(config.steps))])
                for pair in zip(items, moments, strict=True)
            ]
        ),
        lambda_P2=np.array([ribbon.spectrum("P2")[0] for ribbon in ribbons]),
        initialisations=count * config.batches,
    )


def plot(result: Result) -> Figure:
    """Draw P and T·P by training time: the tail falls in the one and rises in the other."""
    figure, (left, right) = new_figure(1, 2, width="full", ratio=0.75)
    index = np.arange(1, result.closed_form.shape[1] + 1)
    colors = colormaps[SEQUENTIAL](np.linspace(0, 0.9, len(result.steps)))
    for color, steps, truth, simulated in zip(
        colors, result.steps, result.closed_form, result.simulated, strict=True
    ):
        for axis, scale in ((left, 1), (right, steps)):
            axis.semilogy(index, scale * truth, color=color, label=f"$T={steps}$")
            axis.semilogy(index[::3], scale * simulated[::3], "o", color=color, mfc="white", ms=3)
    left.set(xlabel="index $i$", ylabel="eigenvalue of $P(T)$", title="(a) covariance")
    right.set(
        xlabel="index $i$", ylabel=r"eigenvalue of $T\cdot P(T)$", title="(b) summed over the steps"
    )
    left.legend(ncols=2, loc="upper right", title="lines: closed form, circles: trained")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge what training longer does to tail and head."""
    first, last = (1 if len(result.steps) > 1 else 0), -1
    times = f"T = {result.steps[first]} to {result.steps[last]}, one value a batch of models"
    heads, tails = result.batches[:, :, 0], result.batches[:, :, -1]
    longer = result.steps[last] / result.steps[first]

    def growth(values: np.ndarray) -> np.ndarray:
        return values[:, last] / values[:, first]

    return LEDGER.judge(
        {
            "tail-grows": over_seeds(longer * growth(tails), times),
            "head-grows": over_seeds(longer * growth(heads), times),
            "simulation": over_seeds(result.projections, "one value a batch of models"),
            "tail-share": over_seeds(growth(tails / heads), times),
            "tail-of-P": over_seeds(growth(tails), times),
        }
    )

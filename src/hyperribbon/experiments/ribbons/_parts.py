"""The parts of the PCA matrix in closed form and from training, shared by Figs. 3 and 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hyperribbon.core import derive_seed
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.ribbons._simulation import (
    moments_of_training,
    pca_spectra,
    projected_variances,
)
from hyperribbon.theory.ribbons import Ribbon

__all__ = ["PRESETS", "Config", "Result", "compute", "nearer_to_targets"]

_LATE = (10**6, 10**7)
"""Training times far beyond 1/(αλn), which is 18,000 steps in this setting."""


@dataclass(frozen=True)
class Config:
    """Setting of Fig. 5 of [ribbons].

    Attributes:
        samples: n.
        dimensions: d of the inputs.
        slope: c.
        steps: T.
        variance_w: σw².
        variance_star: σ*².
        alpha: Learning rate.
        batches: Independent batches of trained models.
        initialisations: Models in a batch.
        draws: Draws of the true weights, for the spread of the dimension.
    """

    samples: int = 50
    dimensions: int = 100
    slope: float = 0.2
    steps: int = 50
    variance_w: float = 0.1
    variance_star: float = 2.0
    alpha: float = 1.0
    batches: int = 10
    initialisations: int = 1000
    draws: int = 2000


PRESETS = {
    "smoke": Config(batches=3, initialisations=100, draws=50),
    "laptop": Config(),
    "paper": Config(batches=40, draws=20_000),
}


@dataclass(frozen=True)
class Result:
    """Eigenvalues of the parts of P, each (n,), descending.

    Attributes:
        P: Covariance of all points.
        P1: Their second moment.
        P1_y: Part of the targets.
        P1_sigma: Part of the initial weights.
        lambda_P2: The eigenvalue of P₂.
        dimensions: For 95% of the variance of P, with fixed targets.
        drawn_dimensions: (draws,), the same for drawn targets.
        simulated: (batches, n), eigenvalues of P(N, T), one row for each batch alone.
        simulated_together: (n,), of all batches together.
        projections: (batches,), their second moments along the three leading eigenvectors of P₁,
            over the closed form.
        mean_exponent: d ln λ(P₂)/d ln T where T ≫ 1/(αλn).
        initialisations: N of all batches together.
        steps: T.
    """

    P: np.ndarray
    P1: np.ndarray
    P1_y: np.ndarray
    P1_sigma: np.ndarray
    lambda_P2: float
    dimensions: int
    drawn_dimensions: np.ndarray
    simulated: np.ndarray
    simulated_together: np.ndarray
    projections: np.ndarray
    mean_exponent: float
    initialisations: int
    steps: int


def compute(config: Config, context: Context) -> Result:
    """Evaluate the closed form and train models beside it."""
    setting: dict[str, Any] = {
        "sigma_star": config.variance_star**0.5,
        "sigma_w": config.variance_w**0.5,
        "alpha": config.alpha,
    }
    ribbon = Ribbon.exponential(config.samples, config.slope, steps=config.steps, **setting)
    rng = context.rng("targets")
    drawn = [
        Ribbon.exponential(
            config.samples, config.slope, steps=config.steps, rng=rng, **setting
        ).dimensions()
        for _ in range(config.draws)
    ]
    items = [
        {
            "samples": config.samples,
            "dimensions": config.dimensions,
            "slope": config.slope,
            "steps": [config.steps],
            "initialisations": config.initialisations,
            "inputs_seed": derive_seed(context.seed, "inputs"),
            "seed": derive_seed(context.seed, "weights", batch),
            **setting,
        }
        for batch in range(config.batches)
    ]
    moments = context.map(moments_of_training, items, "gradient descent")
    late = [
        Ribbon.exponential(config.samples, config.slope, steps=steps, **setting).spectrum("P2")[0]
        for steps in _LATE
    ]
    each = [pca_spectra([batch], config.initialisations, (config.steps,))[0] for batch in moments]
    return Result(
        P=ribbon.spectrum("P"),
        P1=ribbon.spectrum("P1"),
        P1_y=ribbon.spectrum("P1_y"),
        P1_sigma=ribbon.spectrum("P1_sigma"),
        lambda_P2=float(ribbon.spectrum("P2")[0]),
        dimensions=ribbon.dimensions(),
        drawn_dimensions=np.array(drawn),
        simulated=np.array(each),
        simulated_together=pca_spectra(moments, config.initialisations, (config.steps,))[0],
        projections=np.array(
            [projected_variances(*pair)[:3].mean() for pair in zip(items, moments, strict=True)]
        ),
        mean_exponent=float(np.diff(np.log(late))[0] / np.diff(np.log(_LATE))[0]),
        initialisations=config.batches * config.initialisations,
        steps=config.steps,
    )


def nearer_to_targets(result: Result, whole: Literal["P", "P1"]) -> tuple[np.ndarray, int]:
    """Return which eigenvalues of P or P₁ are nearer to P₁^y than to P₁^σ, and the handover.

    Distances are those of logarithms; the handover is the first index, counted from 1, at which
    the part of the targets is below that of the initial weights.
    """
    logs = np.log(np.maximum([getattr(result, whole), result.P1_y, result.P1_sigma], 1e-300))
    handover = int((result.P1_y < result.P1_sigma).argmax()) + 1
    return np.abs(logs[0] - logs[1]) < np.abs(logs[0] - logs[2]), handover

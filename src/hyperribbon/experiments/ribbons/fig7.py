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
    sampling_band,
)
from hyperribbon.plots.style import SEQUENTIAL, new_figure
from hyperribbon.theory.ribbons import Ribbon

ID = "ribbons/fig7"
TITLE = "Eigenvalues of P(N, T) by training time"


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
        lambda_P2: (t,), the eigenvalue of P₂.
        initialisations: N of all batches.
    """

    steps: np.ndarray
    closed_form: np.ndarray
    simulated: np.ndarray
    batches: np.ndarray
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
    times = f"T = {result.steps[first]} to {result.steps[last]}"
    tails = result.simulated[:, -1]
    scaled = tails * result.steps
    share = tails / result.simulated[:, 0]
    top = result.closed_form[:, 0]
    widest = result.closed_form[(result.closed_form.sum(axis=1) / top).argmax()]
    ratio = (result.batches[:, :, :5].sum(axis=2) / result.closed_form[:, :5].sum(axis=1)).mean(
        axis=1
    )
    return [
        Claim.judge(
            f"{ID}/tail-grows",
            place="Fig. 7, caption",
            statement="Eigenvalues in the tail of P(N,T) grow with the training time",
            expected=Band.at_least(1.0, "paper"),
            measured=tails[last] / tails[first],
            why=f"last eigenvalue, {times}: each point's share is divided by T, and P is a mean",
        ),
        Claim.judge(
            f"{ID}/tail-grows-summed",
            place="Fig. 4 and Eq. (9)",
            statement="Eigenvalues in the tail of T·P(N,T) grow with the training time",
            expected=Band.at_least(1.0, "closed form"),
            measured=scaled[last] / scaled[first],
            why=f"T times the last eigenvalue, {times}",
        ),
        Claim.judge(
            f"{ID}/tail-share",
            place="Fig. 7, caption",
            statement="The tail grows relative to the head",
            expected=Band.at_least(1.0, "verification"),
            measured=share[last] / share[first],
            why=f"λn/λ1 of P(N,T), {times}",
        ),
        Claim.judge(
            f"{ID}/head-grows",
            place="Fig. 7, caption",
            statement="The largest eigenvalue grows with T, because P2 diminishes",
            expected=Band.at_least(1.0, "paper"),
            measured=top[last] / top[first],
            why=f"λ1 of P, {times}: it rises to {top.max():.3g} at T = "
            f"{result.steps[top.argmax()]} and falls as converged points dilute the mean",
        ),
        Claim.judge(
            f"{ID}/simulation",
            place="Eqs. (3) and (5)",
            statement="P(N,T) of trained models has the closed form's five largest eigenvalues",
            expected=sampling_band(widest, result.initialisations // len(result.batches)),
            measured=ratio.mean(),
            uncertainty=ratio.std(ddof=1) / np.sqrt(len(ratio)),
            why="mean over training times, independent batches",
        ),
    ]

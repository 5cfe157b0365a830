"""Fluctuation spectrum of a two-layer network from a nearly balanced, small start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import two_layer_ensemble
from hyperribbon.experiments.fluctuations._two_layer import (
    draw_first_layer,
    first_layer_spectra,
    measure_modes,
    two_layer_item,
)
from hyperribbon.plots.style import COLORS, new_figure

ID = "fluctuations/fig8b"
TITLE = "Fluctuations from a small start"


@dataclass(frozen=True)
class Config:
    """Network and task of the figure, initial variances 10⁻⁴/N; a larger batch than printed."""

    inputs: int = 30
    hidden: int = 20
    samples: int = 3000
    target_variance: float = 0.1
    lr: float = 0.1
    batch_size: int = 100
    steps: int = 6000
    chains: int = 2000
    init1: float = 1e-4
    init2: float = 1e-4


PRESETS = {
    "smoke": Config(inputs=8, hidden=5, samples=400, steps=500, chains=300, init1=1e-3, init2=1e-3),
    "laptop": Config(),
    "paper": Config(chains=4000),
}


@dataclass(frozen=True)
class Result:
    """Spectra in units λσ²/(2S), σ² unexplained."""

    inputs: int
    chains: int
    modal: np.ndarray
    predicted: np.ndarray
    second: np.ndarray
    first: np.ndarray
    first_predicted: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Measure both layers' fluctuations in an ensemble begun at the solution."""
    item = two_layer_item(seed=context.seed, **vars(config))
    ensemble = context.shared(two_layer_ensemble, item, "chains of SGD")
    found = measure_modes(item, ensemble)
    return Result(
        config.inputs,
        config.chains,
        found.variances,
        found.predicted,
        np.linalg.eigvalsh(np.cov(found.z2.T))[::-1] / found.unit,
        *first_layer_spectra(found, ensemble["chains1"]),
    )


def plot(result: Result) -> Figure:
    """Draw the spectra of both layers."""
    figure, axis = new_figure(width="column", ratio=0.85)
    modes = np.arange(1, len(result.second) + 1)
    axis.semilogy(modes, result.second, "o", color=COLORS[0], label=r"$\delta W_2$, ensemble")
    axis.semilogy(modes, result.predicted, "-", color=COLORS[0], label=r"$\delta W_2$, Eq. (3.34)")
    draw_first_layer(axis, result.first, result.first_predicted)
    axis.set_ylim(1e-5, 10)
    axis.set_xlabel("mode")
    axis.set_ylabel(r"eigenvalues [$\lambda\sigma_y^2/2S$]")
    axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the single leading mode of the second layer and the rank of the first."""
    ratio = result.modal[0] / result.predicted[0]
    inside = result.first[: result.inputs].sum() / result.first.sum()
    return [
        Claim.judge(
            f"{ID}/single-mode",
            place="Fig. 8(b), Sec. III B 4",
            statement="Near balance the second layer fluctuates in a single mode.",
            expected=Band(0.9, 1.0, "paper"),
            measured=float(result.modal[0] / result.modal.sum()),
            why="Share of the variance of δW₂ in the first mode of W₁W₁ᵀ.",
        ),
        Claim.judge(
            f"{ID}/leading-variance",
            place="Eq. (3.34)",
            statement="Its variance is D₁/(D₁+D₂), about one half.",
            expected=Band(0.85, 1.15, "verification"),
            measured=float(ratio),
            uncertainty=float(ratio * np.sqrt(2 / (result.chains - 1))),
            why="Measured over predicted variance of the leading mode.",
        ),
        Claim.judge(
            f"{ID}/first-layer-rank",
            place="Sec. III C 2",
            statement="Eigenvalues of cov δW₁ beyond N_i nearly vanish.",
            expected=Band(0.95, 1.0, "paper"),
            measured=float(inside),
            why="Share of the variance of δW₁ in its first N_i modes.",
        ),
    ]

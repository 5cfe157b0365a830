"""Covariance of all weights of a two-layer network in the basis of its layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import two_layer_ensemble
from hyperribbon.experiments.fluctuations._two_layer import measure_modes, two_layer_item
from hyperribbon.plots.style import DIVERGING, new_figure
from hyperribbon.theory import fluctuations as theory

ID = "fluctuations/fig8a"
TITLE = "Covariance of a two-layer network"


@dataclass(frozen=True)
class Config:
    """Network, task and ensemble of Fig. 8(c)."""

    inputs: int = 30
    hidden: int = 20
    samples: int = 3000
    target_variance: float = 0.1
    lr: float = 0.1
    batch_size: int = 10
    steps: int = 3000
    chains: int = 1500


PRESETS = {
    "smoke": Config(inputs=8, hidden=5, samples=400, steps=400, chains=300, batch_size=50),
    "laptop": Config(),
    "paper": Config(chains=4000),
}


@dataclass(frozen=True)
class Result:
    """Predicted and measured covariance of Z = (z₁, z₂) in units λσ²/(2S), σ² unexplained."""

    inputs: int
    predicted: np.ndarray
    measured: np.ndarray
    rank: int
    chains: int


def compute(config: Config, context: Context) -> Result:
    """Evaluate Eq. (3.30) at the ensemble's mean and measure the same matrix."""
    item = two_layer_item(seed=context.seed, **vars(config))
    found = measure_modes(item, context.shared(two_layer_ensemble, item, "chains of SGD"))
    M = theory.layer_covariance(found.modes, 2.0, 1, 1.0)
    measured = np.cov(np.hstack([found.z1, found.z2]).T) / found.unit
    return Result(
        config.inputs, M, measured, int(np.linalg.matrix_rank(M, tol=1e-9)), config.chains
    )


def plot(result: Result) -> Figure:
    """Draw both matrices."""
    figure, axes = new_figure(columns=2, width="full", ratio=0.9, sharey=True)
    for axis, matrix, name in zip(
        axes, (result.predicted, result.measured), ("Eq. (3.30)", "ensemble of SGD"), strict=True
    ):
        image = axis.imshow(matrix, cmap=DIVERGING, vmin=-1, vmax=1)
        axis.axhline(result.inputs - 0.5, color="k", lw=0.6)
        axis.axvline(result.inputs - 0.5, color="k", lw=0.6)
        axis.set_title(name)
        axis.set_xlabel("$z_1$ | $z_2$")
    figure.colorbar(image, ax=list(axes), label=r"$M$ [$\lambda\sigma_y^2/2S$]", shrink=0.8)
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the diagonal block, the rank, and the measured matrix."""
    second = result.predicted[result.inputs :, result.inputs :]
    off = second - np.diag(np.diag(second))
    difference = result.measured - result.predicted
    noise = np.sqrt(
        np.outer(np.diag(result.predicted), np.diag(result.predicted)) + result.predicted**2
    )
    excess = np.sqrt(np.mean(difference**2)) / np.sqrt(np.mean(noise**2) / result.chains)
    return [
        Claim.judge(
            f"{ID}/diagonal",
            place="Fig. 8(a), Eq. (3.34)",
            statement="The covariance of the second layer is diagonal in this basis.",
            expected=Band(0.0, 1e-10, "closed form"),
            measured=float(abs(off).max()),
            why="Largest off-diagonal entry of M₂₂ from Eq. (3.30).",
        ),
        Claim.judge(
            f"{ID}/rank",
            place="Eq. (3.32)",
            statement="M has rank N_oN_i.",
            expected=Band(result.inputs, result.inputs, "closed form"),
            measured=result.rank,
            why="Numerical rank of M.",
        ),
        Claim.judge(
            f"{ID}/measured",
            place="Fig. 8(a)",
            statement="SGD shows this matrix (deviations below three times the sampling error).",
            expected=Band.at_most(3.0, "verification"),
            measured=float(excess),
            why="Root mean square deviation of an ensemble's covariance over its sampling error.",
        ),
    ]

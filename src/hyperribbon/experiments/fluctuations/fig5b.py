"""Spectrum of the weight covariance in the stationary state, measured and predicted."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import (
    simulate_fluctuations,
    simulation_item,
    spectral_errors,
    unit_weights,
)
from hyperribbon.plots.style import SEQUENTIAL, new_figure
from hyperribbon.theory import fluctuations as theory

ID = "fluctuations/fig5b"
TITLE = "Spectrum of the weight covariance"


@dataclass(frozen=True)
class Config:
    """Task, learning rate and batch of the figure; chains and their length at each ratio."""

    inputs: int = 100
    ratios: tuple[float, ...] = (1.1, 1.2, 1.5, 2.0, 4.0, 10.0)
    steps: tuple[int, ...] = (400_000, 400_000, 400_000, 400_000, 400_000, 400_000)
    chains: int = 64
    anneal: float = 10.0
    label_variance: float = 0.01
    lr: float = 0.1
    batch_size: int = 10


PRESETS = {
    "smoke": Config(inputs=20, ratios=(1.5, 4.0), steps=(4000, 4000)),
    "laptop": Config(),
    "paper": Config(
        ratios=(1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 10.0),
        steps=(5_000_000, 2_000_000, *(1_000_000,) * 5),
        chains=128,
        anneal=1.0,
    ),
}


@dataclass(frozen=True)
class Result:
    """Ordered eigenvalues (ratios, N) in units λσε²/(2S); errors against both theories."""

    ratios: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    discrete: np.ndarray
    balance: np.ndarray
    mean_error: np.ndarray
    worst_error: np.ndarray
    discrete_mean_error: np.ndarray
    discrete_worst_error: np.ndarray
    burn_in: np.ndarray
    trace_ratio: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Accumulate M over long chains and compare with Eq. (2.30) on the same data."""
    items = [
        simulation_item(config, context.seed, samples=round(ratio * config.inputs), steps=steps)
        for ratio, steps in zip(config.ratios, config.steps, strict=True)
    ]
    parts = context.map(simulate_fluctuations, items, label="chains of SGD")
    unit = unit_weights(config.lr, config.batch_size, config.label_variance)

    def spectra(key: str) -> np.ndarray:
        return np.array([np.linalg.eigvalsh(part[key])[::-1] for part in parts]) / unit

    balance = [
        np.linalg.eigvalsh(
            theory.detailed_balance_covariance(part["hessian"], part["theory_noise"], config.lr)
        )[::-1]
        for part in parts
    ]
    continuous = [spectral_errors(part["covariance"], part["theory"]) for part in parts]
    discrete = [spectral_errors(part["covariance"], part["discrete"]) for part in parts]
    return Result(
        np.array(config.ratios),
        spectra("covariance"),
        spectra("theory"),
        spectra("discrete"),
        np.array(balance) / unit,
        *np.array(continuous).T,
        *np.array(discrete).T,
        burn_in=np.array([part["burn_in"] for part in parts]),
        trace_ratio=np.array([np.trace(p["covariance"]) / np.trace(p["theory"]) for p in parts]),
    )


def plot(result: Result) -> Figure:
    """Draw the ordered eigenvalues for every ratio."""
    figure, axis = new_figure(width="column", ratio=0.95)
    colors = mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.85, len(result.ratios)))
    index = np.arange(1, result.measured.shape[1] + 1)
    for row, (ratio, color) in enumerate(zip(result.ratios, colors, strict=True)):
        axis.semilogy(index, result.measured[row], color=color, lw=3, alpha=0.35)
        axis.semilogy(
            index, result.predicted[row], "--", color=color, lw=1, label=f"P/N = {ratio:g}"
        )
        axis.semilogy(index, result.balance[row], ":", color=color, lw=0.9)
    axis.axhline(1, color="k", ls="-.", lw=0.9)
    axis.set_ylim(result.balance.min() / 2, None)
    axis.set_xlabel("mode")
    axis.set_ylabel(r"eigenvalues of $M$ [$\lambda\sigma_\epsilon^2/2S$]")
    axis.set_title("broad: SGD · dashed: Eq. (2.30) · dotted: detailed balance", fontsize=7)
    axis.legend(fontsize=7)
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge mean and worst error of the spectrum at each of the three test ratios."""
    judged = []
    for ratio in (1.1, 2.0, 10.0):
        if ratio not in result.ratios:
            continue
        row = int(np.argmin(abs(result.ratios - ratio)))
        for name, value, bound in (
            ("mean", result.mean_error[row], 0.05),
            ("worst", result.worst_error[row], 0.15),
        ):
            judged.append(
                Claim.judge(
                    f"{ID}/{name}-error-{ratio:g}",
                    place="Fig. 5(b), Eq. (2.30)",
                    statement=f"SGD's spectrum of M follows Eq. (2.30) at P/N = {ratio:g}: "
                    f"{name} relative error of the eigenvalues.",
                    expected=Band.at_most(bound, "verification"),
                    measured=value,
                    why=f"Same data, burn-in of {result.burn_in[row]} steps in every chain.",
                )
            )
    gap = abs(np.log(result.balance / result.predicted)).max(axis=1)
    return [
        *judged,
        Claim.judge(
            f"{ID}/discrete",
            place="Fig. 5(b)",
            statement="The exact discrete-time covariance is at least as close as Eq. (2.30).",
            expected=Band.at_most(1.05, "verification"),
            measured=result.discrete_mean_error.mean() / result.mean_error.mean(),
            why="Mean spectral error against the discrete form over that against Eq. (2.30).",
        ),
        Claim.judge(
            f"{ID}/broken-balance",
            place="Fig. 5(b)",
            statement="Near the threshold detailed balance is broken visibly.",
            expected=Band.at_least(np.log(2), "paper"),
            measured=gap[0],
            why=f"Largest |log ratio| of the eigenvalues, P/N = {result.ratios[0]:g}.",
        ),
    ]

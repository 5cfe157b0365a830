"""Spectrum of the gradient noise of SGD in the stationary state, measured and predicted."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np

from hyperribbon.experiments.fluctuations import _common
from hyperribbon.experiments.judging import Measurements, over_seeds
from hyperribbon.experiments.kit import Context, Figure, Frozen, presets
from hyperribbon.experiments.statements import Band, says
from hyperribbon.plots.style import SEQUENTIAL, new_figure
from hyperribbon.theory import fluctuations as theory

TITLE = "Spectrum of the gradient noise"

STATEMENTS = (
    says(
        "spectrum",
        "Sec. II B 2, on Fig. 3(a)",
        "The good agreement of the two spectra supports the validity of the additive noise "
        "approximation in this regime.",
        "The eigenvalues of SGD's noise covariance are those of Eq. (2.17) on the same data, on "
        "average within a tenth (a threshold to the words), at every P/N.",
        Band.at_most(_common.GOOD, "words"),
        setting="N = 100, λ = 0.1, S = 10, σε² = 0.01 as printed; the paper compares one data set "
        "with the mean over several, which the dotted lines show",
        needs="N = 100 and 20,000 steps of 128 chains",
        changed="2026-11-17: two bands before, 2% for P/N ≥ 2 and 20% near the threshold, neither "
        "the paper's",
    ),
)


class Config(Frozen):
    """Task, learning rate and batch of the figure; length of the simulation."""

    inputs: int = 100
    ratios: tuple[float, ...] = (1.1, 1.5, 2.0, 5.0, 10.0)
    label_variance: float = 0.01
    lr: float = 0.1
    batch_size: int = 10
    steps: int = 20_000
    chains: int = 128
    burn_in: int = 3000
    realisations: int = 20


PRESETS = presets(
    Config(),
    smoke=Config(inputs=20, ratios=(1.5, 4.0), steps=2000, burn_in=200, realisations=3),
    paper=Config(ratios=(1.1, 1.2, 1.5, 2.0, 5.0, 10.0, 50.0), steps=80_000, realisations=100),
)


class Result(Frozen):
    """Ordered eigenvalues (ratios, N) in units σx²σε²/S and errors of the spectra."""

    ratios: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    averaged: np.ndarray
    mean_error: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Measure C in chains of SGD and compare with Eq. (2.17) on the same data."""
    items = [
        _common.simulation_item(
            config, context.seed, samples=round(ratio * config.inputs), every=1, measure_noise=True
        )
        for ratio in config.ratios
    ]
    parts = context.map(_common.simulate_fluctuations, items, label="chains of SGD")
    unit = _common.unit_noise(config.inputs, config.batch_size, config.label_variance)
    errors = [_common.spectral_error(p["noise_covariance"], p["theory_noise"]) for p in parts]
    averaged = []
    for item in items:
        spectra = []
        for seed in _common.seeds(context.seed, config.realisations):
            X, Y, _ = _common.regression(
                item["inputs"], item["samples"], config.label_variance, seed
            )
            C = theory.noise_covariance(X, Y, config.batch_size)
            spectra.append(np.linalg.eigvalsh(C)[::-1])
        averaged.append(np.mean(spectra, axis=0) / unit)
    return Result(
        np.array(config.ratios),
        np.array([np.linalg.eigvalsh(p["noise_covariance"])[::-1] for p in parts]) / unit,
        np.array([np.linalg.eigvalsh(p["theory_noise"])[::-1] for p in parts]) / unit,
        np.array(averaged),
        np.array(errors),
    )


def plot(result: Result) -> Figure:
    """Draw the ordered eigenvalues of C for every ratio."""
    figure, axis = new_figure(width="column", ratio=0.85)
    colors = mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.85, len(result.ratios)))
    index = np.arange(1, result.measured.shape[1] + 1)
    for row, (ratio, color) in enumerate(zip(result.ratios, colors, strict=True)):
        axis.semilogy(index, result.measured[row], color=color, lw=3, alpha=0.35)
        axis.semilogy(index, result.predicted[row], color=color, lw=1, label=f"P/N = {ratio:g}")
        axis.semilogy(index, result.averaged[row], ":", color="0.2", lw=0.9)
    axis.set_ylim(max(1e-5, result.predicted.min() / 2), result.predicted.max() * 2)
    axis.set_xlabel("mode")
    axis.set_ylabel(r"eigenvalues of $C$  [$\sigma_x^2\sigma_\epsilon^2/S$]")
    axis.set_title("broad: SGD · thin: Eq. (2.17) · dotted: its mean over data", fontsize=7)
    axis.legend()
    return figure


def measure(result: Result) -> Measurements:
    """Measure the agreement of the spectra."""
    why = "mean relative error of the eigenvalues, one value a ratio: " + ", ".join(
        f"{error:.3f} at {ratio:g}"
        for ratio, error in zip(result.ratios, result.mean_error, strict=True)
    )
    return {"spectrum": over_seeds(result.mean_error, why)}

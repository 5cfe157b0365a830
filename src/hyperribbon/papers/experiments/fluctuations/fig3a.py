"""Spectrum of the gradient noise of SGD in the stationary state, measured and predicted."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, _regression
from hyperribbon.theory import fluctuations as theory

TITLE = "Spectrum of the gradient noise"

STATEMENTS = (
    kit.says(
        "spectrum",
        "Sec. II B 2, on Fig. 3(a)",
        "The good agreement of the two spectra supports the validity of the additive noise "
        "approximation in this regime.",
        "The eigenvalues of SGD's noise covariance are those of Eq. (2.17) on the same data, on "
        "average within a tenth (our threshold), at every P/N.",
        kit.Band.at_most(GOOD, "words"),
        setting="N = 100, λ = 0.1, S = 10, σε² = 0.01 as printed; the paper compares one data set "
        "with the mean over several, which the dotted lines show",
        needs="N = 100 and 20,000 steps of 128 chains",
        changed="2026-11-17: two bands before, 2% for P/N ≥ 2 and 20% near the threshold, neither "
        "the paper's",
    ),
)


class Config(_regression.RegressionConfig):
    """Input dimension and ratios P/N of Fig. 3(a) of [fluctuations]; length of the simulation."""

    inputs: int = 100
    ratios: tuple[float, ...] = (1.1, 1.5, 2.0, 5.0, 10.0)
    steps: int = 20_000
    chains: int = 128
    burn_in: int = 3000
    realisations: int = 20


PRESETS = kit.presets(
    Config(),
    smoke=Config(inputs=20, ratios=(1.5, 4.0), steps=2000, burn_in=200, realisations=3),
    paper=Config(ratios=(1.1, 1.2, 1.5, 2.0, 5.0, 10.0, 50.0), steps=80_000, realisations=100),
)


class Result(kit.Frozen):
    """Ordered eigenvalues (ratios, N) in units σx²σε²/S and errors of the spectra (Fig. 3(a))."""

    ratios: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    averaged: np.ndarray
    mean_error: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Measure C in chains of SGD and compare with Eq. (2.17) on the same data (Fig. 3(a))."""
    options = {"every": 1, "measure_noise": True}
    items = [
        config.item(context.seed, samples=round(ratio * config.inputs), **options)
        for ratio in config.ratios
    ]
    parts = context.map(_regression.simulate_fluctuations, items, label="chains of SGD")
    measured, predicted = ([p[key] for p in parts] for key in ("noise_covariance", "theory_noise"))
    averaged = [_mean_spectrum({**item, "realisations": config.realisations}) for item in items]
    unit = _regression.unit_noise(config.inputs, config.batch_size, config.label_variance)
    return Result(
        np.array(config.ratios),
        _regression.descending_eigenvalues(measured) / unit,
        _regression.descending_eigenvalues(predicted) / unit,
        np.array(averaged) / unit,
        np.array(
            [_regression.spectral_error(*pair) for pair in zip(measured, predicted, strict=True)]
        ),
    )


def _mean_spectrum(item: kit.Item) -> np.ndarray:
    noise = [
        theory.noise_covariance(X, Y, item["batch_size"]) for X, Y, _ in _regression.data_sets(item)
    ]
    return _regression.descending_eigenvalues(noise).mean(axis=0)


def plot(result: Result) -> kit.Figure:
    """Draw the ordered eigenvalues of C for every ratio (Fig. 3(a) of [fluctuations])."""
    figure, axis = kit.new_figure(width="column", ratio=0.85)
    index = np.arange(1, result.measured.shape[1] + 1)
    for row, color in enumerate(kit.shades(len(result.ratios))):
        label = f"P/N = {result.ratios[row]:g}"
        axis.semilogy(index, result.measured[row], color=color, lw=3, alpha=0.35)
        axis.semilogy(index, result.predicted[row], color=color, lw=1, label=label)
        axis.semilogy(index, result.averaged[row], ":", color="0.2", lw=0.9)
    axis.set_ylim(max(1e-5, result.predicted.min() / 2), result.predicted.max() * 2)
    axis.set(xlabel="mode", ylabel=r"eigenvalues of $C$  [$\sigma_x^2\sigma_\epsilon^2/S$]")
    axis.set_title("broad: SGD · thin: Eq. (2.17) · dotted: its mean over data", fontsize=7)
    axis.legend()
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the agreement of the spectra (Fig. 3(a) of [fluctuations])."""
    why = "mean relative error of the eigenvalues, one value per ratio: " + ", ".join(
        f"{error:.3f} at {ratio:g}"
        for ratio, error in zip(result.ratios, result.mean_error, strict=True)
    )
    return {"spectrum": kit.over_seeds(result.mean_error, why)}

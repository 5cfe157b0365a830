"""The loss along principal modes for correlated inputs, averaged over data sets."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from hyperribbon.core import numpy_generator
from hyperribbon.experiments.fluctuations import _common
from hyperribbon.experiments.fluctuations._common import ROUGH, regression, seeds, simulation_item
from hyperribbon.experiments.judging import Measurements, over_seeds
from hyperribbon.experiments.kit import Context, Figure, Frozen, Item, presets, stack
from hyperribbon.experiments.statements import Band, says
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.simulation import simulate_one_layer
from hyperribbon.theory import fluctuations as theory

TITLE = "Loss along the modes for correlated inputs"

_SETTING = (
    "N = 40, P = 200, Wishart covariance as in the figure; modes of Eq. (2.30), of which the paper "
    "says it"
)

STATEMENTS = (
    says(
        "flat",
        "Sec. II C 2, on Fig. 6(b)",
        "we thus do not expect δL(θv) to depend in any significant way on the covariance "
        "eigenvalues, even if the latter strongly vary in magnitude. This is confirmed by SGD "
        "simulations for Gaussian independent and Gaussian correlated data (see Fig. 6)",
        "The half of the modes with larger variance has the same mean curvature as the other half "
        "within a quarter (a threshold to the words), in the mean over data sets.",
        Band(-np.log(1 + ROUGH), np.log(1 + ROUGH), "words"),
        setting=_SETTING,
        needs="N = 40 and 24 data sets",
        compare="mean",
        changed="2026-11-17: modes of runs of SGD and a factor of two before; in runs of a limited "
        "length flat modes have not reached their variance, so the number rests on the length",
    ),
    says(
        "rank-correlation",
        "Sec. II C 2",
        "the eigenvectors of these matrices can be considered as essentially unrelated here",
        "The rank correlation of variance and curvature over the modes is within ±0.3 (a threshold "
        "to the words), in the mean over data sets.",
        Band(-0.3, 0.3, "words"),
        setting=_SETTING + "; the figure too averages over several runs",
        needs="N = 40 and 24 data sets",
        compare="mean",
        changed="2026-11-17: modes of runs of SGD before, where it falls from 0.7 to 0.2 between "
        "3,000 and 60,000 steps",
    ),
)


class Config(Frozen):
    """Task of the figure, chains, and the data sets averaged."""

    inputs: int = 40
    samples: int = 200
    label_variance: float = 0.01
    lr: float = 0.1
    batch_size: int = 10
    steps: int = 60_000
    chains: int = 128
    realisations: int = 24


PRESETS = presets(
    Config(),
    smoke=Config(inputs=10, samples=50, steps=3000, chains=64, realisations=3),
    paper=Config(steps=300_000, realisations=20),
)


class Result(Frozen):
    """Curvature over σx² along the modes (realisations, N): SGD and stationary theory."""

    measured: np.ndarray
    stationary: np.ndarray
    variances: np.ndarray
    hessian: np.ndarray
    rank_correlation: np.ndarray
    stationary_correlation: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Run SGD from the solution on every data set and take the modes of its covariance."""
    items = [simulation_item(config, seed) for seed in seeds(context.seed, config.realisations)]
    parts = context.map(_modes, items, label="chains of SGD")
    return Result(**stack(parts))


def _modes(item: Item) -> dict:
    N = item["inputs"]
    root = numpy_generator(item["seed"], "wishart").normal(size=(N, N))
    wishart = root @ root.T
    covariance = wishart / np.trace(wishart)
    X, Y, _ = regression(N, item["samples"], item["label_variance"], item["seed"], covariance)
    options = {**_common.chosen(item, *_common.CHAINS), "burn_in": item["steps"] // 4}
    stats = simulate_one_layer(X, Y, **options)
    H = theory.hessian(X)
    C = theory.noise_covariance(X, Y, item["batch_size"])
    variances, vectors = np.linalg.eigh(stats.covariance)
    _, limit = np.linalg.eigh(theory.stationary_covariance(H, C, item["lr"]))
    measured, stationary = _curvatures(H, vectors), _curvatures(H, limit)
    return {
        "measured": N * measured,
        "stationary": N * stationary,
        "variances": variances[::-1],
        "hessian": N * np.linalg.eigvalsh(H)[::-1],
        "rank_correlation": _rank_correlation(measured),
        "stationary_correlation": _rank_correlation(stationary),
    }


def _curvatures(H: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return vᵀHv of each mode, from the largest variance down."""
    return np.einsum("nk,nm,mk->k", vectors, H, vectors)[::-1]


def _rank_correlation(curvatures: np.ndarray) -> float:
    """Return Spearman's correlation with the variances, by which the curvatures are ordered."""
    return -float(np.corrcoef(np.arange(len(curvatures)), rankdata(curvatures))[0, 1])


def plot(result: Result) -> Figure:
    """Draw the curvature along modes, averaged over data sets, and the variances."""
    figure, (left, right) = new_figure(columns=2, width="full", ratio=0.75)
    index = np.arange(1, result.measured.shape[1] + 1)
    for values, style, color, name in (
        (result.measured, "o-", COLORS[0], "modes of SGD's covariance"),
        (result.stationary, "s--", COLORS[1], "modes of Eq. (2.30)"),
    ):
        mean, error = values.mean(axis=0), values.std(axis=0) / np.sqrt(len(values))
        left.errorbar(index, mean, error, fmt=style, ms=3, lw=1, color=color, label=name)
    left.axhline(1, ls="--", color="k", lw=0.9, label="i.i.d. inputs")
    left.set(yscale="log", xlabel="mode, by variance", ylabel=r"$2\,\delta L/(\theta^2\sigma_x^2)$")
    left.legend()
    right.semilogy(
        index,
        result.variances.mean(axis=0) / result.variances.mean(),
        "o-",
        ms=3,
        label="variance / mean",
    )
    right.semilogy(index, result.hessian.mean(axis=0), "s-", ms=3, label="eigenvalues of H / σx²")
    right.set_xlabel("mode")
    right.legend()
    return figure


def measure(result: Result) -> Measurements:
    """Measure whether the loss depends on the mode."""

    def contrast(curvatures: np.ndarray) -> np.ndarray:
        half = curvatures.shape[1] // 2
        return np.log(curvatures[:, :half].mean(axis=1) / curvatures[:, half:].mean(axis=1))

    return {
        "flat": over_seeds(
            contrast(result.stationary),
            "log ratio of the mean curvatures, one value per data set; "
            f"{contrast(result.measured).mean():+.2f} along the modes of SGD's runs",
        ),
        "rank-correlation": over_seeds(
            result.stationary_correlation,
            "one value per data set; "
            f"{result.rank_correlation.mean():+.2f} along the modes of SGD's runs",
        ),
    }

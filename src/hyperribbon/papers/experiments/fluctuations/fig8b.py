"""Fluctuation spectrum of a two-layer network from a nearly balanced, small start."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, ROUGH, _two_layer

TITLE = "Fluctuations from a small start"

_SETTING = (
    "N_i = 30, N_h = 20, S = 10 and the start of the figure; an ensemble from the solution, not "
    "one long run, whose mean drifts"
)

STATEMENTS = kit.at_scale(
    "N_i = 30 and 1200 chains",
    kit.says(
        "single-mode",
        "Sec. III C 2, on Fig. 8(b)",
        "For weights close to being zero balanced, the fluctuations of W2 are essentially governed "
        "by a single independent mode",
        "The first mode of W₁W₁ᵀ holds three quarters or more of the variance of δW₂ (our "
        "threshold).",
        kit.Band.at_least(1 - ROUGH, "words"),
        setting=_SETTING,
        changed="2026-11-17: nine tenths before; the same word is read alike in the whole paper",
    ),
    kit.says(
        "leading-variance",
        "Sec. III C 2, on Figs. 8(b), (c)",
        "We find good agreement with the covariance spectrum of the weights predicted by Eq. "
        "(3.30)",
        "The variance of the leading mode is that of Eq. (3.34) within a tenth (our threshold).",
        kit.Band(1 - GOOD, 1 + GOOD, "words"),
        setting=_SETTING + "; the unit is the unexplained variance of these targets",
        compare="mean",
        changed="2026-11-17: within 15% before",
    ),
    kit.says(
        "columns-alike",
        "Sec. III B 4",
        "all Nh elements in the ith column of δW1 fluctuate in the same way, i.e., their dynamics "
        "is "
        "controlled by the scalar z1,i(t), up to time-independent prefactors contained in V.",
        "One direction holds nine tenths or more of the variance of a column of δW₁ (our "
        "threshold), in the mean over columns.",
        kit.Band.at_least(1 - GOOD, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "elements-alike",
        "Sec. III B 4",
        "all elements of δW2 fluctuate identically up to individual scaling factors determining "
        "their variance.",
        "Two elements of δW₂ are correlated by three quarters or more (our threshold), median over "
        "pairs.",
        kit.Band.at_least(1 - ROUGH, "words"),
        setting=_SETTING + "; the start is nearly zero-balanced, not exactly",
    ),
    kit.says(
        "first-layer-rank",
        "Sec. III C 2",
        "Eigenvalues of cov(δW1) with index larger than Ni vanish according to the linear theory",
        "The first N_i modes hold nine tenths or more of the variance of δW₁ in SGD (our "
        "threshold).",
        kit.Band.at_least(1 - GOOD, "words"),
        setting=_SETTING,
    ),
)


class Config(_two_layer.TwoLayerConfig):
    """Network and task of Fig. 8(b) of [fluctuations], initial variances 10⁻⁴/N; an ensemble."""

    steps: int = 6000
    chains: int = 1200
    init1: float = 1e-4
    init2: float = 1e-4


PRESETS = kit.presets(
    Config(),
    smoke=Config(inputs=8, hidden=5, samples=400, steps=500, chains=300, init1=1e-3, init2=1e-3),
    paper=Config(chains=4000),
)


class Result(kit.Frozen):
    """Spectra in units λσ²/(2S), σ² unexplained (Fig. 8(b) of [fluctuations])."""

    inputs: int
    chains: int
    modal: np.ndarray
    predicted: np.ndarray
    second: np.ndarray
    first: np.ndarray
    first_predicted: np.ndarray
    first_random: np.ndarray
    second_random: np.ndarray
    column_share: float
    correlation: float


def compute(config: Config, context: kit.Context) -> Result:
    """Measure both layers' fluctuations in an ensemble started at the solution (Fig. 8(b))."""
    item = config.item(context.seed, init1=config.init1, init2=config.init2)
    ensemble, found = _two_layer.share_ensemble(context, item)
    return Result(
        config.inputs,
        config.chains,
        found.variances,
        found.predicted,
        np.linalg.eigvalsh(np.cov(found.z2.T))[::-1] / found.unit,
        *_two_layer.first_layer_spectra(found, ensemble["chains1"]),
        *_two_layer.random_spectra(item),
        _two_layer.column_share(ensemble["chains1"]),
        float(np.median(_two_layer.element_correlations(ensemble["chains2"]))),
    )


def plot(result: Result) -> kit.Figure:
    """Draw the spectra of both layers (Fig. 8(b) of [fluctuations])."""
    figure, axis = kit.new_figure(width="column", ratio=0.85)
    modes = np.arange(1, len(result.second) + 1)
    axis.semilogy(modes, result.second, "o", color=kit.COLORS[0], label=r"$\delta W_2$, ensemble")
    random = (result.first_random, result.second_random)
    _two_layer.draw_spectra(axis, result.predicted, result.first, result.first_predicted, random)
    axis.set_ylim(1e-5, 10)
    axis.legend(fontsize=6)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the single leading mode of the second layer and the rank of the first (Fig. 8(b))."""
    ratio = result.modal[0] / result.predicted[0]
    share = result.modal[0] / result.modal.sum()
    inside = result.first[: result.inputs].sum() / result.first.sum()
    spread = np.sqrt(2 / (result.chains - 1))

    def error(share: float) -> float:
        return share * (1 - share) * np.sqrt(2) * spread

    return {
        "single-mode": kit.estimate(share, error(share), "share of the leading mode"),
        "leading-variance": kit.estimate(
            ratio, ratio * spread, f"over {result.predicted[0]:.2f}, in {result.chains} chains"
        ),
        "columns-alike": kit.over_seeds(result.column_share, "share of one direction"),
        "elements-alike": kit.over_seeds(result.correlation, "median |r| over pairs of elements"),
        "first-layer-rank": kit.estimate(
            inside, error(inside), f"share of the first {result.inputs} modes"
        ),
    }

"""Fig. 4.8 of [subnetworks]: effective rank and kurtosis along re-initialisation."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _spectra

TITLE = "Entries of the top eigenvectors along re-initialisation"

_CURVES = ("reinitialize-largest", "reinitialize-random")
_PANELS = {
    "effective_rank100": "effective rank, top 100 eigenvectors",
    "kurtosis100": "kurtosis, top 100 eigenvectors",
    "effective_rank50": "effective rank, top 50 eigenvectors",
    "kurtosis50": "kurtosis, top 50 eigenvectors",
}

STATEMENTS = (
    _spectra.says_fisher(
        "random-slow",
        "Sec. 4.3.4, Fig. 4.8 (a)",
        "for the same experiments pipeline based on random selection, there is a distinct "
        "difference: there are no rapid increases or decreases for both of the metrics",
        "Effective rank and kurtosis of the top 100 eigenvectors both change less when 10% of the "
        "weights are re-initialised at random than when the 1% that changed most are: the larger "
        "of the two differences of relative changes is at most 0.",
        kit.Band.at_most(0.0, "words"),
        changed="2026-11-18: of the two metrics only the effective rank was judged before",
    ),
)

Config = _spectra.SpectralConfig
Result = _spectra.Curves
PRESETS, PRESETS_WITH_DATA = _spectra.PRESETS, _spectra.PRESETS_WITH_DATA


def compute(config: Config, context: kit.Context) -> Result:
    """Measure both curves of every run (Fig. 4.8 of [subnetworks])."""
    return _spectra.measure_curves(config, context, _CURVES, tuple(_PANELS))


def plot(result: Result) -> kit.Figure:
    """Draw the four panels of the paper (Fig. 4.8 of [subnetworks])."""
    figure, axes = kit.new_figure(2, 2, width="full", ratio=0.6, sharex=True)
    for letter, axis, (column, title) in zip("abcd", axes.ravel(), _PANELS.items(), strict=True):
        for color, curve in zip(kit.COLORS, _CURVES, strict=False):
            label = _spectra.ORDER_LABELS[curve.split("-")[1]]
            result.draw(axis, column, curve, color=color, marker="o", label=label)
        axis.set_title(f"({letter}) {title}")
        _spectra.logarithmic_shares(axis)
    for axis in axes[1]:
        axis.set_xlabel(f"share re-initialised ($N={result.samples}$, {result.outputs})")
    axes[0, 1].legend(loc="upper left")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure both metrics along both curves (Fig. 4.8 of [subnetworks])."""
    largest, random = _CURVES
    metrics = ("effective_rank100", "kurtosis100")
    slow, fast = (
        np.abs([result.relative(name, curve, share) for name in metrics])
        for curve, share in ((random, 0.1), (largest, 0.01))
    )
    return {
        "random-slow": result.by_run(
            (slow - fast).max(0),
            f"relative changes of rank and kurtosis: {slow[0].mean():.3f} and {slow[1].mean():.3f} "
            f"at random, {fast[0].mean():.3f} and {fast[1].mean():.3f} of the largest changes",
        )
    }

"""Fig. 4.5 of [subnetworks]: anisotropy along re-initialisation by change and at random."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _spectra

TITLE = "Anisotropy and norms of the Fisher matrix along re-initialisation"

_CURVES = ("reinitialize-smallest", "reinitialize-random")
_PANELS = {
    "t50": ("$T_{50}$", "linear"),
    "t100": ("$T_{100}$", "linear"),
    "frobenius": (r"L2 norm $\|F\|_F$", "log"),
    "spectral_norm": (r"spectral norm $\lambda_{\max}$", "log"),
}
STATEMENTS = (
    _spectra.says_fisher(
        "random-loses",
        "Sec. 4.3.3, Fig. 4.5",
        "In contrast, random parameter selection significantly reduces the anisotropy from the "
        "start of training.",
        "With the first 10% of the weights re-initialised at random T100 has fallen by at least "
        "0.01, the threshold for 'largely unchanged' in subnetworks/chapter4.",
        kit.Band.at_most(-0.01, "words"),
        changed="2026-11-18: before, 0.4 at random was compared with 0.8 by change, which says "
        "nothing of the start",
    ),
    _spectra.says_fisher(
        "norms-rise-then-fall",
        "Sec. 4.3.3, Fig. 4.5",
        "followed by a gradual decrease toward the initialization norms as most parameters are "
        "progressively re-initialized to their initial values",
        "Both norms rise at least 0.1 above both ends of the scan before they fall to those of the "
        "start (our threshold).",
        kit.Band.at_least(1.1, "words"),
        changed="2026-11-17: at least 1 before, which a largest norm over the larger end always is",
    ),
)

Config = _spectra.SpectralConfig
Result = _spectra.Curves
PRESETS, PRESETS_WITH_DATA = _spectra.PRESETS, _spectra.PRESETS_WITH_DATA


def compute(config: Config, context: kit.Context) -> Result:
    """Measure both curves of every run (Fig. 4.5 of [subnetworks])."""
    return _spectra.measure_curves(config, context, _CURVES, tuple(_PANELS))


def plot(result: Result) -> kit.Figure:
    """Draw trace ratios above norms, over shares (below) and thresholds (above) (Fig. 4.5)."""
    figure, axes = kit.new_figure(2, 2, width="full", ratio=0.6, sharex=True)
    for axis, (column, (label, scale)) in zip(axes.ravel(), _PANELS.items(), strict=True):
        for color, curve in zip(kit.COLORS, _CURVES, strict=False):
            order = _spectra.ORDER_LABELS[curve.split("-")[1]]
            result.draw(axis, column, curve, color=color, marker="o", label=order)
        axis.set(ylabel=label, yscale=scale)
    shares = result.fractions[_CURVES[0]]
    thresholds = result.thresholds[_CURVES[0]].mean(0)
    shown = [i for i, share in enumerate(shares) if share not in (0.9, 0.98, 1.0)]
    for axis in axes[0]:
        above = axis.secondary_xaxis("top")
        above.set_xticks(shares[shown], [f"{thresholds[i]:.2g}" for i in shown], fontsize=7)
        above.set_xlabel("threshold on the change that selects this share", fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel(f"share re-initialised ($N={result.samples}$, {result.outputs})")
    axes[0, 0].legend(loc="lower left")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure how random selection loses the anisotropy, and how the norms move (Fig. 4.5)."""
    by_change, by_chance = _CURVES
    trained = result.at("t100", by_chance, 0.0)
    norms = np.array([result.columns[name][by_change] for name in ("frobenius", "spectral_norm")])
    return {
        "random-loses": result.by_run(
            result.at("t100", by_chance, 0.1) - trained,
            f"change of T100 from {trained.mean():.4f} with 10% at random; with 40% it is "
            f"{(result.at('t100', by_chance, 0.4) - trained).mean():.3f}",
        ),
        "norms-rise-then-fall": result.by_run(
            (norms.max(2) / np.maximum(norms[:, :, 0], norms[:, :, -1])).min(0),
            "largest norm over the larger of the ends, smaller of the two",
        ),
    }

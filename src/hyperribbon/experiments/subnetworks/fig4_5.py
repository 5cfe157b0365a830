"""Fig. 4.5 of [subnetworks]: anisotropy along re-initialisation by change and at random."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks import _spectra
from hyperribbon.experiments.subnetworks._drawing import draw_band, judge_over_seeds
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/fig4.5"
TITLE = "Anisotropy and norms of the Fisher matrix along re-initialisation"

_CURVES = ("reinitialize-smallest", "reinitialize-random")
_PANELS = {
    "t50": ("$T_{50}$", "linear"),
    "t100": ("$T_{100}$", "linear"),
    "frobenius": (r"L2 norm $\|F\|_F$", "log"),
    "spectral_norm": (r"spectral norm $\lambda_{\max}$", "log"),
}
_SCAN_END = 0.4
"""Last threshold of Fig. 3.4, whose range of re-initialised weights this figure takes over."""

Config = _spectra.SpectralConfig
Result = _spectra.Curves
PRESETS, PRESETS_WITH_DATA = _spectra.PRESETS, _spectra.PRESETS_WITH_DATA


def compute(config: Config, context: Context) -> Result:
    """Measure both curves of every run."""
    return _spectra.measure_curves(config, context, _CURVES, tuple(_PANELS))


def plot(result: Result) -> Figure:
    """Draw trace ratios above norms, over shares (below) and thresholds (above)."""
    figure, axes = new_figure(2, 2, width="full", ratio=0.6, sharex=True)
    for axis, (column, (label, scale)) in zip(axes.ravel(), _PANELS.items(), strict=True):
        for color, curve in zip(COLORS, _CURVES, strict=False):
            draw_band(
                axis, result.fractions[curve], result.columns[column][curve], color=color,
                marker="o", ms=3, label=_spectra.ORDER_LABELS[curve.split("-")[1]],
            )  # fmt: skip
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


def claims(result: Result) -> list[Claim]:
    """Judge what keeps the anisotropy, what loses it, and how the norms move."""
    by_change, by_chance = _CURVES
    trained = result.at("t100", by_change, 0.0)
    kept = result.at("t100", by_change, 0.8)
    norms = np.array([result.columns[name][by_change] for name in ("frobenius", "spectral_norm")])
    weaker = (norms / norms[:, :, :1]).min(0)
    thresholds = result.thresholds[by_change].mean(0)
    early = int(np.flatnonzero(thresholds <= 0.1 * _SCAN_END)[-1])
    shares = result.fractions[by_change]
    below = int(np.flatnonzero(np.append(weaker.mean(0) > 1.1, True))[0]) - 1
    return [
        judge_over_seeds(
            f"{ID}/kept",
            place="Fig. 4.5",
            statement="Re-initialising the 80% of the weights that changed least keeps T100",
            expected=Band.around(0.0, "paper", atol=0.01),
            values=kept - trained,
            why=f"change of T100 from {trained.mean():.4f}; {result.setting}",
        ),
        judge_over_seeds(
            f"{ID}/random-loses",
            place="Fig. 4.5",
            statement="Re-initialising at random loses anisotropy early: more at a share of 0.4 "
            "than by change at 0.8",
            expected=Band.at_most(0.0, "paper"),
            values=result.at("t100", by_chance, 0.4) - kept,
            why=f"T100 at random minus T100 by change; {result.setting}",
        ),
        judge_over_seeds(
            f"{ID}/norms-rise-first",
            place="Sec. 4.3.3",
            statement="Both norms first rise as the re-initialised interval grows: they are higher "
            "at the end of the scan's first tenth than in the trained network",
            expected=Band.at_least(1.0, "paper"),
            values=weaker[:, early],
            why=f"smaller of the two ratios at a threshold of {thresholds[early]:.3f}, which is "
            f"{shares[early]:.0%} of the weights; counted in weights the rise stays below 10% up "
            f"to a share of {shares[below]:.2g} (threshold {thresholds[below]:.3f}); "
            f"{result.setting}",
        ),
        judge_over_seeds(
            f"{ID}/norms-rise-then-fall",
            place="Sec. 4.3.3",
            statement="Both norms rise above both ends before they fall to the start's",
            expected=Band.at_least(1.0, "paper"),
            values=(norms.max(2) / np.maximum(norms[:, :, 0], norms[:, :, -1])).min(0),
            why=f"largest norm over the larger of the ends, smaller of the two; {result.setting}",
        ),
    ]

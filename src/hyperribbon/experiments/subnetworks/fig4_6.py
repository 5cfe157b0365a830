"""Fig. 4.6 of [subnetworks]: trace ratio and accuracy along re-initialisation and pruning."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks import _spectra
from hyperribbon.experiments.subnetworks._drawing import draw_band, judge_over_seeds
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/fig4.6"
TITLE = "Trace ratio and accuracy, smallest and largest changes first"

_CURVES = ("reinitialize-smallest", "prune-smallest", "reinitialize-largest", "prune-largest")

Config = _spectra.SpectralConfig
Result = _spectra.Curves
PRESETS, PRESETS_WITH_DATA = _spectra.PRESETS, _spectra.PRESETS_WITH_DATA


def compute(config: Config, context: Context) -> Result:
    """Measure the four curves of every run."""
    return _spectra.measure_curves(config, context, _CURVES, ("t100", "accuracy"))


def plot(result: Result) -> Figure:
    """Draw one panel an operation and order."""
    figure, axes = new_figure(2, 2, width="full", ratio=0.6, sharey=True)
    words = {"reinitialize": "re-initialised", "prune": "pruned"}
    for letter, axis, curve in zip("abcd", axes.ravel(), _CURVES, strict=True):
        operation, order = curve.split("-")
        for column, color, marker, label in (
            ("t100", COLORS[0], "o", "$T_{100}$"),
            ("accuracy", COLORS[1], "s", "test accuracy"),
        ):
            draw_band(
                axis, result.fractions[curve], result.columns[column][curve], color=color,
                marker=marker, ms=3, label=label,
            )  # fmt: skip
        axis.set_title(f"({letter}) {words[operation]}, {_spectra.ORDER_LABELS[order]}")
        axis.set_ylim(0, 1.03)
        if order == "largest":
            _spectra.logarithmic_shares(axis)
    for axis in axes[1]:
        axis.set_xlabel("share of the weights (logarithmic above 0.01)")
    axes[0, 0].legend(loc="lower left")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge how soon the anisotropy is lost, and the return of T100 under pruning."""
    trained = result.at("t100", "reinitialize-largest", 0.0)
    start = result.at("t100", "reinitialize-largest", 1.0)
    lost = trained - result.at("t100", "reinitialize-largest", 0.02)
    pruned = result.columns["t100"]["prune-largest"]
    declines = zip(
        result.columns["t100"]["reinitialize-largest"],
        result.columns["accuracy"]["reinitialize-largest"],
        strict=True,
    )
    return [
        judge_over_seeds(
            f"{ID}/kept-smallest-first",
            place="Fig. 4.6 (a)",
            statement="With the smallest changes re-initialised first, T100 is kept to p = 0.8",
            expected=Band.at_least(0.98, "verification"),
            values=result.at("t100", "reinitialize-smallest", 0.8) / trained,
            why=f"T100 at p = 0.8 over that of the trained network; {result.setting}",
        ),
        judge_over_seeds(
            f"{ID}/lost-largest-first",
            place="Fig. 4.6 (c)",
            statement="With the largest changes re-initialised first, the anisotropy is lost "
            "within 2% of the weights",
            expected=Band.at_most(-0.05, "verification"),
            values=-lost,
            why=f"change of T100 at p = 0.02, {(lost / (trained - start)).mean():.0%} of the way "
            f"to the start's {start.mean():.2f}; {result.setting}",
        ),
        judge_over_seeds(
            f"{ID}/pruning-returns",
            place="Fig. 4.6 (d)",
            statement="Under pruning of the largest changes first, T100 falls and rises again at "
            "the end",
            expected=Band.at_least(0.05, "paper"),
            values=result.at("t100", "prune-largest", 0.9) - pruned.min(1),
            why=f"T100 at p = 0.9 minus its minimum, {pruned.min(1).mean():.2f}; {result.setting}",
        ),
        judge_over_seeds(
            f"{ID}/together",
            place="Sec. 4.3.3",
            statement="Accuracy and anisotropy decline together when the largest changes go first",
            expected=Band.at_least(0.7, "paper"),
            values=[np.corrcoef(ratio, accuracy)[0, 1] for ratio, accuracy in declines],
            why=f"correlation of the two along the curve; {result.setting}",
        ),
    ]

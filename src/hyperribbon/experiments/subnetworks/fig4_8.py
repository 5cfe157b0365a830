"""Fig. 4.8 of [subnetworks]: effective rank and kurtosis along re-initialisation."""

from __future__ import annotations

from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks import _spectra
from hyperribbon.experiments.subnetworks._drawing import draw_band, judge_over_seeds
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/fig4.8"
TITLE = "Entries of the top eigenvectors along re-initialisation"

_CURVES = ("reinitialize-largest", "reinitialize-random")
_PANELS = {
    "effective_rank100": "effective rank, top 100 eigenvectors",
    "kurtosis100": "kurtosis, top 100 eigenvectors",
    "effective_rank50": "effective rank, top 50 eigenvectors",
    "kurtosis50": "kurtosis, top 50 eigenvectors",
}

Config = _spectra.SpectralConfig
Result = _spectra.Curves
PRESETS, PRESETS_WITH_DATA = _spectra.PRESETS, _spectra.PRESETS_WITH_DATA


def compute(config: Config, context: Context) -> Result:
    """Measure both curves of every run."""
    columns = (*_PANELS, "leading_kurtosis", "output_share")
    return _spectra.measure_curves(config, context, _CURVES, columns)


def plot(result: Result) -> Figure:
    """Draw the four panels of the paper."""
    figure, axes = new_figure(2, 2, width="full", ratio=0.6, sharex=True)
    for letter, axis, (column, title) in zip("abcd", axes.ravel(), _PANELS.items(), strict=True):
        for color, curve in zip(COLORS, _CURVES, strict=False):
            draw_band(
                axis, result.fractions[curve], result.columns[column][curve], color=color,
                marker="o", ms=3, label=_spectra.ORDER_LABELS[curve.split("-")[1]],
            )  # fmt: skip
        axis.set_title(f"({letter}) {title}")
        _spectra.logarithmic_shares(axis)
    for axis in axes[1]:
        axis.set_xlabel(f"share re-initialised ($N={result.samples}$, {result.outputs})")
    axes[0, 1].legend(loc="upper left")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the rise of the rank, the fall of the kurtosis, and random selection beside them."""
    largest, random = _CURVES
    leading, rest = (
        result.at(column, largest, 1.0).mean() for column in ("leading_kurtosis", "kurtosis100")
    )
    rise = result.relative("effective_rank100", largest, 0.005)
    return [
        judge_over_seeds(
            f"{ID}/rank-rises",
            place="Fig. 4.8 (a)",
            statement="Re-initialising the 0.5% of largest change raises the effective rank",
            expected=Band.at_least(0.1, "paper"),
            values=rise,
            why=f"relative change; {result.setting}",
        ),
        judge_over_seeds(
            f"{ID}/random-slow",
            place="Fig. 4.8 (a)",
            statement="At random there is no such rise: 5% raise it by less than the 0.5% do",
            expected=Band.at_most(0.0, "paper"),
            values=result.relative("effective_rank100", random, 0.05) - rise,
            why=f"difference of the relative changes; {result.setting}",
        ),
        *(
            judge_over_seeds(
                f"{ID}/kurtosis{count}-falls",
                place=f"Fig. 4.8 ({letter})",
                statement="Re-initialising the largest changes lowers the kurtosis of the top "
                f"{count} eigenvectors",
                expected=Band.at_most(0.0, "paper"),
                values=result.relative(f"kurtosis{count}", largest, 1.0),
                why="relative change to the full re-initialisation: at the start the leading "
                f"vectors, one an output, have a kurtosis of {leading:,.0f} (mean of all 100 "
                f"{rest:,.0f}) and {result.at('output_share', largest, 1.0).mean():.0%} of their "
                f"length in the output layer; {result.setting}",
            )
            for count, letter in ((100, "b"), (50, "d"))
        ),
    ]

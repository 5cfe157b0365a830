"""Fig. 4.8 of [subnetworks]: effective rank and kurtosis along re-initialisation."""

from __future__ import annotations

from hyperribbon.papers.experiments.judging import Measurements, over_seeds
from hyperribbon.papers.experiments.kit import COLORS, Context, Figure, new_figure
from hyperribbon.papers.experiments.statements import Band, says
from hyperribbon.papers.experiments.subnetworks import _spectra
from hyperribbon.papers.experiments.subnetworks._spectra import FISHER

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
        "rank-rises",
        "Sec. 4.3.4, Fig. 4.8 (a)",
        "when the parameters with the largest changes are reinitialized based on the absolute "
        "change criterion, […] the entropy exhibits a substantial increase",
        "Re-initialising the 0.5% of the weights that changed most raises the effective rank of "
        "the top 100 eigenvectors by at least 0.1 of itself (share and threshold are ours).",
        Band.at_least(0.1, "words"),
    ),
    _spectra.says_fisher(
        "random-slow",
        "Sec. 4.3.4, Fig. 4.8 (a)",
        "for the same experiments pipeline based on random selection, there is a distinct "
        "difference: there are no rapid increases or decreases for both of the metrics",
        "At random, 5% of the weights raise the effective rank by less than the 0.5% that changed "
        "most.",
        Band.at_most(0.0, "words"),
    ),
    *(
        says(
            f"kurtosis{count}-falls",
            f"Sec. 4.3.4, Fig. 4.8 ({letter})",
            "the kurtosis exhibits a clear decrease for both the top 50 and 100 eigenvectors",
            f"The kurtosis of the top {count} eigenvectors is lower in the wholly re-initialised "
            "network than in the trained one.",
            Band.at_most(0.0, "words"),
            setting=FISHER,
            needs=_spectra.OPEN,
            changed="2026-11-17: 'fails' before, for the one N and start that were tried",
        )
        for count, letter in ((100, "b"), (50, "d"))
    ),
)

Config = _spectra.SpectralConfig
Result = _spectra.Curves
PRESETS, PRESETS_WITH_DATA = _spectra.PRESETS, _spectra.PRESETS_WITH_DATA


def compute(config: Config, context: Context) -> Result:
    """Measure both curves of every run (Fig. 4.8 of [subnetworks])."""
    columns = (*_PANELS, "leading_kurtosis", "output_share")
    return _spectra.measure_curves(config, context, _CURVES, columns)


def plot(result: Result) -> Figure:
    """Draw the four panels of the paper (Fig. 4.8 of [subnetworks])."""
    figure, axes = new_figure(2, 2, width="full", ratio=0.6, sharex=True)
    for letter, axis, (column, title) in zip("abcd", axes.ravel(), _PANELS.items(), strict=True):
        for color, curve in zip(COLORS, _CURVES, strict=False):
            label = _spectra.ORDER_LABELS[curve.split("-")[1]]
            result.draw(axis, column, curve, color=color, marker="o", label=label)
        axis.set_title(f"({letter}) {title}")
        _spectra.logarithmic_shares(axis)
    for axis in axes[1]:
        axis.set_xlabel(f"share re-initialised ($N={result.samples}$, {result.outputs})")
    axes[0, 1].legend(loc="upper left")
    return figure


def measure(result: Result) -> Measurements:
    """Measure the rise of the rank, the fall of the kurtosis, and random selection beside them."""
    largest, random = _CURVES
    leading, rest = (
        result.at(column, largest, 1.0).mean() for column in ("leading_kurtosis", "kurtosis100")
    )
    rise = result.relative("effective_rank100", largest, 0.005)
    return {
        "rank-rises": result.by_run(rise, "relative change"),
        "random-slow": result.by_run(
            result.relative("effective_rank100", random, 0.05) - rise,
            "difference of the relative changes",
        ),
        **{
            f"kurtosis{count}-falls": over_seeds(
                result.relative(f"kurtosis{count}", largest, 1.0),
                "relative change: at the start the leading vectors, one an output, have a "
                f"kurtosis of {leading:,.0f} (mean of all 100 {rest:,.0f}) and "
                f"{result.at('output_share', largest, 1.0).mean():.0%} of their length in the "
                f"output layer; {result.source}",
                comparable=False,
            )
            for count in (100, 50)
        },
    }

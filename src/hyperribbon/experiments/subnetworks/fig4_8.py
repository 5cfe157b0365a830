"""Fig. 4.8 of [subnetworks]: effective rank and kurtosis along re-initialisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks._drawing import draw_band, judge_over_seeds
from hyperribbon.experiments.subnetworks._spectra import (
    SpectralConfig,
    fractions_of,
    spectral_curve,
)
from hyperribbon.experiments.subnetworks._training import presets, source_of
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/fig4.8"
TITLE = "Entries of the top eigenvectors along re-initialisation"

_ORDERS = ("largest", "random")
_PANELS = ("effective_rank100", "kurtosis100", "effective_rank50", "kurtosis50")


@dataclass(frozen=True)
class Config(SpectralConfig):
    """Setting of the figure."""


PRESETS, PRESETS_WITH_DATA = presets(
    Config, smoke={"samples": 12, "stride": 4, "seeds": 1}, paper={"samples": 500}
)


@dataclass(frozen=True)
class Result:
    """Means over the leading eigenvectors, by order of selection.

    Attributes:
        fractions: {"largest", "random"}: (f,).
        effective_rank100: (seeds, f) each.
        effective_rank50: (seeds, f) each.
        kurtosis100: (seeds, f) each.
        kurtosis50: (seeds, f) each.
        samples: N.
        outputs: Outputs of the matrix.
        source: What was trained.
    """

    fractions: dict[str, np.ndarray]
    effective_rank100: dict[str, np.ndarray]
    effective_rank50: dict[str, np.ndarray]
    kurtosis100: dict[str, np.ndarray]
    kurtosis50: dict[str, np.ndarray]
    samples: int
    outputs: str
    source: str


def compute(config: Config, context: Context) -> Result:
    """Measure both curves of every run."""
    curves = {order: spectral_curve(config, context, "reinitialize", order) for order in _ORDERS}
    columns = {key: {order: curve[key] for order, curve in curves.items()} for key in _PANELS}
    return Result(
        fractions={order: np.array(fractions_of(config, order)) for order in _ORDERS},
        **columns,
        samples=config.samples,
        outputs=config.outputs,
        source=source_of(config),
    )


def plot(result: Result) -> Figure:
    """Draw the four panels of the paper."""
    figure, axes = new_figure(2, 2, width="full", ratio=0.6, sharex=True)
    labels = {"largest": "largest change first", "random": "at random"}
    for letter, axis, panel in zip("abcd", axes.ravel(), _PANELS, strict=True):
        for color, order in zip(COLORS, _ORDERS, strict=False):
            draw_band(
                axis, result.fractions[order], getattr(result, panel)[order], color=color,
                marker="o", ms=3, label=labels[order],
            )  # fmt: skip
        name, count = ("effective rank", panel[14:]) if "rank" in panel else ("kurtosis", panel[8:])
        axis.set_title(f"({letter}) {name}, top {count} eigenvectors")
        axis.set_xscale("symlog", linthresh=0.01, linscale=0.6)
        axis.set_xticks([0, 0.01, 0.1, 1], ["0", "0.01", "0.1", "1"])
        axis.set_xlim(-0.0005, 1.1)
    for axis in axes[1]:
        axis.set_xlabel(f"share re-initialised ($N={result.samples}$, {result.outputs})")
    axes[0, 0].legend(loc="lower right")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the rise of the rank, the fall of the kurtosis, and random selection beside them."""
    setting = f"N = {result.samples}, {result.outputs} outputs, {result.source}"

    def relative(panel: str, order: str, share: float) -> np.ndarray:
        values = getattr(result, panel)[order]
        position = int(np.argmin(np.abs(result.fractions[order] - share)))
        return values[:, position] / values[:, 0] - 1

    return [
        judge_over_seeds(
            f"{ID}/rank-rises",
            place="Fig. 4.8 (a)",
            statement="Re-initialising the 0.5% of largest change raises the effective rank",
            expected=Band.at_least(0.1, "paper"),
            values=relative("effective_rank100", "largest", 0.005),
            why=f"relative change; {setting}",
        ),
        judge_over_seeds(
            f"{ID}/random-slow",
            place="Fig. 4.8 (a)",
            statement="At random there is no such rise: 5% raise it by less than the 0.5% do",
            expected=Band.at_most(0.0, "paper"),
            values=relative("effective_rank100", "random", 0.05)
            - relative("effective_rank100", "largest", 0.005),
            why=f"difference of the relative changes; {setting}",
        ),
        *(
            judge_over_seeds(
                f"{ID}/kurtosis{count}-falls",
                place=f"Fig. 4.8 ({letter})",
                statement="Re-initialising the largest changes lowers the kurtosis of the top "
                f"{count} eigenvectors",
                expected=Band.at_most(0.0, "paper"),
                values=relative(f"kurtosis{count}", "largest", 1.0),
                why="relative change to the full re-initialisation: at the start the mean kurtosis "
                f"is ruled by the leading vectors, which sit in the output layer; {setting}",
            )
            for count, letter in ((100, "b"), (50, "d"))
        ),
    ]

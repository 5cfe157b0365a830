"""Common figure style: sizes and colour-blind safe colours."""

from __future__ import annotations

from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, LogLocator, NullFormatter

from hyperribbon.core.checks import check_choice, count, instance, positive, validate

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's palette, in order of use, with an eighth brown."""

SEQUENTIAL = "viridis"
DIVERGING = "RdBu_r"

_SHORT = 1.5  # decades below which a logarithmic axis needs labels between the powers of ten
_MULTIPLES = ((1, 2, 5), (1, 2, 3, 5, 7), tuple(range(1, 10)))

_WIDTHS = {"column": 3.6, "full": 7.2}

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.prop_cycle": cycler(color=COLORS),
    "legend.fontsize": 8,
    "legend.frameon": True,
    "legend.framealpha": 0.8,
    "legend.edgecolor": "none",
    "legend.fancybox": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "savefig.dpi": 200,
    "figure.dpi": 120,
    "svg.fonttype": "none",
    "svg.hashsalt": "hyperribbon",
    "mathtext.fontset": "dejavusans",
}


@validate(rows=count, columns=count, ratio=positive)
def new_figure(
    rows: int = 1,
    columns: int = 1,
    *,
    width: Literal["column", "full"] = "column",
    ratio: float = 0.75,
    **subplots: Any,
) -> tuple[Figure, Any]:
    """Return a figure and its axes in the common style, leaving matplotlib's global state alone.

    Args:
        rows: Rows of panels.
        columns: Columns of panels.
        width: "column" (3.6 in) or "full" (7.2 in), as in a two-column paper.
        ratio: Height of a panel over its width.
        **subplots: Passed to `Figure.subplots` (sharex, squeeze, subplot_kw, …).

    Returns:
        The figure and one Axes, or an array of Axes as `Figure.subplots` gives.
    """
    check_choice("width", width, _WIDTHS)
    inches = _WIDTHS[width]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(inches, inches / columns * ratio * rows), layout="constrained")
        axes = figure.subplots(rows, columns, **subplots)
        for axis in np.atleast_1d(axes).ravel():
            axis.set_prop_cycle(color=COLORS)
    return figure, axes


@validate(figure=instance(Figure, "Give a matplotlib figure."))
def label_logs(figure: Figure) -> None:
    """Label short logarithmic axes in the common style: with a few round numbers."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            default = isinstance(axis.get_minor_formatter(), LogFormatterSciNotation)
            low, high = sorted(axis.get_view_interval())
            if default and 0 < low < high < low * 10**_SHORT:
                _label_few(axis, low, high)


def _label_few(axis: Axis, low: float, high: float) -> None:
    for multiples in _MULTIPLES:
        locator = LogLocator(subs=multiples)
        ticks = np.asarray(locator.tick_values(low, high))
        if ((ticks >= low) & (ticks <= high)).sum() >= 3:
            break
    axis.set_major_locator(locator)
    if low >= 1e-3 and high < 1e5:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))
    axis.set_minor_formatter(NullFormatter())

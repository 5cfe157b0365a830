"""Charts as matplotlib figures."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hyperribbon.core.checks import ArgumentError, instance, validate
from hyperribbon.plots.charts import Bars, Chart, Curve, Level, Path, Surface
from hyperribbon.plots.style import COLORS, SEQUENTIAL, label_logs, new_figure

_LEGEND_LIMIT = 9
_LONGEST = 28  # characters of a name beside its bar


@validate(chart=instance(Chart, "Give plots.Chart(...)."))
def draw(chart: Chart, ax: Axes | None = None) -> Figure:
    """Return a chart drawn for print, as a matplotlib figure.

    Args:
        chart: What to draw.
        ax: Axes to draw into; None for a new figure.

    Raises:
        ArgumentError: The axes do not have as many dimensions as the chart.
    """
    options: dict[str, Any] = {"subplot_kw": {"projection": "3d"}} if chart.is_spatial else {}
    if ax is None:
        figure, axis = new_figure(ratio=0.9 if chart.is_spatial else 0.75, **options)
    else:
        figure, axis = cast(Figure, getattr(ax, "figure", None)), cast(Any, ax)
        if chart.is_spatial != (getattr(ax, "name", "") == "3d") or not hasattr(ax, "plot"):
            remedy = 'Use plt.subplot(projection="3d") for a path, and plain axes otherwise.'
            raise ArgumentError("ax", ax, f"expected axes for the chart {chart.title!r}", remedy)
    colors = count()
    labels = 0
    for mark in chart.marks:
        if isinstance(mark, Curve):
            color = next(colors) if mark.color is None else mark.color
            _curve(axis, mark, COLORS[color % len(COLORS)])
        elif isinstance(mark, Bars):
            _bars(axis, mark, next(colors))
        elif isinstance(mark, Surface):
            filled = axis.contourf(mark.x, mark.y, mark.z, levels=24, cmap=SEQUENTIAL)
            axis.contour(mark.x, mark.y, mark.z, levels=8, colors="white", linewidths=0.5)
            figure.colorbar(filled, ax=axis, label=mark.label)
        elif isinstance(mark, Path):
            _path(figure, axis, mark, COLORS[next(colors) % len(COLORS)])
        else:
            _level(axis, mark)
        labels += bool(mark.label) and not isinstance(mark, Surface)
    axis.set_xlabel(_plain(chart.x_label))
    axis.set_ylabel(_plain(chart.y_label))
    if chart.is_spatial:
        axis.set_zlabel(_plain(chart.z_label))
        axis.tick_params(labelsize=6)
        axis.locator_params(nbins=4)  # labels of a path's short side would touch
    if chart.log_x:
        axis.set_xscale("log")
    if chart.log_y:
        low, high = axis.dataLim.intervaly
        if 0 < high < low * (1 + 1e-9):  # one value up to rounding has no logarithmic range
            axis.set_ylim(low / 2, 2 * high)
        axis.set_yscale("log")
    label_logs(figure)
    if 1 <= labels <= _LEGEND_LIMIT:
        axis.legend(loc="best")
    return figure


def _curve(axis, mark: Curve, color: str) -> None:
    marker = {"line": "", "points": "o", "both": "o"}[mark.style]
    line = "" if mark.style == "points" else "--" if mark.dashed else "-"
    look = {"marker": marker, "ls": line, "color": color, "ms": 3}
    axis.plot(mark.x, mark.y, **look, label=_plain(mark.label) or None)
    if mark.low is not None and mark.high is not None:
        axis.fill_between(mark.x, mark.low, mark.high, color=color, alpha=0.2, lw=0)


def _bars(axis, mark: Bars, color: int) -> None:
    colors = [COLORS[i % len(COLORS)] for i in mark.colors or (color,) * len(mark.names)]
    positions = np.arange(len(mark.names))[::-1]
    look = {"color": colors, "height": 0.7, "error_kw": {"lw": 0.8}}
    label = _plain(mark.label) or None
    names = [n if len(n) <= _LONGEST else "…" + n[1 - _LONGEST :] for n in mark.names]
    axis.barh(positions, mark.values, xerr=mark.errors, **look, label=label)
    axis.set_yticks(positions, [_plain(name) for name in names])


def _path(figure: Figure, axis, mark: Path, color: str) -> None:
    x, y, z = mark.points.T
    axis.plot(x, y, z, color=color, lw=0.8, label=_plain(mark.label) or None)
    if mark.values is None:
        axis.scatter(x, y, z, color=color, s=5)
        return
    drawn = axis.scatter(x, y, z, c=mark.values, cmap=SEQUENTIAL, s=8)
    figure.colorbar(drawn, ax=axis, label=_plain(mark.value_label), shrink=0.6, pad=0.15)


def _level(axis, mark: Level) -> None:
    draw_line = axis.axhline if mark.axis == "y" else axis.axvline
    draw_line(mark.at, color="0.35", lw=1, ls=":", label=_plain(mark.label) or None)


def _plain(text: str) -> str:
    """Return text of a printed chart so that matplotlib does not read it as mathematics."""
    return text.replace("$", r"\$")

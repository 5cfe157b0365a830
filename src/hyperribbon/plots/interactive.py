"""Charts as plotly figures: zoom, hover, rotate."""

from __future__ import annotations

from html import escape
from itertools import count
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from hyperribbon.core.checks import instance, validate
from hyperribbon.plots.charts import Bars, Chart, Curve, Level, Path, Surface
from hyperribbon.plots.style import COLORS

_BLACK = COLORS.index("#000000")
CAMERA = {"eye": {"x": 2.2, "y": 2.1, "z": 1.2}, "center": {"x": 0, "y": 0, "z": -0.12}}
BELOW = {"orientation": "h", "thickness": 10, "y": 0, "yanchor": "top", "len": 0.9}
_LONG = 34  # characters of a vertical axis title that fit beside a small chart


def log_step(*values: ArrayLike) -> str | None:
    """Return the labels of an interactive chart's logarithmic axis: "D2" for 1, 2 and 5.

    Over one to three decades that is every digit, and the labels of 7, 8 and 9 touch.

    >>> log_step([1.0, 30.0]), log_step([1.0, 2.0]), log_step([1e-9, 1.0])
    ('D2', None, None)
    """
    numbers = np.concatenate([np.ravel(np.asarray(one, dtype=float)) for one in values or [[]]])
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    decades = float(np.ptp(np.log10(numbers))) if len(numbers) else 0.0
    return "D2" if 0.8 < decades < 3 else None


@validate(chart=instance(Chart, "Give plots.Chart(...)."))
def draw_interactive(chart: Chart) -> go.Figure:
    """Return a chart as an interactive plotly figure; names in it cannot carry markup.

    Args:
        chart: What to draw.
    """
    figure = go.Figure()
    colors = count()
    for mark in chart.marks:
        if isinstance(mark, Curve):
            _curve(figure, mark, _color(next(colors) if mark.color is None else mark.color))
        elif isinstance(mark, Bars):
            _bars(figure, mark, next(colors))
        elif isinstance(mark, Surface):
            bar = {"title": {"text": escape(mark.label), "side": "right"}}
            figure.add_contour(x=mark.x, y=mark.y, z=mark.z, colorscale="Viridis", colorbar=bar)
        elif isinstance(mark, Path):
            _path(figure, mark, _color(next(colors)))
        else:
            _level(figure, chart, mark)
    shown = sum(bool(mark.label) for mark in chart.marks if not isinstance(mark, Surface))
    figure.update_layout(
        template="plotly_white",
        margin={"l": 64, "r": 16, "t": 16, "b": 52},
        font={"size": 13},
        showlegend=shown > 0,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        hovermode="closest",
    )
    axes = {"x": escape(chart.x_label), "y": _wrap(chart.y_label)}
    if chart.is_spatial:
        look = {"gridcolor": "#9aa0a6", "showbackground": False, "tickfont": {"size": 10}}
        names = {**axes, "z": escape(chart.z_label)}
        titles = {
            f"{name}axis": {"title": {"text": text, "font": {"size": 11}}, **look}
            for name, text in names.items()
        }
        figure.update_layout(
            scene={**titles, "aspectmode": "cube", "camera": CAMERA}, margin={"l": 0, "b": 48}
        )
        return figure
    for name, text, is_log in (("x", axes["x"], chart.log_x), ("y", axes["y"], chart.log_y)):
        layout: dict[str, Any] = {"title": {"text": text}, "type": "log" if is_log else None}
        if is_log:
            values = [getattr(m, name) for m in chart.marks if isinstance(m, Curve)]
            layout |= {"exponentformat": "power", "dtick": log_step(*values)}
        figure.update_layout({f"{name}axis": layout})
    heights = {float(y) for m in chart.marks if isinstance(m, Curve) for y in np.ravel(m.y)}
    if len(heights) == 1 and not chart.log_y:  # plotly would show a constant c from c - 1 to c + 1
        figure.update_yaxes(range=sorted((0.0, 2 * heights.pop())))
    if any(isinstance(mark, Bars) for mark in chart.marks):
        figure.update_layout(
            yaxis={"autorange": "reversed", "automargin": True, "type": "category"}
        )
    return figure


def _wrap(text: str) -> str:
    """Return an axis title in lines that fit beside a small interactive chart."""
    return "<br>".join(escape(line) for line in wrap(text, _LONG))


def _color(index: int) -> str:
    # Black would vanish on a dark page.
    index = index % len(COLORS)
    return "#888888" if index == _BLACK else COLORS[index]


def _legend_entry(mark: Curve | Bars | Path | Level) -> dict[str, Any]:
    return {"name": escape(mark.label), "showlegend": bool(mark.label)}


def _curve(figure: go.Figure, mark: Curve, color: str) -> None:
    if mark.low is not None and mark.high is not None:
        around = {"x": np.concatenate([mark.x, mark.x[::-1]])}
        around["y"] = np.concatenate([mark.high, mark.low[::-1]])
        filled = {"fill": "toself", "fillcolor": color, "opacity": 0.2, "line": {"width": 0}}
        quiet = {"hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(**around, **filled, **quiet, mode="lines")
    mode = {"line": "lines", "points": "markers", "both": "lines+markers"}[mark.style]
    line = {"color": color, "dash": "dash" if mark.dashed else "solid"}
    look = {"line": line, "marker": {"color": color, "size": 6}}
    figure.add_scatter(x=mark.x, y=mark.y, mode=mode, **look, **_legend_entry(mark))


def _bars(figure: go.Figure, mark: Bars, color: int) -> None:
    errors = {"array": mark.errors, "thickness": 1.2, "color": "#888888"}
    look = {"color": [_color(i) for i in mark.colors or (color,) * len(mark.names)]}
    bars = {"x": mark.values, "y": [escape(name) for name in mark.names], "orientation": "h"}
    shown = None if mark.errors is None else errors
    figure.add_bar(**bars, error_x=shown, marker=look, **_legend_entry(mark))


def _path(figure: go.Figure, mark: Path, color: str) -> None:
    x, y, z = mark.points.T
    marker: dict[str, Any] = {"size": 3, "color": color}
    if mark.values is not None:
        bar = {"title": {"text": escape(mark.value_label), "side": "top"}, **BELOW}
        marker = {"size": 4, "color": mark.values, "colorscale": "Viridis", "colorbar": bar}
    notes = [escape(note) for note in mark.notes] or None
    look = {"mode": "lines+markers", "line": {"color": color, "width": 3}, "marker": marker}
    figure.add_scatter3d(x=x, y=y, z=z, text=notes, **look, **_legend_entry(mark))


def _level(figure: go.Figure, chart: Chart, mark: Level) -> None:
    """Draw an interactive chart's level as a curve, so that it follows when an axis is switched."""
    if any(isinstance(other, Bars) for other in chart.marks):
        bars = next(other for other in chart.marks if isinstance(other, Bars))
        ends: list[Any] = [escape(bars.names[0]), escape(bars.names[-1])]
    else:
        curves = [other for other in chart.marks if isinstance(other, Curve)]
        along = [other.x if mark.axis == "y" else other.y for other in curves]
        values = np.concatenate(along) if along else np.array([0.0, 1.0])
        ends = [np.nanmin(values), np.nanmax(values)]
    x, y = (ends, [mark.at] * 2) if mark.axis == "y" else ([mark.at] * 2, ends)
    look = {"color": "#888888", "dash": "dot", "width": 1.5}
    figure.add_scatter(x=x, y=y, mode="lines", line=look, **_legend_entry(mark))

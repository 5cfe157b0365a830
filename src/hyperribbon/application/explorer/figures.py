"""Figures of the explorer's pages in theme colours, and the blocks around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from dash import dcc, html
from numpy.typing import ArrayLike

from hyperribbon.application.explorer.controls import aria
from hyperribbon.plots.interactive import log_step

Drawing = dict[str, Any]
"""A figure in plotly's JSON. Its classes check every value, which takes longer than the theory."""

_CLEAR, _GRID = "rgba(0,0,0,0)", "rgba(128,128,128,.22)"
_LINES: dict[str, Any] = {"gridcolor": _GRID, "zerolinecolor": _GRID}
_AXIS: dict[str, Any] = {**_LINES, "linecolor": "#9ca3af"}
_PAPER: dict[str, Any] = {"paper_bgcolor": _CLEAR, "plot_bgcolor": _CLEAR}
_TEXT: dict[str, Any] = {"color": "#6b7280"}
_SPATIAL = ("scatter3d", "surface", "mesh3d")


def blend_in(figure: go.Figure) -> go.Figure:
    """Make the colours of an explorer figure suit both the light and the dark theme."""
    figure.update_layout(**_PAPER, font=_TEXT)
    figure.update_xaxes(**_AXIS)
    figure.update_yaxes(**_AXIS)
    if any(True for kind in _SPATIAL for _ in figure.select_traces({"type": kind})):
        wall = {**_LINES, "backgroundcolor": _CLEAR}
        figure.update_scenes(xaxis=wall, yaxis=wall, zaxis=wall)
        figure.update_layout(legend={"orientation": "h", "x": 0, "y": 0, "yanchor": "top"})
    return figure


def axes_layout(x: str, y: str, *, log: str = "", **layout: Any) -> dict[str, Any]:
    """Return the layout of the explorer's figures: axis titles, margins, and theme colours.

    Args:
        x: Title of the horizontal axis.
        y: Title of the vertical axis.
        log: Names of the logarithmic axes: "", "x", "y" or "xy".
        **layout: Further properties.
    """
    axes = {
        f"{name}axis": {
            **_AXIS,
            "title": {"text": title},
            "type": "log" if name in log else "linear",
            "zeroline": False,
            "exponentformat": "power",
        }
        for name, title in (("x", x), ("y", y))
    }
    if x == "step":  # whole numbers, as they are counted
        axes["xaxis"] |= {"exponentformat": "none", "separatethousands": True, "nticks": 6}
    return {
        "margin": {"l": 64, "r": 16, "t": 32, "b": 52},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "font": {"family": "system-ui, sans-serif", "size": 13, **_TEXT},
        "uirevision": "keep",
        **axes,
        **_PAPER,
        **layout,
    }


def drawing(traces: Sequence[dict[str, Any]], x: str, y: str, **layout: Any) -> Drawing:
    """Return an explorer figure of the given traces; other arguments as in `axes_layout`."""
    shown = axes_layout(x, y, **layout)
    for name in "xy":
        if shown[f"{name}axis"]["type"] == "log":
            values = [trace[name] for trace in traces if trace["type"] == "scatter"]
            shown[f"{name}axis"]["dtick"] = log_step(*values)
    return {"data": list(traces), "layout": shown}


def curve(
    name: str, x: ArrayLike, y: ArrayLike, mode: str = "lines", **look: Any
) -> dict[str, Any]:
    """Return a trace of points for an explorer figure, optionally joined by lines."""
    return {"type": "scatter", "name": name, "x": plain(x), "y": plain(y), "mode": mode, **look}


def plain(values: ArrayLike) -> list[Any]:
    """Return the numbers of an explorer figure as JSON values; non-finite ones become null."""
    array = np.asarray(values)
    entries = array.astype(object)
    entries[~np.isfinite(array)] = None
    return entries.tolist()


_EMPTY = {
    "layout": {
        **dict.fromkeys(("paper_bgcolor", "plot_bgcolor"), "rgba(0,0,0,0)"),
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
    }
}
"""What a graph shows until its first figure arrives, on light and dark pages."""


def picture_block(
    title: str, describe: str, id: str | dict[str, str], figure: Any = None, *, export: str = ""
) -> html.Figure:
    """Return an explorer figure with its heading and export buttons.

    Args:
        title: Heading.
        describe: What it shows, for screen readers.
        id: Id of the graph.
        figure: The initial figure.
        export: File name of exports, without extension; empty for no export.
    """
    exports = [
        html.Button(kind, type="button", className="quiet", **aria(f"Export {title} as {kind}"))
        for kind in (("SVG", "PNG", "CSV") if export else ())
    ]
    shown = _EMPTY if figure is None else figure
    graph = dcc.Graph(id=id, config={"displaylogo": False, "responsive": True}, figure=shown)
    file_name: Any = {"data-name": export}
    return html.Figure(
        [
            html.Figcaption([html.H2(title), html.Div(exports, className="exports", **file_name)]),
            html.Div(graph, role="img", **aria(describe)),
        ]
    )


def code_block(id: str | dict[str, str], text: str = "") -> html.Details:
    """Return the collapsible Python code of an explorer figure with a copy button."""
    return html.Details(
        [
            html.Summary("Python code for this page"),
            html.Div(
                [
                    dcc.Clipboard(target_id=id, title="Copy", className="copy"),
                    html.Pre(text, id=id, tabIndex="0"),
                ]
            ),
        ],
        className="code",
    )

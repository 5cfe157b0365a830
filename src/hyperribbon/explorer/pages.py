"""Theory pages: controls, figures, readouts, and the Python code that reproduces them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from hyperribbon.core.checks import ArgumentError
from hyperribbon.explorer.controls import Control, Values

__all__ = [
    "Action",
    "Drawing",
    "TheoryPage",
    "TheoryPicture",
    "Readings",
    "axes_layout",
    "blend_in",
    "curve",
    "drawing",
    "plain",
]

Drawing = dict[str, Any]
"""A figure in plotly's JSON. Its classes check every value, which takes longer than the theory."""

Readings = Sequence[tuple[str, str]]
"""Readouts beside the figures: label and formatted value."""

Report = Callable[[float, Any], bool]
"""Called with the fraction of work done and the result so far; returns False to stop."""


@dataclass(frozen=True)
class TheoryPicture:
    """One figure of a page.

    Attributes:
        name: Part of its id and of the exported file's name.
        title: Heading.
        draw: Returns a figure from the values and the overlay of the last measurement (or None).
        describe: One sentence on what it shows, for screen readers.
        sets: Maps a clicked point to the control values that it sets.
    """

    name: str
    title: str
    draw: Callable[[Values, Any], Drawing]
    describe: str
    sets: Callable[[Mapping[str, Any]], Values] | None = None


@dataclass(frozen=True)
class Action:
    """A measurement started by a button and overlaid on the figures.

    Attributes:
        label: The button's text.
        run: Returns the final result (plain values) from the values and a progress callback.
        uses: Controls whose change makes the result stale.
    """

    label: str
    run: Callable[[Values, Report], Any]
    uses: Sequence[str]


@dataclass(frozen=True)
class TheoryPage:
    """One page of the explorer.

    Attributes:
        key: Its path.
        title: Its name in the menu.
        lead: One or two sentences at the top.
        controls: What can be set.
        pictures: What is drawn.
        read: Returns the readouts beside the figures.
        code: Returns Python code that computes the same numbers.
        action: The measurement it offers, if any.
        bars: Group label of the controls drawn as bars.
        extra: Further components above the pictures.
    """

    key: str
    title: str
    lead: str
    controls: Sequence[Control]
    pictures: Sequence[TheoryPicture]
    read: Callable[[Values], Readings]
    code: Callable[[Values], str]
    action: Action | None = None
    bars: str = ""
    extra: Sequence[Any] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        names = [part.name for part in (*self.controls, *self.pictures)]
        if len(set(names)) < len(names):
            raise ArgumentError("pictures", names, "two parts share a name", "Rename one.")


_CLEAR, _GRID = "rgba(0,0,0,0)", "rgba(128,128,128,.22)"
_LINES: dict[str, Any] = {"gridcolor": _GRID, "zerolinecolor": _GRID}
_AXIS: dict[str, Any] = {**_LINES, "linecolor": "#9ca3af"}
_PAPER: dict[str, Any] = {"paper_bgcolor": _CLEAR, "plot_bgcolor": _CLEAR}
_TEXT: dict[str, Any] = {"color": "#6b7280"}
_SPATIAL = ("scatter3d", "surface", "mesh3d")


def blend_in(figure: go.Figure) -> go.Figure:
    """Make a figure's colours suit both the light and the dark theme."""
    figure.update_layout(**_PAPER, font=_TEXT)
    figure.update_xaxes(**_AXIS)
    figure.update_yaxes(**_AXIS)
    if any(True for kind in _SPATIAL for _ in figure.select_traces({"type": kind})):
        wall = {**_LINES, "backgroundcolor": _CLEAR}
        figure.update_scenes(xaxis=wall, yaxis=wall, zaxis=wall)
        figure.update_layout(legend={"orientation": "h", "x": 0, "y": 0, "yanchor": "top"})
    return figure


def axes_layout(x: str, y: str, *, log: str = "", **layout: Any) -> dict[str, Any]:
    """Return the explorer's figure layout: axis titles, margins, and theme colours.

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
    if "y" in log:
        axes["yaxis"]["nticks"] = 6  # so that a short one does not label every digit
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
    """Return a figure of the given traces; other arguments as in `axes_layout`."""
    return {"data": list(traces), "layout": axes_layout(x, y, **layout)}


def curve(
    name: str, x: ArrayLike, y: ArrayLike, mode: str = "lines", **look: Any
) -> dict[str, Any]:
    """Return a trace of points, optionally joined by lines."""
    return {"type": "scatter", "name": name, "x": plain(x), "y": plain(y), "mode": mode, **look}


def plain(values: ArrayLike) -> list[Any]:
    """Convert numbers to JSON values; non-finite entries become null."""
    array = np.asarray(values)
    entries = array.astype(object)
    entries[~np.isfinite(array)] = None
    return entries.tolist()

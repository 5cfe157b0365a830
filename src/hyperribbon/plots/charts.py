"""A chart as plain values, so that one description gives a printed and an interactive figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Bars", "Chart", "Curve", "Level", "Path", "Surface"]


@dataclass(frozen=True)
class Curve:
    """Points in order, as a line, as markers, or as both.

    Attributes:
        x: (n,).
        y: (n,).
        label: Name in the legend; empty for none.
        style: "line", "points" or "both".
        dashed: Whether the line is dashed: predictions, not measurements.
        low: (n,) lower edge of a band around the line, or None.
        high: (n,) upper edge.
        color: Position in the palette; None takes the next one.
    """

    x: np.ndarray
    y: np.ndarray
    label: str = ""
    style: str = "line"
    dashed: bool = False
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    color: int | None = None


@dataclass(frozen=True)
class Bars:
    """One bar a name.

    Attributes:
        names: Names along the axis.
        values: (n,).
        errors: (n,) half-lengths of error bars, or None.
        label: Name in the legend.
        colors: Position in the palette for every bar; None for one colour.
    """

    names: tuple[str, ...]
    values: np.ndarray
    errors: np.ndarray | None = None
    label: str = ""
    colors: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Surface:
    """Values on a grid, as colours with contour lines.

    Attributes:
        x: (n,).
        y: (m,).
        z: (m, n).
        label: What z is.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    label: str = ""


@dataclass(frozen=True)
class Path:
    """A path in three dimensions.

    Attributes:
        points: (n, 3).
        label: Name in the legend.
        values: (n,) numbers shown as colour along it, or None.
        value_label: What they are.
        notes: Text for each point.
    """

    points: np.ndarray
    label: str = ""
    values: np.ndarray | None = None
    value_label: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Level:
    """A straight line across the chart.

    Attributes:
        at: Where it crosses the axis.
        label: What it is.
        axis: "y" for a horizontal line, "x" for a vertical one.
    """

    at: float
    label: str
    axis: str = "y"


Mark = Curve | Bars | Surface | Path | Level


@dataclass(frozen=True)
class Chart:
    """Everything a figure shows.

    Attributes:
        name: File name without its ending.
        title: One line.
        x_label: What the horizontal axis is.
        y_label: What the vertical axis is.
        marks: What is drawn, first below.
        caption: How to read it.
        z_label: What the third axis is, for paths.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical axis is logarithmic.
        toggles: Axes a reader may switch between linear and logarithmic.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    marks: tuple[Mark, ...]
    caption: str = ""
    z_label: str = ""
    log_x: bool = False
    log_y: bool = False
    toggles: tuple[str, ...] = ()

    @property
    def is_spatial(self) -> bool:
        """Whether it has three axes."""
        return any(isinstance(mark, Path) for mark in self.marks)

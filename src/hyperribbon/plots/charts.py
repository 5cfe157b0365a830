"""Chart descriptions, rendered as static (matplotlib) or interactive (plotly) figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_choice, check_readable, is_tensor
from hyperribbon.core.result import Brief


def _check_series(mark: Any, shapes: Mapping[str, tuple[int | None, ...]]) -> None:
    """Check that a chart's fields are numbers of given shapes; None is any length, NaN a gap."""
    for name, wanted in shapes.items():
        value = getattr(mark, name)
        check_readable(name, value)
        try:
            array = np.asarray(value.detach() if is_tensor(value) else value)
            found = array.shape if array.dtype.kind in "biuf" else None
        except (TypeError, ValueError):  # a ragged list, a tensor of a device
            found = None
        if found is None or len(found) != len(wanted):
            reason = f"expected numbers with {len(wanted)} axes"
            raise ArgumentError(name, value, reason, "Give an array of numbers.")
        if is_tensor(value) or name == "points":
            object.__setattr__(mark, name, array)
        if any(size not in (None, own) for size, own in zip(wanted, found, strict=True)):
            reason = f"its shape is {found}; expected {wanted}"
            raise ArgumentError(name, value, reason, "Give one value per point.")


@dataclass(frozen=True)
class Curve(Brief):
    """Points of a chart in order, as a line, as markers, or as both.

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

    def __post_init__(self) -> None:
        _check_series(self, {"x": (None,)})
        band = [name for name in ("low", "high") if getattr(self, name) is not None]
        _check_series(self, {name: (len(self.x),) for name in ("y", *band)})
        checks.text("label", self.label)
        check_choice("style", self.style, ("line", "points", "both"))
        checks.flag("dashed", self.dashed)
        if self.color is not None:
            object.__setattr__(self, "color", checks.whole("color", self.color))


@dataclass(frozen=True)
class Bars(Brief):
    """Bars of a chart, one per name.

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

    def __post_init__(self) -> None:
        if not isinstance(self.names, tuple | list) or not all(
            isinstance(name, str) for name in self.names
        ):
            raise ArgumentError("names", self.names, "expected strings", "Give a tuple of names.")
        given = [name for name in ("errors", "colors") if getattr(self, name) is not None]
        _check_series(self, {name: (len(self.names),) for name in ("values", *given)})
        if self.errors is not None and (np.asarray(self.errors) < 0).any():
            raise ArgumentError("errors", self.errors, "some are negative", "Give half-lengths.")
        if self.colors is not None:
            colors = tuple(checks.whole("colors", position) for position in self.colors)
            object.__setattr__(self, "colors", colors)
        checks.text("label", self.label)


@dataclass(frozen=True)
class Surface(Brief):
    """A surface of a chart: values on a grid, as colours with contour lines.

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

    def __post_init__(self) -> None:
        _check_series(self, {"x": (None,), "y": (None,)})
        _check_series(self, {"z": (len(self.y), len(self.x))})
        checks.text("label", self.label)


@dataclass(frozen=True)
class Path(Brief):
    """A path of a chart in three dimensions.

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

    def __post_init__(self) -> None:
        _check_series(self, {"points": (None, 3)})
        if self.values is not None:
            _check_series(self, {"values": (len(self.points),)})
        for name in ("label", "value_label"):
            checks.text(name, getattr(self, name))
        if not isinstance(self.notes, tuple | list) or len(self.notes) not in (0, len(self.points)):
            reason = f"there are {len(self.points)} points"
            raise ArgumentError("notes", self.notes, reason, "Give one text per point, or none.")
        checks.list_of(checks.text)("notes", self.notes)


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

    def __post_init__(self) -> None:
        _check_series(self, {"at": ()})
        checks.text("label", self.label)
        check_choice("axis", self.axis, ("x", "y"))


Mark = Curve | Bars | Surface | Path | Level


@dataclass(frozen=True)
class Chart(Brief):
    """The description of a chart, drawn by matplotlib or plotly.

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

    def __post_init__(self) -> None:
        for name in ("name", "title", "x_label", "y_label", "caption", "z_label"):
            checks.text(name, getattr(self, name))
        for name in ("log_x", "log_y"):
            checks.flag(name, getattr(self, name))
        kinds = (Curve, Bars, Surface, Path, Level)
        if not isinstance(self.marks, tuple | list) or not all(
            isinstance(mark, kinds) for mark in self.marks
        ):
            raise ArgumentError("marks", self.marks, "expected marks", "Give (Curve(x, y),).")

    @property
    def is_spatial(self) -> bool:
        """Whether the chart has three axes."""
        return any(isinstance(mark, Path) for mark in self.marks)

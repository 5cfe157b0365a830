"""The base of results: a table, a figure, one line, and HTML for notebooks; it needs no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sized
from dataclasses import fields, is_dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from hyperribbon.core import html

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType

_ROWS = 12  # of a table in a notebook; so many more open on a click
_MORE = 200


class Summary(str):
    """A result in words; a notebook or an interactive Python shows it line by line."""

    __slots__ = ()

    @classmethod
    def of(cls, rendered: RenderableType) -> Summary:
        """Return as any result's summary what rich would print, without colours."""
        from rich.console import Console

        plain: dict[str, Any] = {"color_system": None, "force_jupyter": False}
        console = Console(file=StringIO(), legacy_windows=False, **plain)
        with console.capture() as captured:
            console.print(rendered, highlight=False)
        return cls("\n".join(line.rstrip() for line in captured.get().rstrip().splitlines()))

    def __repr__(self) -> str:
        """Return any result's summary as it reads."""
        return str(self)


class Brief:
    """A class whose repr is one line: the entries of an array are not printed, but its shape."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Brief.__repr__  # else a dataclass makes one that prints every array

    def _headline(self) -> str:
        """Return the fields in one line."""
        shown = [f.name for f in fields(self) if f.repr] if is_dataclass(self) else []
        return ", ".join(f"{name}={_short(getattr(self, name))}" for name in shown)

    def __repr__(self) -> str:
        """Return the object in one line, without its arrays."""
        return f"{type(self).__name__}({self._headline()})"


class Result(Brief, ABC):
    """A result with a table, a figure, a short repr and HTML for notebooks.

    A subclass defines `to_frame`. `plot` draws the first two columns of that table, one against the
    other, unless the class names another function of `hr.plots`:
    `class Spectrum(Result, plot="plot_spectrum")`. `_headline` may be replaced by a better line.
    """

    _plot_function: ClassVar[str] = "plot_frame"

    def __init_subclass__(cls, plot: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if plot:
            cls._plot_function = plot

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """Return the numbers of any result as a pandas.DataFrame."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw any result and return the axes.

        Args:
            ax: Axes to draw into; None for those of a new figure.

        Returns:
            The axes; `.figure.savefig(path)` writes them to a file.
        """
        import hyperribbon  # plots is a higher layer, reached by its public name

        return getattr(hyperribbon.plots, self._plot_function)(self, ax)

    def _headline(self) -> str:
        """Return any result's fields that are numbers or texts, in one line."""
        shown = [f.name for f in fields(self) if f.repr] if is_dataclass(self) else []
        values = {name: getattr(self, name) for name in shown}
        plain = {n: v for n, v in values.items() if isinstance(v, int | float | str)}
        return ", ".join(f"{name}={_short(value)}" for name, value in plain.items())

    def _repr_html_(self) -> str:
        """Show any result's figure and table, in a notebook."""
        table = self.to_frame()
        picture = html.picture(cast("Figure", self.plot().figure), type(self).__name__)
        return html.card(self._headline(), f"<div>{picture}</div>", html.frame(table, _ROWS, _MORE))


def frame(columns: Mapping[str, Any], index: str = "", first: int = 1) -> pd.DataFrame:
    """Return columns of any result, arrays, tensors or numbers, as a pandas.DataFrame.

    Args:
        columns: Values by name; those that are None are omitted.
        index: Name of the index, if it has one.
        first: Number of the first row in it.

    >>> frame({"eigenvalue": np.array([2.0, 1.0]), "bound": None}, "number")
            eigenvalue
    number
    1              2.0
    2              1.0
    """
    import pandas as pd

    table = pd.DataFrame({n: _array(c) for n, c in columns.items() if c is not None})
    if index:
        table.index = pd.RangeIndex(first, first + len(table), name=index)
    return table


def _short(value: Any) -> str:
    if isinstance(value, float):
        return format(value, ".4g")
    if hasattr(value, "shape"):
        return str(tuple(value.shape))
    if isinstance(value, Sized) and not isinstance(value, str):
        return f"{len(value)} entries"
    return repr(value)


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        from hyperribbon.core.devices.tensors import host_array

        value = host_array(value)
    return np.atleast_1d(np.asarray(value))

"""Controls of a page: what can be set, within which limits, and how it stands in a link."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from dash import dcc, html

__all__ = ["Choice", "Control", "Slider", "Values", "aria", "read_link", "write_link"]

Values = dict[str, Any]
_BAR_HEIGHT = 150


@dataclass(frozen=True)
class Slider:
    """A number on a line.

    Attributes:
        name: Its name in the link and in the values.
        label: What a person reads.
        low: Smallest value.
        high: Largest value.
        default: Value at the start.
        step: Distance of the values; for a logarithmic slider, in decades.
        log: Whether the line is logarithmic.
        whole: Whether values are whole numbers.
        help: One sentence for the curious and for screen readers.
        is_bar: Whether it stands upright and is drawn as a bar, beside others of its kind.
    """

    name: str
    label: str
    low: float
    high: float
    default: float
    step: float
    log: bool = False
    whole: bool = False
    help: str = ""
    is_bar: bool = False

    def position(self, value: float) -> float:
        """Return where a value stands on the line."""
        return round(math.log10(value), 6) if self.log else value

    def value(self, position: float) -> float | int:
        """Return the value at a position of the line, whatever a browser calls one."""
        try:
            place = float(position)
        except (TypeError, ValueError, OverflowError):
            return self.default
        if not math.isfinite(place):
            return self.default
        place = min(max(place, self.position(self.low)), self.position(self.high))
        number = 10**place if self.log else place
        number = min(max(number, self.low), self.high)
        return round(number) if self.whole else float(f"{number:.4g}")

    def parse(self, text: str) -> float | int:
        """Return the value a link states, brought inside the limits; the default if it is none."""
        try:
            number = float(text)
        except ValueError:
            return self.default
        if not math.isfinite(number):
            return self.default
        number = min(max(number, self.low), self.high)
        return round(number) if self.whole else number

    def show(self, value: float) -> str:
        """Return the value as a person reads it."""
        return f"{round(value):,}".replace(",", " ") if self.whole else f"{value:.4g}"

    def component(self, page: str) -> html.Div:
        """Return the Dash component."""
        low, high = self.position(self.low), self.position(self.high)
        ends = {_mark(low): self.show(self.low), _mark(high): self.show(self.high)}
        slider = dcc.Slider(
            id=f"{page}-{self.name}",
            min=low,
            max=high,
            step=self.step,
            value=self.position(self.default),
            marks=None if self.is_bar else ends,
            updatemode="drag",
            allow_direct_input=False,
            vertical=self.is_bar,
            verticalHeight=_BAR_HEIGHT,
        )
        return _framed(self, page, slider, self.show(self.default))


@dataclass(frozen=True)
class Choice:
    """One of several words.

    Attributes:
        name: Its name in the link and in the values.
        label: What a person reads.
        choices: Words to choose from, with what a person reads.
        default: Word at the start.
        help: One sentence.
    """

    name: str
    label: str
    choices: Mapping[str, str]
    default: str
    help: str = ""
    is_bar = False

    def position(self, value: str) -> str:
        """Return the word."""
        return value

    def value(self, position: str) -> str:
        """Return the word."""
        return position if isinstance(position, str) and position in self.choices else self.default

    def parse(self, text: str) -> str:
        """Return the word a link states, or the default."""
        return self.value(text)

    def show(self, value: str) -> str:
        """Return nothing: the choice shows itself."""
        return ""

    def component(self, page: str) -> html.Div:
        """Return the Dash component."""
        options = [{"label": v, "value": k} for k, v in self.choices.items()]
        name = f"{page}-{self.name}"
        items = dcc.RadioItems(id=name, options=options, value=self.default, className="choices")
        return _framed(self, page, items, "")


Control = Slider | Choice


def aria(label: str) -> dict[str, Any]:
    """Return the attribute by which a screen reader names a component."""
    return {"aria-label": label}


def read_link(search: str | None, controls: Sequence[Control]) -> Values:
    """Return the values that a link's query states, with defaults for the rest."""
    stated = dict(parse_qsl((search or "").lstrip("?")))
    return {
        control.name: control.parse(stated[control.name])
        if control.name in stated
        else control.default
        for control in controls
    }


def write_link(values: Values, controls: Sequence[Control]) -> str:
    """Return the query that states every value that is not the default."""
    stated = {
        control.name: values[control.name]
        for control in controls
        if values[control.name] != control.default
    }
    return f"?{urlencode(stated)}" if stated else ""


def _framed(control: Control, page: str, inner: Any, shown: str) -> html.Div:
    """Return a control with its label, and beside it the value that is shown."""
    name = f"{page}-{control.name}"
    label = html.Label(control.label, id=f"{name}-label", title=control.help)
    head = html.Div([label, html.Output(shown, id=f"{name}-shown")], className="control-head")
    return html.Div(
        [head, inner],
        className="bar" if control.is_bar else "control",
        title=control.help,
        role="group",
        **aria(f"{control.label}. {control.help}"),
    )


def _mark(position: float) -> float | int:
    return int(position) if float(position).is_integer() else position

"""Page controls: sliders and choices, their ranges, and their encoding in links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from dash import dcc, html

Values = dict[str, Any]
_BAR_HEIGHT = 150


@dataclass(frozen=True)
class Slider:
    """A control of an explorer page: a numeric slider.

    Attributes:
        name: Its name in the link and in the values.
        label: Displayed label.
        low: Smallest value.
        high: Largest value.
        default: Initial value.
        step: Step between values; in decades for a logarithmic slider.
        log: Whether the scale is logarithmic.
        whole: Whether values are integers.
        help: One-sentence description, also for screen readers.
        is_bar: Whether it is drawn as a vertical bar in a group.
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
        """Return the slider position of a value."""
        return round(math.log10(value), 6) if self.log else value

    def value(self, position: Any) -> float | int:
        """Return the value at a position of a slider control; bad input gives the default."""
        try:
            return self.parse(10 ** float(position) if self.log else position)
        except (TypeError, ValueError, OverflowError):
            return self.default

    def parse(self, text: Any) -> float | int:
        """Return a number clipped to the slider's range, or the default if it is invalid."""
        try:
            number = float(text)
        except (TypeError, ValueError, OverflowError):
            return self.default
        if math.isnan(number):
            return self.default
        number = min(max(number, self.low), self.high)
        return round(number) if self.whole else float(f"{number:.4g}")

    def format(self, value: float) -> str:
        """Return a slider control's value as text."""
        return f"{round(value):,}".replace(",", " ") if self.whole else f"{value:.4g}"

    def component(self, page: str, value: float) -> html.Div:
        """Return a slider control as a Dash component."""
        low, high = self.position(self.low), self.position(self.high)
        ends = {_mark(low): self.format(self.low), _mark(high): self.format(self.high)}
        slider = dcc.Slider(
            id=f"{page}-{self.name}",
            min=low,
            max=high,
            step=self.step,
            value=self.position(value),
            marks=None if self.is_bar else ends,
            updatemode="drag",
            allow_direct_input=False,
            vertical=self.is_bar,
            verticalHeight=_BAR_HEIGHT,
        )
        return _add_label(self, page, slider)


@dataclass(frozen=True)
class Choice:
    """A control of an explorer page: a choice among several options.

    Attributes:
        name: Its name in the link and in the values.
        label: Displayed label.
        choices: Options with their displayed labels.
        default: Initial option.
    """

    name: str
    label: str
    choices: Mapping[str, str]
    default: str
    help = ""
    is_bar = False

    def value(self, position: Any) -> str:
        """Return the chosen option of a control, or the default if it is none."""
        return position if isinstance(position, str) and position in self.choices else self.default

    parse = value

    def format(self, value: str) -> str:
        """Return an empty string: a choice control already shows what is chosen."""
        return ""

    def component(self, page: str, value: str) -> html.Div:
        """Return a drop-down control as a Dash component."""
        options = [{"label": v, "value": k} for k, v in self.choices.items()]
        name = f"{page}-{self.name}"
        items = dcc.RadioItems(id=name, options=options, value=value, className="choices")
        return _add_label(self, page, items)


Control = Slider | Choice


def aria(label: str) -> dict[str, Any]:
    """Return the aria-label attribute of the explorer's control."""
    return {"aria-label": label}


def read_query(search: str | None) -> dict[str, str]:
    """Return the values of controls in a link's query, by name."""
    return dict(parse_qsl((search or "").lstrip("?")))


def write_query(entries: dict[str, Any] | list[tuple[str, Any]]) -> str:
    """Return the query string of controls' values; empty if there are none."""
    return f"?{urlencode(entries)}" if entries else ""


def read_link(search: str | None, controls: Sequence[Control]) -> Values:
    """Return the controls' values in a link, with defaults for the rest."""
    stated = read_query(search)
    return {
        control.name: control.parse(stated.get(control.name, control.default))
        for control in controls
    }


def write_link(values: Values, controls: Sequence[Control]) -> str:
    """Return a link's query string with every control that is not at its default."""
    return write_query({c.name: values[c.name] for c in controls if values[c.name] != c.default})


def _add_label(control: Control, page: str, inner: Any) -> html.Div:
    """Return one of the explorer's controls with its label and a place for its value."""
    name = f"{page}-{control.name}"
    label = html.Label(control.label, id=f"{name}-label", title=control.help)
    head = html.Div([label, html.Output(id=f"{name}-shown")], className="control-head")
    return html.Div(
        [head, inner],
        className="bar" if control.is_bar else "control",
        title=control.help,
        role="group",
        **aria(f"{control.label}. {control.help}"),
    )


def _mark(position: float) -> float | int:
    return int(position) if float(position).is_integer() else position

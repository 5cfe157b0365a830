"""HTML of results for notebooks: escaped, script-free, and theme-neutral."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

__all__ = ["bullets", "card", "curve", "folded", "image", "note", "number", "table"]

_WIDTH, _HEIGHT = 440, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 12, 36
_SPAN = 1e6  # from the largest to the smallest number that a logarithmic axis shows
_COLOR = "#3a87c8"  # legible on white and on black
_LINE = "1px solid rgba(128,128,128,.35)"
_NUMBERS: tuple[type, ...] = (int, float, np.number)
_CELL = f"padding:.15em .8em .15em 0;border-bottom:{_LINE};vertical-align:top"


def number(value: float, digits: int = 4) -> str:
    """Return a number as it is usually written.

    >>> number(0.000123456), number(1200.0), number(float("inf"))
    ('0.0001235', '1,200', 'not known')
    """
    if not math.isfinite(value):
        return "not known"
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def card(title: str, *parts: str) -> str:
    """Return a result: its title, and parts that are HTML already."""
    return f'<div style="line-height:1.45"><b>{escape(title)}</b>{"".join(parts)}</div>'


def note(text: str) -> str:
    """Return what is said beside."""
    return f' <span style="opacity:.75">{escape(text)}</span>'


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Return rows of texts and numbers; numbers stand on the right.

    >>> table(["a<b"], [[1.5]])
    '<table ...>a&lt;b</th>...1.5</td>...</table>'
    """
    head = "".join(f'<th style="{_CELL};text-align:left">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    style = "border-collapse:collapse;margin:.4em 0;font-size:.95em"
    return f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>' + (
        f'<div style="opacity:.75">{escape(caption)}</div>' if caption else ""
    )


def bullets(sentences: Iterable[tuple[str, str] | str]) -> str:
    """Return sentences as a list; of a pair the first is stressed."""
    items: list[str] = []
    for sentence in sentences:
        strong, rest = ("", sentence) if isinstance(sentence, str) else sentence
        items.append(f"<li>{f'<b>{escape(strong)}</b> ' if strong else ''}{escape(rest)}</li>")
    return f'<ul style="margin:.3em 0;padding-left:1.3em">{"".join(items)}</ul>' if items else ""


def folded(title: str, *parts: str) -> str:
    """Return parts that open on a click."""
    content = "".join(parts)
    return f"<details><summary>{escape(title)}</summary>{content}</details>" if content else ""


def image(kind: str, content: bytes, text: str) -> str:
    """Return a picture on a white sheet.

    Args:
        kind: "svg+xml" or "png".
        content: The file.
        text: What it shows.
    """
    data = base64.b64encode(content).decode()
    style = "background:#fff;max-width:100%"
    return f'<img style="{style}" alt="{escape(text)}" src="data:image/{kind};base64,{data}"/>'


def curve(
    x: Any,
    y: Any,
    *,
    x_label: str,
    y_label: str,
    low: Any = None,
    high: Any = None,
    log: bool = False,
    marks: bool = False,
) -> str:
    """Return a plot as SVG.

    Args:
        x: (n,).
        y: (n,).
        x_label: What x is.
        y_label: What y is.
        low: (n,), lower edge of a band, or None.
        high: (n,), its upper edge.
        log: Whether the vertical axis is logarithmic; non-positive values are omitted.
        marks: Points instead of a line.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    lower = y if low is None else np.asarray(low, float)
    upper = y if high is None else np.asarray(high, float)
    fine = np.isfinite(x) & np.isfinite(y)
    if log:
        fine &= y > 0
        highest = float(y[fine].max(initial=0.0)) or 1.0
        floor = max(float(y[fine].min(initial=highest)), highest / _SPAN)
        lower = np.maximum(lower, floor)
        y, lower, upper = (np.log10(np.maximum(v, floor)) for v in (y, lower, upper))
    if not fine.any():
        return ""
    x, y, lower, upper = x[fine], y[fine], lower[fine], upper[fine]
    ends_x = x.min(), x.max()
    ends_y = min(y.min(), lower.min()), max(y.max(), upper.max())
    across = _scale(x, ends_x, _LEFT, _WIDTH - _RIGHT)
    up, bottom, top = (_scale(v, ends_y, _HEIGHT - _BOTTOM, _TOP) for v in (y, lower, upper))
    drawn = ""
    if low is not None and high is not None:
        edge = [*zip(across, bottom, strict=True), *zip(across[::-1], top[::-1], strict=True)]
        drawn += f'<polygon points="{_join_points(edge)}" fill="{_COLOR}" fill-opacity=".25"/>'
    pairs = list(zip(across, up, strict=True))
    if marks:
        drawn += "".join(f'<circle cx="{a}" cy="{b}" r="3" fill="{_COLOR}"/>' for a, b in pairs)
    else:
        line = f'fill="none" stroke="{_COLOR}" stroke-width="1.6"'
        drawn += f'<polyline points="{_join_points(pairs)}" {line}/>'
    return _add_axes(drawn, x_label, y_label, ends_x, [10**v if log else v for v in ends_y])


def _add_axes(
    drawn: str, x_label: str, y_label: str, ends_x: Sequence[float], ends_y: Sequence[float]
) -> str:
    """Return a drawing within its axes, whose ends are labelled."""
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    frame = f"M{_LEFT} {_TOP}V{floor}H{right}"
    labels = (
        (_LEFT, floor + 15, "start", number(ends_x[0], 3)),
        (right, floor + 15, "end", number(ends_x[1], 3)),
        ((_LEFT + right) / 2, floor + 28, "middle", x_label),
        (_LEFT - 6, floor, "end", number(ends_y[0], 3)),
        (_LEFT - 6, _TOP + 9, "end", number(ends_y[1], 3)),
    )
    texts = "".join(
        f'<text x="{a}" y="{b}" text-anchor="{anchor}">{escape(text)}</text>'
        for a, b, anchor, text in labels
    )
    middle = (_TOP + floor) / 2
    texts += (
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" style="max-width:100%" '
        f'font-size="12" fill="currentColor" role="img" aria-label="{escape(y_label)}">'
        f'<path d="{frame}" fill="none" stroke="currentColor" stroke-opacity=".5"/>'
        f"{drawn}{texts}</svg>"
    )


def _cell(value: Any) -> str:
    side = "left"
    if isinstance(value, bool):
        value = "yes" if value else "no"
    elif isinstance(value, _NUMBERS):
        value, side = number(float(value)), "right"
    return f'<td style="{_CELL};text-align:{side}">{escape(str(value))}</td>'


def _scale(values: np.ndarray, ends: Sequence[float], start: float, stop: float) -> np.ndarray:
    span = ends[1] - ends[0]
    part = (values - ends[0]) / span if span > 0 else np.full(len(values), 0.5)
    return (start + part * (stop - start)).round(1)


def _join_points(pairs: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{a},{b}" for a, b in pairs)

"""HTML of results for notebooks: escaped, script-free, and theme-neutral."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_DOTS = 110  # dots per inch of pictures in notebooks: a stored notebook carries them all
_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = f"padding:.15em .8em .15em 0;border-bottom:{_LINE};vertical-align:top"


def number(value: float, digits: int = 4) -> str:
    """Return a number as HTML tables in notebooks show it.

    >>> number(0.000123456), number(1200.0), number(float("inf"))
    ('0.0001235', '1,200', 'not known')
    """
    if not math.isfinite(value):
        return "not known"
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def error_text(error: float, certainty: str) -> str:
    """Return the HTML text of the error behind a number: a sampling error, or the solver's.

    >>> error_text(0.25, "standard error over samples"), error_text(1e-6, "residual of the pair")
    ('± 0.25', '± 1e-06 (solver)')
    >>> error_text(2.5, "a lower bound: too few samples")
    '(lower bound)'
    """
    if "a lower bound" in certainty:
        return "(lower bound)"
    return f"± {error:.2g}" + (" (solver)" if "residual" in certainty else "")


def card(title: str, *parts: str) -> str:
    """Return the HTML card of a result: its title, and parts that are HTML already."""
    return f'<div style="line-height:1.45"><b>{escape(title)}</b>{"".join(parts)}</div>'


def note(text: str) -> str:
    """Return an HTML note beside a result."""
    return f' <span style="opacity:.75">{escape(text)}</span>'


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Return an HTML table of texts and numbers; numbers stand on the right.

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
    """Return sentences as an HTML list; of a pair the first is stressed."""
    items: list[str] = []
    for sentence in sentences:
        strong, rest = ("", sentence) if isinstance(sentence, str) else sentence
        items.append(f"<li>{f'<b>{escape(strong)}</b> ' if strong else ''}{escape(rest)}</li>")
    return f'<ul style="margin:.3em 0;padding-left:1.3em">{"".join(items)}</ul>' if items else ""


def details(title: str, *parts: str) -> str:
    """Return HTML parts that open on a click."""
    content = "".join(parts)
    return f"<details><summary>{escape(title)}</summary>{content}</details>" if content else ""


def image(kind: str, content: bytes, text: str) -> str:
    """Return an HTML image of a picture on a white background.

    Args:
        kind: "svg+xml" or "png".
        content: The file.
        text: What it shows.
    """
    data = base64.b64encode(content).decode()
    style = "background:#fff;max-width:100%"
    return f'<img style="{style}" alt="{escape(text)}" src="data:image/{kind};base64,{data}"/>'


def picture(figure: Figure, text: str) -> str:
    """Return a matplotlib figure as an HTML image.

    Args:
        figure: What to show.
        text: What it shows, in words.
    """
    content = BytesIO()
    figure.savefig(content, format="png", dpi=_DOTS)
    return image("png", content.getvalue(), text)


def frame(data: pd.DataFrame, rows: int, more: int) -> str:
    """Return the HTML table of a DataFrame: the first rows, and more that open on a click.

    Args:
        data: Its index is shown where it has a name.
        rows: Rows to show.
        more: Rows at most behind them.
    """
    listed = data.reset_index() if data.index.name else data
    columns = [str(name) for name in listed.columns]
    cells = list(listed.iloc[: rows + more].itertuples(index=False, name=None))
    rest = len(listed) - rows
    title = f"{min(rest, more):,} of {rest:,} more" if rest > more else f"{rest:,} more"
    folds = details(title, table(columns, cells[rows:])) if rest > 0 else ""
    return table(columns, cells[:rows]) + folds


def _cell(value: Any) -> str:
    side = "left"
    if isinstance(value, bool | np.bool_):
        value = "yes" if value else "no"
    elif isinstance(value, int | float | np.number):
        value, side = number(float(value)), "right"
    return f'<td style="{_CELL};text-align:{side}">{escape(str(value))}</td>'

"""The contents of a report: tabs of sections with text, pictures, tables and claims."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyperribbon.application.inspection.answers.terms import Term
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.claims import Claim

DAMAGE = (
    *(ArgumentError, ArithmeticError, AttributeError, LookupError),
    *(OSError, RecursionError, TypeError, ValueError, csv.Error),
)
"""What reading a damaged file may raise."""


def regular(path: Path) -> Path:
    """Return the path of a regular file to read for the report page; never a pipe.

    Raises:
        FileNotFoundError: It is something else, or missing.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path.name} is missing or not a regular file")
    return path


def describe_damage(name: str, error: BaseException) -> str:
    """Return the report page's line on a damaged part of a run."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"Damaged: {name} ({reason[:200]})."


@dataclass(frozen=True)
class Picture:
    """A figure: a static image, and where it helps an interactive chart in its place.

    Attributes:
        name: File name of the export, without its ending.
        title: Heading; may be empty.
        image: Data URI of the static image, or None.
        chart: Plotly figure as JSON, or None.
        caption: What it shows and how to read it.
        toggles: Axes of the chart that can be switched between linear and logarithmic: "x", "y".
    """

    name: str
    title: str
    image: str | None
    chart: str | None = None
    caption: str = ""
    toggles: tuple[str, ...] = ()


@dataclass
class Table:
    """A table of the report page: rows of text.

    Attributes:
        name: File name of the export, without its ending.
        title: Heading; may be empty.
        columns: Column headings.
        rows: Cells as text, one list per row.
        caption: A note below the heading.
        folded: Whether it opens on a click.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    folded: bool = False


@dataclass(frozen=True)
class ClaimRow:
    """A claim as the report page shows it.

    Attributes:
        claim: The claim.
        preset: Preset of the run that measured it.
        measured: The number with its uncertainty.
        expected: The band.
        band: Left and right edge of the expected band in percent of the picture's width.
        mark: Position of the measurement, or None when it is not finite.
        error: Left and right edge of the interval that decides.
        details: What the row opens to: the quote, where it was judged, the seeds.
    """

    claim: Claim
    preset: str
    measured: str
    expected: str
    band: tuple[float, float]
    mark: float | None
    error: tuple[float, float]
    details: tuple[tuple[str, str], ...] = ()

    @property
    def origin(self) -> str:
        """Where the band of a claim on the report's page comes from."""
        return self.claim.expected.origin

    @property
    def paper(self) -> str:
        """Key of the paper of a claim on the report's page."""
        return self.claim.paper

    @classmethod
    def of(cls, claim: Claim, preset: str) -> ClaimRow:
        """Return a claim as a row of the report page."""
        low, high = claim.expected.low, claim.expected.high
        digits = _band_digits(low, high)
        measured = format_number(claim.measured, digits)
        if claim.uncertainty > 0:
            measured += f" ± {format_number(claim.uncertainty, 2)}"
        marks = [edge if math.isfinite(edge) else claim.measured for edge in claim.interval]
        known = [value for value in (low, high, *marks) if math.isfinite(value)] or [0.0]
        middle, span = (min(known) + max(known)) / 2, max(known) - min(known)
        span = span or abs(middle) or 1.0

        def place(value: float) -> float:
            if math.isinf(value):
                return 0.0 if value < 0 else 100.0
            return 50 + 70 * (value - middle) / span

        finite = math.isfinite(claim.measured)
        return cls(
            claim,
            preset,
            measured,
            _format_band(low, high),
            (place(low), place(high)),
            place(claim.measured) if finite else None,
            (place(marks[0]), place(marks[1])) if finite else (0.0, 0.0),
            tuple(_details(claim)),
        )


def _details(claim: Claim) -> list[tuple[str, str]]:
    """Return the parts of a claim that the report page hides until its row is opened."""
    inside = "".join("✓" if good else "✗" for good in claim.by_seed)
    seeds = ", ".join(format_number(value) for value in claim.seeds)
    parts = {
        "The paper's words": f"“{claim.quote}” ({claim.place})" if claim.quote else "",
        "Judged in": claim.setting,
        "By seed": f"{seeds}  {inside}" if len(claim.seeds) > 1 else "exact" * claim.exact,
        "A verdict needs": claim.needs,
        "Changed": claim.changed,
    }
    return [(term, text) for term, text in parts.items() if text and claim.setting + claim.quote]


@dataclass(frozen=True)
class Answer:
    """A main finding as the report page shows it.

    Attributes:
        finding: The number with its uncertainty.
        rest: What it means, what is usual, what one might do: label and sentence.
        term: The term behind it, or None.
        image: Data URI of its small picture, or None.
    """

    finding: str
    rest: list[tuple[str, str]]
    term: Term | None = None
    image: str | None = None


@dataclass
class Section:
    """A section of a tab of the report page.

    Attributes:
        title: Heading.
        note: One line beside the heading: an id, a preset, a folder.
        answers: The main findings, first on the page.
        term: The term the section is about.
        text: Paragraphs.
        points: Sentences of a list.
        facts: Headline numbers: what, value, how certain.
        pictures: Figures, side by side where there is room.
        tables: Tables.
        claims: Claims in full.
        columns: Names of the runs that `verdicts` compares.
        verdicts: Claims in short, side by side: the statement, then one claim per run or None.
        warning: What is wrong with it, if anything.
    """

    title: str
    note: str = ""
    answers: list[Answer] = field(default_factory=list)
    term: Term | None = None
    text: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    facts: list[tuple[str, str, str]] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    claims: list[ClaimRow] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    verdicts: list[tuple[str, list[ClaimRow | None]]] = field(default_factory=list)
    warning: str = ""


@dataclass
class Tab:
    """A tab of the report page: sections under one label."""

    label: str
    sections: list[Section]

    @property
    def has_charts(self) -> bool:
        """Whether a chart on the report page needs plotly.js."""
        return any(picture.chart for section in self.sections for picture in section.pictures)


@dataclass
class Page:
    """The report page: everything the template shows."""

    title: str
    subtitle: str
    tabs: list[Tab]


def format_number(value: float, digits: int = 4) -> str:
    """Return a number as the report page shows it.

    >>> format_number(2.28973e-9, 3), format_number(float("nan")), format_number(1234567)
    ('2.29e-09', 'not finite', '1234567')
    """
    if not math.isfinite(value):
        return "not finite"
    if float(value).is_integer() and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.{digits}g}"


def distinct_labels(names: Sequence[str], fallbacks: Sequence[str]) -> list[str]:
    """Return distinct labels for the report page: names, with fallbacks where needed.

    >>> distinct_labels(["a", "b", "b"], ["1", "2", "3"])
    ['a', 'b (2)', 'b (3)']
    """
    return [
        name if list(names).count(name) == 1 else f"{name} ({fallback})"
        for name, fallback in zip(names, fallbacks, strict=True)
    ]


def flatten(tree: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings as rows of a table on the report page.

    >>> flatten({"a": {"b": 1}, "c": [1, 2]})
    [('a.b', '1'), ('c', '1, 2')]
    """
    if isinstance(tree, dict):
        rows = []
        for key, value in tree.items():
            rows += flatten(value, f"{prefix}.{key}" if prefix else str(key))
        return rows
    if isinstance(tree, list | tuple):
        return [(prefix, ", ".join(str(entry) for entry in tree))]
    return [(prefix, str(tree))]


def _format_band(low: float, high: float) -> str:
    if math.isinf(low):
        return "anything" if math.isinf(high) else f"at most {format_number(high)}"
    if math.isinf(high):
        return f"at least {format_number(low)}"
    if low == high:
        return format_number(low)
    digits = _band_digits(low, high)
    return f"{format_number(low, digits)} to {format_number(high, digits)}"


def _band_digits(low: float, high: float) -> int:
    """Return how many digits distinguish the edges of a band on the report page."""
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        return 4
    return min(max(4, 2 - math.floor(math.log10((high - low) / max(abs(low), abs(high))))), 12)

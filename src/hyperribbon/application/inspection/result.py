"""`Inspection`: everything found, to read, to tabulate, to store and to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from hyperribbon.application.inspection.answers import Answer, answers, describe_usual
from hyperribbon.application.inspection.engine.clock import Budget
from hyperribbon.application.inspection.quantities import Part, Quantity
from hyperribbon.core import html
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.result import Result, Summary
from hyperribbon.plots import Chart, draw

_DOTS = 90
"""Dots an inch of the pictures in notebooks: a stored notebook carries them all."""


@dataclass(frozen=True)
class Outcome:
    """What became of one step of an inspection.

    Attributes:
        step: Its title.
        status: "done", "skipped" (it did not fit in the time), "omitted" (it could not be done),
            "stopped" (the time was up), "failed" or "interrupted".
        seconds: Time it took.
        reason: Why it was not done, or what of it was cut short.
    """

    step: str
    status: str
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class PlannedStep:
    """A measurement that runs once: samples and seconds expected of it, or why it is omitted."""

    title: str
    samples: int
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class InspectionPlan(Result):
    """What was planned after the first looks at the model; times are learned on from there.

    Attributes:
        steps: In order, those omitted included.
        samples: Samples of most of them.
        budget: What everything may take.
    """

    steps: tuple[PlannedStep, ...]
    samples: int
    budget: Budget

    @property
    def seconds(self) -> float:
        """Expected seconds of the inspection result's plan."""
        return sum(step.seconds for step in self.steps if not step.reason)

    def table(self) -> pd.DataFrame:
        """Return the inspection result's plan, one row for each step."""
        rows = [(s.title, s.samples, round(s.seconds, 2), s.reason) for s in self.steps]
        columns = ["step", "samples", "seconds", "omitted because"]
        return pd.DataFrame(rows, columns=columns)

    def to_frame(self) -> pd.DataFrame:
        """Return the inspection result's plan as a DataFrame."""
        return self.table()

    def _headline(self) -> str:
        return f"{len(self.steps)} steps on {self.samples:,} samples, about {self.seconds:.0f} s"


@dataclass(frozen=True)
class Inspection(Result):
    """The geometry of one network, as `inspect` measured it.

    Attributes:
        title: The model's class.
        plan: What was planned.
        parts: Finished parts by name.
        outcomes: What became of each step.
        where: Which samples the numbers refer to.
        environment: Versions, cores and seed.
        config: The request in plain values.
        statistics: Numbers at fixed samples and directions, by name and samples: "sharpness@64".
            Two inspections with the same model, data and seed agree where both have one.
        missing: Seconds that measurements need which did not fit: "ends@512".
        skipped: The same in a sentence, with the budget that would include them; or "".
    """

    title: str
    plan: InspectionPlan
    parts: Mapping[str, Part]
    outcomes: tuple[Outcome, ...]
    where: str
    environment: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Quantity] = field(default_factory=dict)
    missing: Mapping[str, float] = field(default_factory=dict)
    skipped: str = ""

    def __iter__(self) -> Iterator[Quantity]:
        """Iterate over every number of the inspection result."""
        for part in self.parts.values():
            yield from part.quantities

    def __getitem__(self, key: str) -> Quantity:
        """Return a number of the inspection result by its key, such as "hessian.largest"."""
        found = {quantity.key: quantity for quantity in self}
        if key not in found:
            raise KeyError(f"{key!r} was not measured; there are: {', '.join(sorted(found))}")
        return found[key]

    @property
    def is_complete(self) -> bool:
        """Whether no step of the inspection result failed or was interrupted."""
        return not any(outcome.status in ("failed", "interrupted") for outcome in self.outcomes)

    def answers(self) -> list[Answer]:
        """Return an inspection result's answers, at most six: number, meaning, what is usual."""
        numbers = {quantity.key: quantity for quantity in self}
        return answers(numbers, str(self.config.get("kind", "")), self.config)

    @property
    def similar(self) -> str:
        """A sentence on the networks whose range the answers call usual, or ""."""
        numbers = {quantity.key: quantity for quantity in self}
        return describe_usual(numbers, str(self.config.get("kind", "")), self.config)

    def reading(self) -> list[str]:
        """Return the inspection result in plain sentences, the answers first."""
        first = [answer.text for answer in self.answers()]
        return first + [sentence for part in self.parts.values() for sentence in part.readings]

    def headlines(self) -> pd.DataFrame:
        """Return an inspection result's statistics at fixed samples, and what is absent.

        Inspections of one model, data and seed agree wherever both have a value.
        """
        rows = [(name, q.value, q.error, nan) for name, q in self.statistics.items()]
        rows += [(name, nan, nan, seconds) for name, seconds in self.missing.items()]
        return pd.DataFrame(rows, columns=["statistic", "value", "error", "needs seconds"])

    def table(self) -> pd.DataFrame:
        """Return an inspection result's numbers, one per row, with method and certainty."""
        rows = [
            {"part": name, **vars(quantity)}
            for name, part in self.parts.items()
            for quantity in part.quantities
        ]
        columns = ["part", "key", "name", "value", "error", "samples", "mode"]
        columns += ["method", "certainty"]
        return pd.DataFrame(rows, columns=columns)

    def to_frame(self) -> pd.DataFrame:
        """Return the inspection result's table as a DataFrame."""
        return self.table()

    def charts(self) -> dict[str, Chart]:
        """Return an inspection result's charts by name; `plot("spectrum", ax)` draws one."""
        return {chart.name: chart for part in self.parts.values() for chart in part.charts}

    def plot(self, name: str | None = None, ax: Axes | None = None) -> Axes:  # type: ignore[override]
        """Draw a chart of the inspection result and return the axes.

        Args:
            name: One of `charts()`; by default the first.
            ax: Axes to draw into; None for those of a new figure.

        Returns:
            The axes.

        Raises:
            ArgumentError: There is no chart of that name.
        """
        known = self.charts()
        if not known or (name is not None and name not in known):
            remedy = f"Available: {', '.join(known) or 'none; give a larger budget'}."
            raise ArgumentError("name", name, "no chart of this name was made", remedy)
        figure = draw(known[name or next(iter(known))], ax)
        return figure.axes[0] if ax is None else ax

    def summary(self, *, numbers: bool = False) -> Summary:
        """Return an inspection result's answers: numbers with uncertainty, meaning, what is usual.

        Args:
            numbers: Whether the table of all numbers follows; `.table()` has it too.
        """
        return Summary.of(self.rendered(numbers=numbers))

    def rendered(
        self, *, numbers: bool = False, words: Callable[[str], str] | None = None
    ) -> Group:
        """Return the inspection result's summary as `rich` prints it, in colours.

        Args:
            numbers: Whether the table of all numbers follows.
            words: Rewrites every sentence, as the command line does with advice for Python.
        """
        said = words or str
        title = f"[bold]{escape(self.title)}[/] · {escape(self.where)}"
        bullets = Table.grid(padding=(0, 1))
        for answer in self.answers():
            finding, beside = (escape(said(text)) for text in (answer.finding, answer.beside))
            bullets.add_row("•", f"[bold]{finding}[/]\n{beside}".rstrip())
        small = [
            f"{escape(o.step)}: {o.status}" + (f", {escape(said(o.reason))}" if o.reason else "")
            for o in self.outcomes
            if o.status not in ("done", "skipped") or (o.status == "done" and o.reason)
        ]
        small += [escape(said(line)) for line in (self.similar, self.skipped) if line]
        if words is None and not numbers:
            count = sum(1 for _ in self)
            small.append(f"{count} numbers: .table(); pictures and explanations: .report(path)")
        notes = Table.grid(padding=(0, 1))
        for line in small:
            notes.add_row(" ", f"[dim]{line}[/]")
        return Group(title, bullets, *([self._numbers()] if numbers else ()), notes)

    def _numbers(self) -> Table:
        table = Table(title="All numbers", title_justify="left")
        for column, style in (("", "bold"), ("value", ""), ("how", "dim"), ("how certain", "dim")):
            table.add_column(column, style=style, justify="right" if column == "value" else "left")
        for part in self.parts.values():
            if not part.quantities:
                continue
            table.add_section()
            for quantity in part.quantities:
                cells = (quantity.name, quantity.text(), quantity.method, quantity.certainty)
                table.add_row(*(escape(cell) for cell in cells))
        return table

    def save(self, folder: str | Path) -> Path:
        """Save an inspection result in a folder: tables as CSV, figures as SVG, and arrays.

        Args:
            folder: Made if absent; `hyperribbon report FOLDER` shows it.
        """
        from hyperribbon.application.inspection.storing import save_inspection

        return save_inspection(self, Path(folder))

    def report(self, path: str | Path) -> Path:
        """Write the inspection result as one HTML file that needs no network.

        Args:
            path: The file.
        """
        import hyperribbon

        with TemporaryDirectory() as folder:
            stored = self.save(Path(folder) / "inspection")
            return hyperribbon.report.write_report([stored], path)

    def _repr_html_(self) -> str:
        """Show an inspection result in a notebook: answers, pictures and all numbers."""
        told = [(answer.finding, answer.beside) for answer in self.answers()]
        rows = [(q.name, q.text(), q.method, q.certainty) for q in self]
        columns = ("", "value", "how", "how certain")
        undone = [f"{o.step}: {o.status}. {o.reason}" for o in self.outcomes if o.status != "done"]
        pieces = [html.note(f"measured on {self.where}"), html.bullets(told)]
        pieces += [html.details(p.title, *map(_picture, p.charts)) for p in self.parts.values()]
        pieces.append(html.details(f"All {len(rows)} numbers", html.table(columns, rows)))
        pieces.append(html.details("What was not done", html.bullets(undone)))
        return html.card(self.title, *pieces)

    def __repr__(self) -> str:
        """Show what the inspection result measured."""
        return f"Inspection({self.title}: {', '.join(self.parts)}; {self.where})"


def _picture(chart: Chart) -> str:
    """Return an inspection result's chart as HTML."""
    buffer = BytesIO()
    draw(chart).savefig(buffer, format="png", dpi=_DOTS)
    caption = f"<div>{html.note(chart.caption)}</div>" if chart.caption else ""
    return f"<div>{html.image('png', buffer.getvalue(), chart.title)}</div>{caption}"

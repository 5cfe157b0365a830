"""`Inspection`: everything found, to read, to tabulate, to store and to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hyperribbon.inspection.planning import InspectionPlan
from hyperribbon.inspection.quantities import Part, Quantity

__all__ = ["Inspection", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What became of one step.

    Attributes:
        step: Its title.
        status: "done", "left out", "stopped" (the time was up), "failed" or "interrupted".
        seconds: Time it took.
        reason: Why it was not done, or what of it was cut short.
    """

    step: str
    status: str
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Inspection:
    """The geometry of one network, as `inspect` measured it.

    Attributes:
        title: The model's class.
        plan: What was planned.
        parts: Finished parts by name.
        outcomes: What became of each step.
        where: Which samples the numbers refer to.
        environment: Versions, cores and seed.
        config: The request in plain values.
    """

    title: str
    plan: InspectionPlan
    parts: Mapping[str, Part]
    outcomes: tuple[Outcome, ...]
    where: str
    environment: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Quantity]:
        """Iterate over every number."""
        for part in self.parts.values():
            yield from part.quantities

    def __getitem__(self, key: str) -> Quantity:
        """Return a number by its key, such as "hessian.largest"."""
        found = {quantity.key: quantity for quantity in self}
        if key not in found:
            raise KeyError(f"{key!r} was not measured; there are: {', '.join(sorted(found))}")
        return found[key]

    @property
    def is_complete(self) -> bool:
        """Whether no step failed or was interrupted."""
        return not any(outcome.status in ("failed", "interrupted") for outcome in self.outcomes)

    def reading(self) -> list[str]:
        """Return what was found in plain sentences."""
        return [sentence for part in self.parts.values() for sentence in part.readings]

    def table(self) -> pd.DataFrame:
        """Return every number, one a row, with how it was obtained and how certain it is."""
        return pd.DataFrame(
            [
                {"part": name, **vars(quantity)}
                for name, part in self.parts.items()
                for quantity in part.quantities
            ],
            columns=["part", "key", "name", "value", "error", "method", "certainty"],
        )

    def summary(self, console: Console | None = None) -> None:
        """Print the numbers and the plain-language reading.

        Args:
            console: Where; the standard output by default.
        """
        console = console or Console()
        table = Table(title=f"{escape(self.title)} · {self.where}", title_justify="left")
        for column, style in (("", "bold"), ("value", ""), ("how", "dim"), ("how certain", "dim")):
            table.add_column(column, style=style, justify="right" if column == "value" else "left")
        for part in self.parts.values():
            if not part.quantities:
                continue
            table.add_section()
            for quantity in part.quantities:
                cells = (quantity.name, quantity.text(), quantity.method, quantity.certainty)
                table.add_row(*(escape(cell) for cell in cells))
        console.print(table)
        for sentence in self.reading():
            console.print(f" • {escape(sentence)}", highlight=False)
        for outcome in self.outcomes:
            if outcome.status != "done" or outcome.reason:
                console.print(
                    f"   [dim]{outcome.step}: {outcome.status}"
                    f"{', ' if outcome.reason else ''}{escape(outcome.reason)}[/]",
                    highlight=False,
                )

    def save(self, folder: str | Path) -> Path:
        """Write everything into a folder: tables as CSV, figures as SVG, arrays, the reading.

        Args:
            folder: Made if absent; `hyperribbon report FOLDER` shows it.
        """
        from hyperribbon.inspection.storing import save_inspection

        return save_inspection(self, Path(folder))

    def report(self, path: str | Path) -> Path:
        """Write one HTML file that shows everything and needs no network.

        Args:
            path: The file.
        """
        import hyperribbon

        with TemporaryDirectory() as folder:
            stored = self.save(Path(folder) / "inspection")
            return hyperribbon.report.write_report([stored], path)

    def __repr__(self) -> str:
        """Show what was measured."""
        return f"Inspection({self.title}: {', '.join(self.parts)}; {self.where})"

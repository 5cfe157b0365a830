"""`Comparison`: what differs between two networks, to read, to tabulate and to show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hyperribbon.core import html
from hyperribbon.inspection.comparison.differences import Difference, Shared

__all__ = ["Comparison"]

_SENTENCES = 6
_TELLING = ("loss", "predictions.agreement", "predictions.distance", "trace", "pruned.0.8")
_TELLING += ("noise", "weights.overlap")
"""Keys of the numbers in the summary, the most important first."""


@dataclass(frozen=True)
class Comparison:
    """Two networks on the same samples, as `compare` measured them.

    Attributes:
        names: What the two are called.
        differences: Quantities of both, with paired uncertainty.
        shared: Numbers that they have together.
        where: Which samples the numbers refer to.
        is_same_function: Whether their outputs are equal but for rounding.
        notes: What could not be compared, and why.
    """

    names: tuple[str, str]
    differences: tuple[Difference, ...]
    shared: tuple[Shared, ...]
    where: str
    is_same_function: bool
    notes: tuple[str, ...] = field(default=())

    def __contains__(self, key: str) -> bool:
        """Whether a number was compared."""
        return any(entry.key == key for entry in (*self.differences, *self.shared))

    def __getitem__(self, key: str) -> Difference | Shared:
        """Return a number by its key, such as "sharpness"."""
        found = {entry.key: entry for entry in (*self.differences, *self.shared)}
        if key not in found:
            raise KeyError(f"{key!r} was not compared; there are: {', '.join(found)}")
        return found[key]

    @property
    def flatter(self) -> str | None:
        """Which is flatter, "a" or "b"; None when this cannot be said.

        The one whose sharpness is lower, with an interval that excludes zero, provided that the
        adaptive sharpness, which no scaling of weights against each other can change, says the
        same.
        """
        if "sharpness" not in self or "sharpness.adaptive" not in self:
            return None
        raw, adaptive = self._sharpness()
        return raw.lower if raw.lower == adaptive.lower else None

    def reading(self) -> list[str]:
        """Return what was found in plain sentences, the answer first."""
        a, b = self.names
        sentences = [self._answer(a, b)] if "sharpness" in self else []
        sentences += [_told(self[key], a, b) for key in _TELLING if key in self]
        return [sentence for sentence in sentences if sentence][:_SENTENCES]

    def table(self) -> pd.DataFrame:
        """Return every quantity of both, one per row, with the difference and its uncertainty."""
        own = ["key", "name", "a", "b", "difference", "stderr"]
        rows = [
            (*(getattr(e, name) for name in own), *e.interval, e.lower, _agreeing(e))
            for e in self.differences
        ]
        return pd.DataFrame(rows, columns=[*own, "low", "high", "lower", "groups agreeing"])

    def summary(self, console: Console | None = None) -> None:
        """Print the answer in plain sentences, then the table.

        Args:
            console: Where; the standard output by default.
        """
        console = console or Console()
        for sentence in self.reading():
            console.print(f" • {escape(sentence)}", highlight=False)
        table = Table(title=f"on {self.where}", title_justify="left")
        for column in ("", *self.names, "difference", "95% interval", "groups"):
            table.add_column(escape(column), justify="right" if column else "left")
        for entry in self.differences:
            low, high = entry.interval
            values = f"{entry.a:.4g}", f"{entry.b:.4g}", f"{entry.difference:.3g}"
            table.add_row(entry.name, *values, f"{low:.3g} … {high:.3g}", _agreeing(entry))
        console.print(table)
        for note in self.notes:
            console.print(f"   [dim]{escape(note)}[/]", highlight=False)

    def save(self, folder: str | Path) -> Path:
        """Write everything into a folder, which `hyperribbon report FOLDER` shows.

        Args:
            folder: Made if absent.
        """
        from hyperribbon.inspection.comparison.storing import save_comparison

        return save_comparison(self, Path(folder))

    def report(self, path: str | Path) -> Path:
        """Write one HTML file that shows everything and needs no network.

        Args:
            path: The file.
        """
        import hyperribbon

        with TemporaryDirectory() as folder:
            stored = self.save(Path(folder) / "comparison")
            return hyperribbon.report.write_report([stored], path, title=" and ".join(self.names))

    def __repr__(self) -> str:
        """Show the answer."""
        return f"Comparison({self.reading()[0]})"

    def _repr_html_(self) -> str:
        """Show the answer, then the numbers, in a notebook."""
        first, *others = self.reading() or [f"{self.names[0]} and {self.names[1]}"]
        rows = [
            (e.name, e.a, e.b, f"{e.difference:.3g} ± {e.stderr:.2g}", _agreeing(e))
            for e in self.differences
        ]
        columns = ("", *self.names, "difference", "groups agreeing")
        table = html.table(columns, rows, f"on {self.where}")
        return html.card(first, html.bullets(others), table, html.bullets(self.notes))

    def _answer(self, a: str, b: str) -> str:
        if "sharpness.adaptive" not in self:
            return self._answer_of_one(a, b)
        raw, adaptive = self._sharpness()
        by = f"{abs(raw.difference):.3g} ± {raw.stderr:.2g}"
        if self.flatter:
            low, high = (a, b) if self.flatter == "a" else (b, a)
            return (
                f"{low} is flatter than {high}: its sharpness is {by} less, in {raw.agreeing} of "
                f"{len(raw.groups)} groups of samples, and the adaptive sharpness agrees."
            )
        if raw.lower is None:
            return f"These samples do not show which is flatter: the sharpness differs by {by}."
        if self.is_same_function:
            return (
                f"{a} and {b} are the same function with weights of other scales: the sharpness "
                f"differs by {by} for that reason alone, so neither is called flatter."
            )
        against = "says the opposite" if adaptive.lower else "does not tell them apart"
        return (
            f"{a if raw.lower == 'a' else b} has the lower sharpness, by {by}, but the adaptive "
            f"sharpness, which scaling of weights cannot change, {against}: neither is called "
            "flatter."
        )

    def _answer_of_one(self, a: str, b: str) -> str:
        """Return what the sharpness says by itself."""
        raw = self["sharpness"]
        assert isinstance(raw, Difference)
        by = f"{abs(raw.difference):.3g} ± {raw.stderr:.2g}"
        if raw.lower is None:
            return f"These samples do not show which is flatter: the sharpness differs by {by}."
        return (
            f"{a if raw.lower == 'a' else b} has the lower sharpness, by {by}; whether weights of "
            "other scales are the reason was not measured, so neither is called flatter."
        )

    def _sharpness(self) -> tuple[Difference, Difference]:
        raw, adaptive = self["sharpness"], self["sharpness.adaptive"]
        assert isinstance(raw, Difference)
        assert isinstance(adaptive, Difference)
        return raw, adaptive


def _agreeing(entry: Difference) -> str:
    return f"{entry.agreeing} of {len(entry.groups)}" if entry.groups else "–"


def _told(entry: Difference | Shared, a: str, b: str) -> str:
    """Return a number as a sentence; nothing for a difference that the samples do not show."""
    name = entry.name[0].upper() + entry.name[1:]
    error = f" ± {entry.stderr:.2g}" if entry.stderr > 0 else ""
    if isinstance(entry, Shared):
        return f"{name}: {entry.value:.3g}{error}."
    if entry.lower is None:
        return ""
    low, high = (a, b) if entry.lower == "a" else (b, a)
    return f"{name}: {low} is lower than {high} by {abs(entry.difference):.3g}{error}."

"""`Comparison`: what differs between two networks, to read, to tabulate, to store and to show."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from scipy.special import stdtrit

from hyperribbon.application.inspection.quantities import Part, Quantity
from hyperribbon.application.inspection.storing import begin_folder, store_part
from hyperribbon.core import html
from hyperribbon.core.result import Result, Summary
from hyperribbon.core.store import describe_environment, save_folder, write_json, write_text
from hyperribbon.plots import Bars, Chart, Level, draw

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """One quantity of two networks, measured on the same disjoint groups of samples.

    The difference is that of the two values; its standard error is that of the mean of the
    differences group by group, d_g = a_g − b_g, so that what a sample does to both cancels:

        stderr² = Σ (d_g − d̄)² / (G (G − 1)),    interval = a − b ± (t·stderr + rounding)

    with t of Student's distribution with G − 1 degrees of freedom.

    Attributes:
        key: Short name, such as "sharpness".
        name: What it is.
        a: Value of the first network.
        b: Value of the second.
        groups: (G,) differences of the groups; empty where there is one value for all samples.
        rounding: How far the arithmetic, such as an eigenvalue's bound, may move the difference.
        stderr: Standard error over the samples; NaN when it is not known.
        freedom: Degrees of freedom of it where there are no groups.
    """

    key: str
    name: str
    a: float
    b: float
    groups: tuple[float, ...]
    rounding: float
    stderr: float
    freedom: float = inf

    @property
    def difference(self) -> float:
        """The first network's value minus the second's, in a comparison's result."""
        return self.a - self.b

    @property
    def interval(self) -> tuple[float, float]:
        """Edges of the interval that covers a difference in a comparison's result with 0.95."""
        freedom = max(len(self.groups) - 1, 1) if self.groups else self.freedom
        reach = float(stdtrit(freedom, (1 + LEVEL) / 2)) * self.stderr + self.rounding
        return self.difference - reach, self.difference + reach

    @property
    def lower(self) -> str | None:
        """Which has the lower value in a comparison's result, "a" or "b"; None if undecided."""
        low, high = self.interval
        if high < 0:
            return "a"
        return "b" if low > 0 else None

    @property
    def agreeing(self) -> int:
        """Groups of samples whose difference has the sign of the comparison's result."""
        return sum(value * self.difference > 0 for value in self.groups)


@dataclass(frozen=True)
class Shared:
    """A number that two networks have together, such as the share of samples they agree on.

    Attributes:
        key: Short name.
        name: What it is.
        value: The number.
        stderr: Standard error over the samples; 0 where no samples enter.
    """

    key: str
    name: str
    value: float
    stderr: float


def paired(
    key: str, name: str, a: np.ndarray, b: np.ndarray, shares: np.ndarray, rounding: float = 0.0
) -> Difference:
    """Return as a comparison's result the difference of two rows of values, one per group.

    Args:
        key: Short name.
        name: What it is.
        a: (G,) values of the first network.
        b: (G,) values of the second.
        shares: (G,) shares of the groups in the whole, with sum 1.
        rounding: How far the arithmetic may move the difference.

    >>> found = paired("x", "x", np.array([3.0, 5.0]), np.array([1.0, 2.0]), np.full(2, 0.5))
    >>> found.difference, found.stderr, found.agreeing, found.lower
    (2.5, 0.5, 2, None)
    """
    steps = a - b
    stderr = float(steps.std(ddof=1) / len(steps) ** 0.5)
    return Difference(
        key, name, float(shares @ a), float(shares @ b), tuple(map(float, steps)), rounding, stderr
    )


_SENTENCES = 6
_TELLING = ("loss", "predictions.agreement", "predictions.distance", "trace", "pruned.0.8")
_TELLING += ("noise", "weights.overlap")
"""Keys of the numbers in the summary, the most important first."""


@dataclass(frozen=True)
class Comparison(Result):
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
        """Whether a comparison's result has a number."""
        return any(entry.key == key for entry in (*self.differences, *self.shared))

    def __getitem__(self, key: str) -> Difference | Shared:
        """Return a number of a comparison's result by its key, such as "sharpness"."""
        found = {entry.key: entry for entry in (*self.differences, *self.shared)}
        if key not in found:
            raise KeyError(f"{key!r} was not compared; there are: {', '.join(found)}")
        return found[key]

    @property
    def flatter(self) -> str | None:
        """Which network is flatter in a comparison's result, "a" or "b"; None if undecided.

        The one whose sharpness is lower, with an interval that excludes zero, provided that the
        adaptive sharpness, which no scaling of weights against each other can change, says the
        same.
        """
        if "sharpness" not in self or "sharpness.adaptive" not in self:
            return None
        raw, adaptive = self._sharpness()
        return raw.lower if raw.lower == adaptive.lower else None

    def reading(self) -> list[str]:
        """Return a comparison's result in plain sentences, the answer first."""
        a, b = self.names
        sentences = [self._answer(a, b)] if "sharpness" in self else []
        sentences += [_sentence(self[key], a, b) for key in _TELLING if key in self]
        return [sentence for sentence in sentences if sentence][:_SENTENCES]

    def table(self) -> pd.DataFrame:
        """Return a comparison's result as a table: both networks and the difference, row by row."""
        own = ["key", "name", "a", "b", "difference", "stderr"]
        rows = [
            (*(getattr(e, name) for name in own), *e.interval, e.lower, _agreeing(e))
            for e in self.differences
        ]
        return pd.DataFrame(rows, columns=[*own, "low", "high", "lower", "groups agreeing"])

    def to_frame(self) -> pd.DataFrame:
        """Return the table of a comparison's result as a DataFrame."""
        return self.table()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw a comparison's result: differences relative to the mean of both; return the axes."""
        figure = draw(_chart(self), ax)
        return figure.axes[0] if ax is None else ax

    def summary(self) -> Summary:
        """Return a comparison's result in plain sentences, then its table."""
        return Summary.of(self.rendered())

    def rendered(self) -> Group:
        """Return the summary of a comparison's result as `rich` prints it, in colours."""
        sentences = [f" • {escape(sentence)}" for sentence in self.reading()]
        table = Table(title=f"on {self.where}", title_justify="left")
        for column in ("", *self.names, "difference", "95% interval", "groups"):
            table.add_column(escape(column), justify="right" if column else "left")
        for entry in self.differences:
            low, high = entry.interval
            values = f"{entry.a:.4g}", f"{entry.b:.4g}", f"{entry.difference:.3g}"
            table.add_row(entry.name, *values, f"{low:.3g} … {high:.3g}", _agreeing(entry))
        notes = [f"   [dim]{escape(note)}[/]" for note in self.notes]
        return Group(*sentences, table, *notes)

    def save(self, folder: str | Path) -> Path:
        """Save a comparison's result in a folder, which `hyperribbon report FOLDER` shows.

        Args:
            folder: Made if absent.
        """
        return save_comparison(self, Path(folder))

    def report(self, path: str | Path) -> Path:
        """Write a comparison's result as one HTML file that needs no network.

        Args:
            path: The file.
        """
        import hyperribbon

        with TemporaryDirectory() as folder:
            stored = self.save(Path(folder) / "comparison")
            return hyperribbon.report.write_report([stored], path, title=" and ".join(self.names))

    def __repr__(self) -> str:
        """Show the answer of a comparison's result."""
        return f"Comparison({self.reading()[0]})"

    def _repr_html_(self) -> str:
        """Show a comparison's result in a notebook: the answer, then its numbers."""
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
        """Return the answer of a comparison's result from the sharpness alone."""
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


def _sentence(entry: Difference | Shared, a: str, b: str) -> str:
    """Return a number of a comparison's result as a sentence; nothing if insignificant."""
    name = entry.name[0].upper() + entry.name[1:]
    error = f" ± {entry.stderr:.2g}" if entry.stderr > 0 else ""
    if isinstance(entry, Shared):
        return f"{name}: {entry.value:.3g}{error}."
    if entry.lower is None:
        return ""
    low = a if entry.lower == "a" else b
    return f"{name}: lower in {low}, by {abs(entry.difference):.3g}{error}."


def save_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write a comparison's result into a folder; it replaces an earlier one in one step."""
    with save_folder(folder, "comparison") as beside:
        _write_files(comparison, beside)
    return folder


def _write_files(comparison: Comparison, folder: Path) -> None:
    title = " and ".join(comparison.names)
    config = dict(zip("ab", comparison.names, strict=True))
    run = {"id": "comparison", "title": title, "config": config}
    begin_folder(folder, run | {"environment": describe_environment(0)})
    write_text(folder / "tables" / "differences.csv", comparison.table().to_csv(index=False))
    content = {"title": title, "where": comparison.where, "reading": comparison.reading()}
    content |= {"answers": [], "statistics": {}, "missing": {}}
    content |= {"parts": [store_part(_part(comparison), folder)], "outcomes": []}
    write_json(folder / "inspection.json", content)


def _part(comparison: Comparison) -> Part:
    a, b = comparison.names
    part = Part("comparison", f"{a} minus {b}", "Comparison")
    part.quantities += [_of_difference(entry, a, b) for entry in comparison.differences]
    part.quantities += [_of_shared(entry) for entry in comparison.shared]
    part.charts.append(_chart(comparison))
    part.tables["Every quantity of both"] = comparison.table()
    part.notes += comparison.notes
    return part


def _of_difference(entry: Difference, a: str, b: str) -> Quantity:
    low, high = entry.interval
    agree = f"; {entry.agreeing} of {len(entry.groups)} groups agree" if entry.groups else ""
    how = f"{entry.a:.4g} of {a}, {entry.b:.4g} of {b}", f"95%: {low:.3g} to {high:.3g}{agree}"
    return Quantity(entry.key, entry.name, entry.difference, entry.stderr, *how)


def _of_shared(entry: Shared) -> Quantity:
    certainty = "standard error over samples" if entry.stderr > 0 else "exact for these weights"
    return Quantity(entry.key, entry.name, entry.value, entry.stderr, "of both", certainty)


def _chart(comparison: Comparison) -> Chart:
    """Return the chart of a comparison's result: relative differences with 95% intervals."""
    entries = comparison.differences
    sizes = np.array([max((abs(e.a) + abs(e.b)) / 2, 1e-30) for e in entries])
    reach = np.array([(e.interval[1] - e.interval[0]) / 2 for e in entries])
    values = np.array([e.difference for e in entries])
    colors = tuple({"a": 0, "b": 1, None: 7}[entry.lower] for entry in entries)
    a, b = comparison.names
    bars = Bars(
        tuple(e.name.partition(" (")[0] for e in entries),
        values / sizes,
        reach / sizes,
        colors=colors,
    )
    texts = f"{a} minus {b}, relative to their mean", "relative difference", ""
    caption = (
        f"Below zero {a} has less of a quantity, above zero {b}. Error bars are 95% intervals over "
        "groups of samples; where one reaches zero, the samples do not tell."
    )
    return Chart("differences", *texts, (bars, Level(0.0, "equal", "x")), caption=caption)

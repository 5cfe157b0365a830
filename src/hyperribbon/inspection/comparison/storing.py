"""A comparison as files that a report reads: the same as those of an inspection, with one part."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hyperribbon.core.store import describe_environment, write_json, write_text
from hyperribbon.inspection.comparison.differences import Difference, Shared
from hyperribbon.inspection.comparison.result import Comparison
from hyperribbon.inspection.engine.quantities import Part, Quantity, Sheet
from hyperribbon.inspection.engine.storing import begin_folder, store_part
from hyperribbon.plots import Bars, Chart, Level

__all__ = ["save_comparison"]


def save_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write a comparison into a folder; the file inspection.json comes last and completes it."""
    title = " and ".join(comparison.names)
    config = dict(zip("ab", comparison.names, strict=True))
    run = {"id": "comparison", "title": title, "config": config}
    begin_folder(folder, run | {"environment": describe_environment(0)})
    write_text(folder / "tables" / "differences.csv", comparison.table().to_csv(index=False))
    content = {"title": title, "where": comparison.where, "reading": comparison.reading()}
    content |= {"answers": [], "statistics": {}, "missing": {}}
    content |= {"parts": [store_part(_part(comparison), folder)], "outcomes": []}
    write_json(folder / "inspection.json", content)
    return folder


def _part(comparison: Comparison) -> Part:
    a, b = comparison.names
    sheet = Sheet("comparison", f"{a} minus {b}", "Comparison")
    sheet.quantities += [_of_difference(entry, a, b) for entry in comparison.differences]
    sheet.quantities += [_of_shared(entry) for entry in comparison.shared]
    sheet.charts.append(_chart(comparison))
    sheet.tables["Every quantity of both"] = comparison.table()
    sheet.notes += comparison.notes
    return sheet.part()


def _of_difference(entry: Difference, a: str, b: str) -> Quantity:
    low, high = entry.interval
    agree = f"; {entry.agreeing} of {len(entry.groups)} groups agree" if entry.groups else ""
    told = f"{entry.a:.4g} of {a}, {entry.b:.4g} of {b}", f"95%: {low:.3g} to {high:.3g}{agree}"
    return Quantity(entry.key, entry.name, entry.difference, entry.stderr, *told)


def _of_shared(entry: Shared) -> Quantity:
    certainty = "standard error over samples" if entry.stderr > 0 else "exact for these weights"
    return Quantity(entry.key, entry.name, entry.value, entry.stderr, "of both", certainty)


def _chart(comparison: Comparison) -> Chart:
    """Return the differences in units of the mean of both, with their 95% intervals."""
    entries = comparison.differences
    sizes = np.array([max((abs(e.a) + abs(e.b)) / 2, 1e-30) for e in entries])
    reach = np.array([(e.interval[1] - e.interval[0]) / 2 for e in entries])
    values = np.array([e.difference for e in entries])
    colors = tuple({"a": 0, "b": 1, None: 7}[entry.lower] for entry in entries)
    a, b = comparison.names
    bars = Bars(tuple(e.key for e in entries), values / sizes, reach / sizes, colors=colors)
    texts = f"{a} minus {b}, relative to their mean", "", "relative difference"
    caption = (
        f"Below zero {a} has less of a quantity, above zero {b}. Error bars are 95% intervals over "
        "groups of samples; where one reaches zero, the samples do not tell."
    )
    return Chart("differences", *texts, (bars, Level(0.0, "equal")), caption=caption)

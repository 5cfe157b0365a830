"""Stored inspections as tabs: the reading first, then every part, several runs side by side."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

from hyperribbon.core.store import read_json
from hyperribbon.inspection.answers import TERMS
from hyperribbon.report.images import stored_pictures
from hyperribbon.report.parts import (
    AnswerRow,
    Explanation,
    Picture,
    Section,
    Tab,
    Table,
    distinct_labels,
    flatten,
)

__all__ = ["INSPECTION_FILE", "inspection_tabs"]

INSPECTION_FILE = "inspection.json"
_HEADLINES = (
    *("model.loss", "model.accuracy", "hessian.largest", "gauss_newton.trace"),
    *("gauss_newton.share10", "gauss_newton.share50", "gauss_newton.rank50", "hessian.ratio10"),
    *("stability.ratio", "noise.scale", "subnetworks.critical", "subnetworks.prunable"),
)
_LABELS = (("meaning", "Meaning"), ("usual", "Usual"), ("advice", "You might"))
_ABOUT = {
    **{name: name for name in ("stability", "layers", "noise", "trace")},
    "basics": "loss",
    "hessian": "sharpness",
    "gauss_newton": "concentration",
    "fisher": "concentration",
    "layer_traces": "layers",
    "subnetworks": "pruning",
}
_COLUMNS = ("number", "value", "how it was obtained", "how certain it is")


@dataclasses.dataclass
class _StoredInspection:
    folder: Path
    content: dict[str, Any]
    info: dict[str, Any]
    label: str = ""

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        return {part["name"]: part for part in self.content["parts"]}

    @property
    def quantities(self) -> dict[str, dict[str, Any]]:
        return {q["key"]: q for part in self.content["parts"] for q in part["quantities"]}


def inspection_tabs(folders: list[Path]) -> list[Tab]:
    """Return the tabs that show stored inspections."""
    found, damaged = [], []
    for folder in folders:
        try:
            stored = _StoredInspection(
                folder, read_json(folder / INSPECTION_FILE), read_json(folder / "run.json")
            )
            found.append((stored, _read_pictures(stored)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged.append(Section(folder.name, warning=f"The files are damaged: {error!r}"))
    runs = [stored for stored, _ in found]
    labels = distinct_labels([run.content["title"] for run in runs], [r.folder.name for r in runs])
    for run, label in zip(runs, labels, strict=True):
        run.label = label
    pictures = {id(stored): entry for stored, entry in found}
    groups: dict[str, list[Section]] = {}
    names = dict.fromkeys(name for run in runs for name in run.parts)
    for name in names:
        holders = [run for run in runs if name in run.parts]
        section = _part_section(name, holders, pictures, many=len(runs) > 1)
        groups.setdefault(holders[0].parts[name]["group"], []).append(section)
    summary = [*damaged, *_comparison(runs), *(_summary(run) for run in runs)]
    tabs = [Tab("Summary", summary)] if summary else []
    return tabs + [Tab(group, sections) for group, sections in groups.items()]


def _read_pictures(stored: _StoredInspection) -> dict[str, Picture]:
    files = {picture.name: picture for picture in stored_pictures(stored.folder / "figures")}
    found = {}
    for part in stored.content["parts"]:
        for chart in part["charts"]:
            if chart["name"] in files:
                found[chart["name"]] = dataclasses.replace(
                    files[chart["name"]],
                    title=chart["title"],
                    caption=chart["caption"],
                    toggles=tuple(chart["toggles"]),
                )
    return found


def _summary(run: _StoredInspection) -> Section:
    quantities = run.quantities
    facts = [
        (quantities[key]["name"], _value(quantities[key], short=True), _error(quantities[key]))
        for key in _HEADLINES
        if key in quantities
    ]
    rows = [
        [o["step"], o["status"], f"{o['seconds']:.1f}", o["reason"]]
        for o in run.content["outcomes"]
    ]
    settings = [*flatten(run.info.get("config", {})), *flatten(run.info.get("environment", {}))]
    folded = (
        ("steps", "What was done", ("step", "status", "seconds", "reason"), rows),
        ("settings", "Settings and environment", ("name", "value"), settings),
    )
    tables = [
        Table(f"{run.label}-{name}", title, heads, cells, folded=True)
        for name, title, heads, cells in folded
    ]
    answers = [_answer(entry) for entry in run.content.get("answers", [])]
    tables.insert(0, _statistics(run))
    others = list(run.content["reading"])[len(answers) :]
    note, tables = f"measured on {run.content['where']}", [t for t in tables if t.rows]
    return Section(run.label, note=note, answers=answers, facts=facts, points=others, tables=tables)


def _answer(entry: dict[str, str]) -> AnswerRow:
    rest = tuple((label, entry[key]) for key, label in _LABELS if entry.get(key))
    return AnswerRow(entry["finding"], rest, _explain(entry.get("term", "")))


def _explain(name: str) -> Explanation | None:
    term = TERMS.get(name)
    return None if term is None else Explanation(term.title, (term.what, term.reading))


def _statistics(run: _StoredInspection) -> Table:
    """Return the numbers at fixed samples and directions, and what did not fit."""
    rows = [
        [q["name"], f"{q['samples']:,}", _value(q), q["certainty"]]
        for q in run.content.get("statistics", {}).values()
    ]
    for name, seconds in run.content.get("missing", {}).items():
        task, _, samples = name.partition("@")
        rows.append([task, f"{int(samples):,}", "absent", f"needs about {max(seconds, 1):.0f} s"])
    heads = ("number", "samples", "value", "how certain it is")
    caption = (
        "At fixed samples and directions: the same for every inspection of this model, data and "
        "seed, whatever the machine."
    )
    name = f"{run.label}-statistics"
    return Table(name, "Numbers that compare", heads, rows, caption=caption, folded=True)


def _comparison(runs: list[_StoredInspection]) -> list[Section]:
    if len(runs) < 2:
        return []
    table = _side_by_side("comparison", runs, None)
    return [Section("Side by side", tables=[table])]


def _side_by_side(name: str, runs: list[_StoredInspection], part: str | None) -> Table:
    chosen = [
        {q["key"]: q for q in run.parts[part]["quantities"]} if part else run.quantities
        for run in runs
    ]
    keys = dict.fromkeys(key for quantities in chosen for key in quantities)
    rows = []
    for key in keys:
        first = next(quantities[key] for quantities in chosen if key in quantities)
        cells = [_value(q[key]) if key in q else "–" for q in chosen]
        rows.append([first["name"], *cells])
    return Table(name, "", ("number", *(run.label for run in runs)), rows)


def _part_section(
    name: str, runs: list[_StoredInspection], pictures: dict[int, dict[str, Picture]], *, many: bool
) -> Section:
    first = runs[0].parts[name]
    section = Section(first["title"], term=_explain(_ABOUT.get(name, "")))
    charts = dict.fromkeys(chart["name"] for run in runs for chart in run.parts[name]["charts"])
    for chart in charts:
        for run in runs:
            picture = pictures[id(run)].get(chart)
            if picture is not None:
                title = f"{run.label} · {picture.title}" if many else picture.title
                section.pictures.append(dataclasses.replace(picture, title=title))
    for run in runs:
        part = run.parts[name]
        prefix = f"{run.label}: " if many else ""
        section.points += [prefix + sentence for sentence in part["readings"]]
        section.text += [prefix + note for note in part["notes"]]
        section.tables += _stored_tables(run, part, prefix)
    if many:
        section.tables.insert(0, _side_by_side(f"{name}-numbers", runs, name))
    elif first["quantities"]:
        rows = [[q["name"], _value(q), q["method"], q["certainty"]] for q in first["quantities"]]
        section.tables.insert(0, Table(f"{name}-numbers", "", _COLUMNS, rows))
    return section


def _stored_tables(run: _StoredInspection, part: dict[str, Any], prefix: str) -> list[Table]:
    tables = []
    for title, file in part["tables"].items():
        with (run.folder / "tables" / Path(file).name).open(newline="") as stream:
            rows = list(csv.reader(stream))
        cells = [[_shorten(cell) for cell in row] for row in rows[1:]]
        tables.append(Table(Path(file).stem, prefix + title, rows[0], cells, folded=True))
    return tables


def _value(quantity: dict[str, Any], *, short: bool = False) -> str:
    value, error = quantity["value"], quantity["error"]
    if value is None:
        return "not finite"
    number = f"{value:,.0f}" if float(value).is_integer() else f"{value:.{3 if short else 4}g}"
    return f"{number} ± {error:.2g}" if error and not short else number


def _error(quantity: dict[str, Any]) -> str:
    return f"± {quantity['error']:.2g}" if quantity["error"] else ""


def _shorten(cell: str) -> str:
    """Return a number of a CSV file with five digits; other text as it is."""
    try:
        number = float(cell)
    except ValueError:
        return cell
    return cell if number.is_integer() else f"{number:.5g}"

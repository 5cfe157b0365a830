"""Stored inspections as tabs: the answers first, then every part, several runs side by side."""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

from hyperribbon.application.inspection.answers import TERMS
from hyperribbon.application.report.images import stored_pictures
from hyperribbon.application.report.page import (
    DAMAGE,
    Answer,
    Picture,
    Section,
    Tab,
    Table,
    describe_damage,
    distinct_labels,
    flatten,
    regular,
)
from hyperribbon.core.html import error_text
from hyperribbon.core.store import read_json

INSPECTION_FILE = "inspection.json"
_HEADLINES = (
    *("model.loss", "model.accuracy", "hessian.largest", "gauss_newton.trace"),
    *("gauss_newton.share10", "gauss_newton.share50", "gauss_newton.rank50", "hessian.ratio10"),
    *("stability.ratio", "noise.scale", "subnetworks.critical", "subnetworks.prunable"),
)
_LABELS = (("meaning", "Meaning"), ("usual", "Usual"), ("advice", "Advice"))
_TERM_OF_PART = {
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
class _Part:
    """One part of an inspection, formatted.

    Attributes:
        title: Heading.
        group: Label of its tab.
        numbers: Name, value, method and certainty of every quantity, by key.
        facts: Name, short value and error of every quantity, by key.
        readings: Sentences.
        notes: Remarks, damaged tables among them.
        pictures: Figures by name.
        tables: Tables.
    """

    title: str
    group: str
    numbers: dict[str, list[str]]
    facts: dict[str, tuple[str, str, str]]
    readings: list[str]
    notes: list[str]
    pictures: dict[str, Picture]
    tables: list[Table]


@dataclasses.dataclass
class _Inspection:
    """An inspection, with its parts by name and its summary."""

    title: str
    folder: Path
    parts: dict[str, _Part]
    summary: Section

    @property
    def numbers(self) -> dict[str, list[str]]:
        return {key: row for part in self.parts.values() for key, row in part.numbers.items()}


def inspection_tabs(folders: list[Path]) -> list[Tab]:
    """Return the report's tabs of stored inspections; a damaged part becomes one line."""
    runs, damaged = [], []
    for folder in folders:
        try:
            runs.append(_read_inspection(folder))
        except DAMAGE as error:
            damaged.append(Section(folder.name, warning=describe_damage(INSPECTION_FILE, error)))
    labels = distinct_labels([run.title for run in runs], [run.folder.name for run in runs])
    many = len(runs) > 1
    side_by_side = []
    for run, label in zip(runs, labels, strict=True):
        run.title = run.summary.title = label
        for table in run.summary.tables:
            table.name = f"{label}-{table.name}"
    if many:
        counts = Counter(key for run in runs for key in run.numbers)
        numbers = {
            run.title: {key: row for key, row in run.numbers.items() if counts[key] > 1}
            for run in runs
        }
        table = _side_by_side("comparison", numbers)
        side_by_side = [Section("Side by side", tables=[table])] if table.rows else []
    tabs = {"Summary": [*damaged, *(run.summary for run in runs), *side_by_side]}
    for name in dict.fromkeys(name for run in runs for name in run.parts):
        parts = {run.title: run.parts[name] for run in runs if name in run.parts}
        group = next(iter(parts.values())).group
        tabs.setdefault(group, []).append(_part_section(name, parts, many=many))
    return [Tab(label, sections) for label, sections in tabs.items() if sections]


def _read_inspection(folder: Path) -> _Inspection:
    content = read_json(regular(folder / INSPECTION_FILE))
    title, where = str(content["title"]), str(content["where"])
    summary = Section(title, note=f"measured on {where}")
    parts, problems = {}, []
    for position, part in enumerate(content["parts"]):
        try:
            parts[str(part["name"])] = _read_part(folder, part)
        except DAMAGE as error:
            problems.append(describe_damage(f"part {position + 1}", error))
    facts = {key: fact for part in parts.values() for key, fact in part.facts.items()}
    summary.facts = [facts[key] for key in _HEADLINES if key in facts]
    for name, fill in (
        ("the answers", _fill_answers),
        ("the statistics", _fill_statistics),
        ("the steps", _fill_steps),
        ("run.json", _fill_settings),
    ):
        try:
            fill(summary, content, folder)
        except DAMAGE as error:
            problems.append(describe_damage(name, error))
    summary.warning = " ".join(problems)
    return _Inspection(title, folder, parts, summary)


def _fill_answers(summary: Section, content: dict[str, Any], folder: Path) -> None:
    entries = content.get("answers", [])
    stored = {picture.name: picture.image for picture in stored_pictures(folder / "figures")}
    answers = [
        Answer(
            str(entry["finding"]),
            [(label, str(entry[key])) for key, label in _LABELS if entry.get(key)],
            TERMS.get(entry.get("term", "")),
            stored.get(str(entry.get("picture", ""))),
        )
        for entry in entries
    ]
    summary.text = [str(content[key]) for key in ("similar", "skipped") if content.get(key)]
    summary.answers = answers
    if not answers:  # the sentences of the parts stand in their tabs
        summary.points = [str(sentence) for sentence in content["reading"]]


def _fill_statistics(summary: Section, content: dict[str, Any], folder: Path) -> None:
    """Add an inspection's numbers at fixed samples to its report, and those that were skipped."""
    rows = [
        [str(q["name"]), f"{q['samples']:,}", _value(q), str(q["certainty"])]
        for q in content.get("statistics", {}).values()
    ]
    for name, seconds in content.get("missing", {}).items():
        task, _, samples = name.partition("@")
        rows.append([task, f"{int(samples):,}", "skipped", f"needs about {max(seconds, 1):.0f} s"])
    heads = ("number", "samples", "value", "how certain it is")
    caption = (
        "At fixed samples and directions: the same for every inspection of this model, data and "
        "seed, whatever the machine."
    )
    if rows:
        title = "Comparable numbers"
        summary.tables.append(Table("statistics", title, heads, rows, caption, folded=True))


def _fill_steps(summary: Section, content: dict[str, Any], folder: Path) -> None:
    rows = [
        [str(o["step"]), str(o["status"]), f"{o['seconds']:.1f}", str(o["reason"])]
        for o in content["outcomes"]
    ]
    heads = ("step", "status", "seconds", "reason")
    if rows:
        summary.tables.append(Table("steps", "What was done", heads, rows, folded=True))


def _fill_settings(summary: Section, content: dict[str, Any], folder: Path) -> None:
    info = read_json(regular(folder / "run.json"))
    rows = [*flatten(info.get("config", {})), *flatten(info.get("environment", {}))]
    title = "Settings and environment"
    if rows:
        summary.tables.append(Table("settings", title, ("name", "value"), rows, folded=True))


def _read_part(folder: Path, part: dict[str, Any]) -> _Part:
    stored = {picture.name: picture for picture in stored_pictures(folder / "figures")}
    pictures = {}
    for chart in part["charts"]:
        missing = Picture(chart["name"], "", None, caption="Damaged: the figure is missing.")
        picture = stored.get(chart["name"], missing)
        pictures[str(chart["name"])] = dataclasses.replace(
            picture,
            title=str(chart["title"]),
            caption=picture.caption or str(chart["caption"]),
            toggles=tuple(map(str, chart["toggles"])),
        )
    quantities = part["quantities"]
    tables, notes = [], [str(note) for note in part["notes"]]
    for title, file in part["tables"].items():
        try:
            tables.append(_read_table(folder / "tables" / Path(file).name, title))
        except DAMAGE as error:
            notes.append(describe_damage(f"table {title}", error))
    return _Part(
        str(part["title"]),
        str(part["group"]),
        {
            q["key"]: [str(q["name"]), _value(q), str(q["method"]), str(q["certainty"])]
            for q in quantities
        },
        {q["key"]: (str(q["name"]), _value(q, short=True), _error(q)) for q in quantities},
        [str(sentence) for sentence in part["readings"]],
        notes,
        pictures,
        tables,
    )


def _read_table(path: Path, title: str) -> Table:
    with regular(path).open(newline="", encoding="utf-8") as stream:
        heads, *rows = csv.reader(stream)
    return Table(
        path.stem, title, heads, [[_shorten(cell) for cell in row] for row in rows], folded=True
    )


def _part_section(name: str, parts: dict[str, _Part], *, many: bool) -> Section:
    """Return the report's section of one part, with every inspection that has it.

    Args:
        name: Name of the part.
        parts: The part of every inspection, by label.
        many: Whether the page shows several inspections.
    """
    first = next(iter(parts.values()))
    section = Section(first.title, term=TERMS.get(_TERM_OF_PART.get(name, "")))
    for chart in dict.fromkeys(chart for part in parts.values() for chart in part.pictures):
        for label, part in parts.items():
            if chart in part.pictures:
                picture = part.pictures[chart]
                title = f"{label} · {picture.title}" if many else picture.title
                section.pictures.append(dataclasses.replace(picture, title=title))
    numbers = {label: part.numbers for label, part in parts.items()}
    if many and any(numbers.values()):
        section.tables.append(_side_by_side(f"{name}-numbers", numbers))
    elif first.numbers:
        section.tables.append(Table(f"{name}-numbers", "", _COLUMNS, list(first.numbers.values())))
    for label, part in parts.items():
        prefix = f"{label}: " if many else ""
        section.points += [prefix + sentence for sentence in part.readings]
        section.text += [prefix + note for note in part.notes]
        section.tables += [dataclasses.replace(t, title=prefix + t.title) for t in part.tables]
    return section


def _side_by_side(name: str, numbers: dict[str, dict[str, list[str]]]) -> Table:
    """Return the report's numbers of several inspections side by side, by label."""
    names = {key: row[0] for found in numbers.values() for key, row in found.items()}
    rows = [
        [title, *(found[key][1] if key in found else "–" for found in numbers.values())]
        for key, title in names.items()
    ]
    return Table(name, "", ("number", *numbers), rows)


def _value(quantity: dict[str, Any], *, short: bool = False) -> str:
    value, error = quantity["value"], quantity["error"]
    if value is None:
        return "not finite"
    number = f"{value:,.0f}" if float(value).is_integer() else f"{value:.{3 if short else 4}g}"
    return f"{number} {_error(quantity)}" if error and not short else number


def _error(quantity: dict[str, Any]) -> str:
    error = quantity["error"]
    return error_text(float(error), str(quantity["certainty"])) if error else ""


def _shorten(cell: str) -> str:
    """Return a number of a reported inspection's CSV file with five digits; other text as it is."""
    try:
        number = float(cell)
    except ValueError:
        return cell
    return cell if number.is_integer() else f"{number:.5g}"

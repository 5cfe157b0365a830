"""An inspection as files: what a report reads, and what other programs can."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl

from hyperribbon.application.inspection.answers import Answer
from hyperribbon.application.inspection.answers.pictures import answer_picture
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.application.inspection.result import Inspection
from hyperribbon.core.store import save_folder, save_tree, write_json, write_text, writing
from hyperribbon.core.store.atomic import write_bytes
from hyperribbon.plots import STYLE, Chart, draw, draw_interactive


def save_inspection(inspection: Inspection, folder: Path) -> Path:
    """Store an inspection in a folder; it replaces an earlier one in one step."""
    with save_folder(folder, "inspection") as beside:
        _write_files(inspection, beside)
    return folder


def _write_files(inspection: Inspection, folder: Path) -> None:
    run = {"id": "inspection", "title": inspection.title, "config": dict(inspection.config)}
    begin_folder(folder, run | {"environment": dict(inspection.environment)})
    write_text(folder / "tables" / "quantities.csv", inspection.table().to_csv(index=False))
    arrays = {name: dict(part.arrays) for name, part in inspection.parts.items()}
    save_tree(folder / "result.safetensors", arrays)
    content = {
        "title": inspection.title,
        "where": inspection.where,
        "reading": inspection.reading(),
        "answers": [_store_answer(answer, inspection, folder) for answer in inspection.answers()],
        "statistics": {name: _plain(vars(q)) for name, q in inspection.statistics.items()},
        "missing": dict(inspection.missing),
        "skipped": inspection.skipped,
        "similar": inspection.similar,
        "parts": [store_part(part, folder) for part in inspection.parts.values()],
        "outcomes": [vars(outcome) for outcome in inspection.outcomes],
    }
    write_json(folder / "inspection.json", content)


def _store_answer(answer: Answer, inspection: Inspection, folder: Path) -> dict[str, Any]:
    """Store an answer of an inspection with its small picture; return it in plain values."""
    picture = answer_picture(answer.term, inspection.parts, inspection.config)
    name = f"answer-{answer.term}"
    if picture is not None:
        write_bytes(folder / "figures" / f"{name}.svg", picture)
    return vars(answer) | {"picture": name if picture is not None else ""}


def begin_folder(folder: Path, run: dict[str, Any]) -> None:
    """Begin storing an inspection or comparison in its empty folder: write what it is of."""
    for name in ("figures", "tables"):
        (folder / name).mkdir()
    write_json(folder / "run.json", run | {"has_manifest": True})


def store_part(part: Part, folder: Path) -> dict[str, Any]:
    """Store the tables and figures of a part, and return the rest of it in plain values."""
    tables = {}
    for title, table in part.tables.items():
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        write_text(folder / "tables" / f"{name}.csv", table.to_csv(index=False))
        tables[title] = f"{name}.csv"
    for chart in part.charts:
        _store_chart(chart, folder / "figures")
    return {
        "name": part.name,
        "title": part.title,
        "group": part.group,
        "readings": list(part.readings),
        "notes": [*part.notes, *part.shortened],
        "quantities": [_plain(vars(quantity)) for quantity in part.quantities],
        "charts": [
            {"name": c.name, "title": c.title, "caption": c.caption, "toggles": list(c.toggles)}
            for c in part.charts
        ],
        "tables": tables,
    }


def _store_chart(chart: Chart, folder: Path) -> None:
    with mpl.rc_context(STYLE):
        figure = draw(chart)
        with writing(folder / f"{chart.name}.svg") as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})
    write_text(folder / f"{chart.name}.plotly.json", str(draw_interactive(chart).to_json()))


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of an inspection to store as JSON; non-finite numbers become None."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }

"""Runs of experiments as tabs: claims, figures, settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from hyperribbon.application.report.images import stored_pictures
from hyperribbon.application.report.page import (
    DAMAGE,
    ClaimRow,
    Picture,
    Section,
    Tab,
    Table,
    describe_damage,
    flatten,
    regular,
)
from hyperribbon.core.store import RunFolder, read_json

_ORDER = {"fails": 0, "undecided": 1, "holds": 2, "not comparable": 3}


@dataclasses.dataclass
class _Run:
    """What the report shows of one experiment's run; damaged files leave a warning."""

    folder: RunFolder
    id: str
    title: str
    label: str
    seed: str = ""
    note: str = ""
    settings: list[Table] = dataclasses.field(default_factory=list)
    pictures: list[Picture] = dataclasses.field(default_factory=list)
    claims: list[ClaimRow] = dataclasses.field(default_factory=list)
    warning: str = ""


def experiment_tabs(folders: list[RunFolder]) -> list[Tab]:
    """Return the report's tabs of experiments, runs of one experiment side by side."""
    groups: dict[str, list[_Run]] = {}
    for folder in folders:
        run = _read(folder)
        groups.setdefault(run.id, []).append(run)
    if not groups:
        return []
    for runs in groups.values():
        _label(runs)
    claims = [row for runs in groups.values() for run in runs for row in run.claims]
    claims.sort(key=lambda row: (row.claim.paper, _ORDER[row.claim.verdict]))
    kinds = {
        "Claims, one by one": [row for row in claims if row.claim.on_the_paper],
        "Observations and regressions: not verdicts on a paper": [
            row for row in claims if not row.claim.on_the_paper
        ],
    }
    tabs = {
        "Claims": [Section(title, claims=rows) for title, rows in kinds.items() if rows],
        "Figures": [_figures(runs) for runs in groups.values()],
        "Settings": [_settings(run) for runs in groups.values() for run in runs],
    }
    return [Tab(label, sections) for label, sections in tabs.items() if sections]


def _read(folder: RunFolder) -> _Run:
    name = folder.path.name
    run = _Run(folder, name, name, name)
    try:
        _read_info(run, read_json(regular(folder.path / "run.json")))
    except DAMAGE as error:
        run.warning = describe_damage("run.json", error)
    run.pictures = stored_pictures(folder.figures)
    try:
        if folder.is_complete:
            preset = "" if run.label == name else run.label
            run.claims = [ClaimRow.of(claim, preset) for claim in folder.load_claims()]
        else:
            run.warning += " Not finished: run the same command again to resume."
    except DAMAGE as error:
        run.warning += " " + describe_damage("claims.json", error)
    return run


def _read_info(run: _Run, info: dict[str, Any]) -> None:
    run.id, run.title = str(info.get("id", run.id)), str(info.get("title", run.title))
    run.label = str(info.get("preset") or run.label)
    run.seed = str(info.get("environment", {}).get("seed", ""))
    notes = [f"{len(info['seeds'])} seeds"] if "seeds" in info else []
    notes += [f"{key} = {value}" for key, value in info.get("changed", {}).items()]
    run.note = "; ".join(notes)
    for part, title in (("config", "Configuration"), ("environment", "Environment")):
        rows = flatten(info.get(part, {}))
        if rows:
            run.settings.append(
                Table(f"{run.folder.path.name}-{part}", title, ("name", "value"), rows)
            )


def _label(runs: list[_Run]) -> None:
    """Name an experiment's run in the report by what distinguishes it from the others."""
    several = len({run.seed for run in runs}) > 1
    for run in runs:
        run.label += f", seed {run.seed}" if several else ""
        run.label += f"; {run.note}" if run.note else ""
    names = [run.label for run in runs]
    for run, name in zip(runs, names, strict=True):
        run.label = name if names.count(name) == 1 else run.folder.path.name


def _figures(runs: list[_Run]) -> Section:
    section = Section(runs[0].title, note=runs[0].id)
    if len(runs) == 1:
        section.note += f" · {runs[0].label}"
    section.columns = [run.label for run in runs]
    section.warning = " ".join(f"{run.label}: {run.warning}" for run in runs if run.warning)
    for picture_index in range(max(len(run.pictures) for run in runs)):
        for run in runs:
            if picture_index < len(run.pictures):
                picture = run.pictures[picture_index]
                parts = [run.label if len(runs) > 1 else "", picture.title]
                title = " · ".join(filter(None, parts))
                name = f"{run.folder.path.name}-{picture.name}"
                section.pictures.append(dataclasses.replace(picture, title=title, name=name))
    by_run = [{row.claim.id: row for row in run.claims} for run in runs]
    statements = {row.claim.id: row.claim.reading for run in runs for row in run.claims}
    section.verdicts = [
        (statement, [rows.get(claim) for rows in by_run]) for claim, statement in statements.items()
    ]
    return section


def _settings(run: _Run) -> Section:
    text = [f"Folder: {run.folder.path}"]
    return Section(run.title, f"{run.id} · {run.label}", text=text, tables=run.settings)

"""Runs of experiments as tabs: claims, figures, settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store import RunFolder
from hyperribbon.report.images import stored_pictures
from hyperribbon.report.parts import ClaimRow, Picture, Section, Tab, Table, flatten

__all__ = ["experiment_tabs"]

_ORDER = {"fails": 0, "undecided": 1, "holds": 2, "not comparable": 3}


@dataclasses.dataclass
class _Run:
    """What the page shows of one run."""

    folder: RunFolder
    info: dict[str, Any]
    pictures: list[Picture]
    claims: list[ClaimRow]
    warning: str = ""
    label: str = ""

    @property
    def id(self) -> str:
        return str(self.info.get("id", self.folder.path.name))


def experiment_tabs(folders: list[RunFolder]) -> list[Tab]:
    """Return the tabs that show runs of experiments, those of one experiment side by side."""
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
    tabs = [
        Tab("Figures", [_figures(id, runs) for id, runs in groups.items()]),
        Tab("Settings", [_settings(run) for runs in groups.values() for run in runs]),
    ]
    sections = [
        Section(title, claims=rows)
        for title, rows in (
            ("Claims, one by one", [row for row in claims if row.claim.on_the_paper]),
            (
                "Observations and regressions: not verdicts on a paper",
                [row for row in claims if not row.claim.on_the_paper],
            ),
        )
        if rows
    ]
    if sections:
        tabs.insert(0, Tab("Claims", sections))
    return tabs


def _read(folder: RunFolder) -> _Run:
    try:
        info = folder.info
        preset = str(info.get("preset", ""))
        run = _Run(folder, info, stored_pictures(folder.figures), [])
        if folder.is_complete:
            run.claims = [ClaimRow.of(claim, preset) for claim in folder.load_claims()]
        else:
            run.warning = "is not finished: give the same command again to go on."
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArgumentError) as error:
        return _Run(folder, {}, [], [], f"has damaged files: {error}")
    return run


def _label(runs: list[_Run]) -> None:
    """Name the runs of one experiment by what distinguishes them."""
    presets = [str(run.info.get("preset", "")) or run.folder.path.name for run in runs]
    seeds = [run.info.get("environment", {}).get("seed") for run in runs]
    names = [
        f"{preset}, seed {seed}" if len(set(seeds)) > 1 else preset
        for preset, seed in zip(presets, seeds, strict=True)
    ]
    for position, run in enumerate(runs):
        changed = ", ".join(
            f"{key} = {value}" for key, value in run.info.get("changed", {}).items()
        )
        several = f"{len(run.info['seeds'])} seeds" if "seeds" in run.info else ""
        names[position] = "; ".join(filter(None, (names[position], several, changed)))
    for run, name in zip(runs, names, strict=True):
        run.label = name if names.count(name) == 1 else run.folder.path.name


def _figures(id: str, runs: list[_Run]) -> Section:
    section = Section(str(runs[0].info.get("title", id)), note=id)
    if len(runs) == 1:
        section.note += f" · {runs[0].label}"
    section.columns = [run.label for run in runs]
    section.warning = " ".join(f"{run.label} {run.warning}" for run in runs if run.warning)
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
    tables = [
        Table(f"{run.folder.path.name}-{part}", title, ("name", "value"), flatten(content))
        for part, title in (("config", "Configuration"), ("environment", "Environment"))
        if (content := run.info.get(part))
    ]
    note = f"{run.id} · {run.label}"
    title = str(run.info.get("title", run.id))
    return Section(title, note, text=[f"Folder: {run.folder.path}"], tables=tables)

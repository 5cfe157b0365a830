"""Verify folders of runs: trajectories, results, claims, and leftover files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import clear_leftovers, is_locked, read_json
from hyperribbon.core.store.mending import Finding, examine, mend, set_aside
from hyperribbon.core.store.tensor_files import open_tensors
from hyperribbon.core.store.trajectory_files import HEADER
from hyperribbon.core.store.trees import TREE_KEYS, load_tree

__all__ = ["Checked", "check_folder"]

_JSON_FILES = ("run.json", "claims.json", "inspection.json")


@dataclass(frozen=True)
class Checked:
    """The result of `check_folder`.

    Attributes:
        trajectories: Trajectories read.
        records: Whole records in them.
        files: Results and descriptions of runs read.
        findings: Problems found.
    """

    trajectories: int
    records: int
    files: int
    findings: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged, or all damage was repaired."""
        return all(f.mended or f.kind != "damage" for f in self.findings)


def check_folder(folder: str | Path, *, repair: bool = False) -> Checked:
    """Verify every byte of the runs in a folder and report damage.

    Args:
        folder: A trajectory, a run, a sweep, or a folder of these at any depth.
        repair: Keep what is whole and set the rest aside: of a trajectory, the whole records; a
            damaged result gets the ending .damaged, and is computed anew when it is next needed.
            Files that killed processes left are removed.

    Returns:
        How much was read, and what was found.

    Raises:
        ArgumentError: The folder does not exist, or contains no hyperribbon runs.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ArgumentError("folder", str(folder), "the folder does not exist", "Check the path.")
    trajectories = records = files = 0
    findings: list[Finding] = []
    for place, names in _folders(folder):
        if HEADER in names or _lost_its_header(place):
            trajectories += 1
            try:
                found = mend(place) if repair else examine(place)
                records += len(found.whole)
                is_busy = is_locked(place / ".lock")  # an active recorder leaves no leftovers
                findings += [f for f in found.findings if not (is_busy and f.kind == "leftover")]
            except ArgumentError as error:
                findings.append(Finding(place, error.reason))
            continue
        for name in names:
            path = place / name
            what = _damage(path)
            files += what is not None
            if what:
                findings.append(Finding(path, what, "damage", _replace(path) if repair else ""))
        for path in clear_leftovers(place, remove=repair):
            done = "removed" if repair else ""
            findings.append(Finding(path, "left over from a killed process", "leftover", done))
    if not trajectories and not files and not findings:
        remedy = "Give the folder of a Recorder, or the --out folder of reproduce or sweep."
        raise ArgumentError(
            "folder", str(folder), "it does not contain a trajectory, run or sweep", remedy
        )
    return Checked(trajectories, records, files, tuple(findings))


def _folders(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield folders and the names of their files; the inside of a trajectory is not entered."""
    for place, inside, names in os.walk(top):
        inside.sort()
        if HEADER in names or _lost_its_header(Path(place)):
            inside.clear()
        yield Path(place), sorted(names)


def _lost_its_header(place: Path) -> bool:
    return any(place.glob("records*/block-*.bin"))


def _damage(path: Path) -> str | None:
    """Return the damage of a file, "" if it is intact, None if it is not ours."""
    if path.name in _JSON_FILES:
        try:
            read_json(path)
        except (OSError, ValueError) as error:
            return f"it cannot be read ({error})"
        return ""
    if path.suffix != ".safetensors":
        return None
    try:
        with open_tensors(path, "numpy") as file:
            if not set(TREE_KEYS) & set(file.metadata() or {}):
                return None
        load_tree(path)
    except SafetensorError as error:
        return f"it is damaged ({error})"
    except (OSError, ArgumentError) as error:
        return getattr(error, "reason", str(error))
    return ""


def _replace(path: Path) -> str:
    """Set a damaged file aside, if it can be made again; return what was done."""
    if path.name == "inspection.json":
        return ""
    set_aside(path)
    if path.name == "result.safetensors":  # claims make a run complete: it shall run again
        set_aside(path.with_name("claims.json"))
    return "moved aside; it is recomputed when next needed"

"""Verify a trajectory record by record, and repair it."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import clear_leftovers, file_digest, make_folder, stored_path
from hyperribbon.core.store.blocks import BlockLog, block_files, first_index
from hyperribbon.core.store.frames import Damage, Frame, scan_block
from hyperribbon.core.store.trajectory_files import (
    HEADER,
    clean,
    exclusively,
    is_record_folder,
    read_header,
    records_folder,
    replace_records,
)

__all__ = ["Examined", "Finding", "examine", "mend", "set_aside"]

Row = tuple[dict[str, Any], dict[str, np.ndarray]]


_Record = tuple[dict[str, Any], Frame]


@dataclass(frozen=True)
class Finding:
    """A problem found in a stored run.

    Attributes:
        place: The file or folder.
        what: Description of the problem.
        kind: "damage" (something that was stored cannot be trusted), "leftover" (of a killed
            writer; harmless) or "note".
        mended: What was done about it; empty when nothing was.
    """

    place: Path
    what: str
    kind: str = "damage"
    mended: str = ""


@dataclass
class Examined:
    """The result of verifying a trajectory.

    Attributes:
        folder: The trajectory.
        whole: Its whole records: content, and where the arrays come from.
        findings: Problems found.
        tail: Where a truncated last record begins, if there is one.
    """

    folder: Path
    whole: list[_Record] = field(default_factory=list[_Record])
    findings: list[Finding] = field(default_factory=list[Finding])
    tail: Damage | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether any stored data is damaged."""
        return any(finding.kind == "damage" for finding in self.findings)

    def add(self, place: Path, what: str, kind: str = "damage") -> None:
        """Add a finding."""
        self.findings.append(Finding(place, what, kind))


def examine(folder: Path) -> Examined:
    """Verify every byte of a trajectory without changing it.

    Raises an ArgumentError where a newer hyperribbon wrote it, or a name leads outside the folder.

    Returns:
        The whole records and the findings.
    """
    found = Examined(folder)
    records = _records_folder(found)
    if records is not None:
        _examine_blocks(found, records)
    found.whole = [(_examine_weights(found, content), source) for content, source in found.whole]
    for path in sorted((folder / "state").glob("*.pt")):
        if not _is_whole_zip(path):
            found.add(path, "the resume state is damaged")
    steps = [content["step"] for content, _ in found.whole]
    if (folder / "state").is_dir() and steps:
        state = folder / "state" / f"step-{steps[-1]}.pt"
        if not state.is_file():
            found.add(state, "there is no resume state; the records can be read", "note")
    for place in (folder, records or folder / "records", folder / "weights", folder / "state"):
        for path in clear_leftovers(place, remove=False):
            found.add(path, "left over from a killed process", "leftover")
    return found


def mend(folder: Path) -> Examined:
    """Examine a trajectory while nobody writes; keep what is whole as one of format 2.

    Records keep their steps and are counted anew. Damaged files get the ending .damaged and the
    old records go to a folder damaged-1; none is deleted.

    Returns:
        What was found before it was mended.

    Raises:
        ArgumentError: As `examine`, or a recorder is writing to it.
    """
    recorder = FileLock(folder / ".lock")
    try:
        recorder.acquire(timeout=0)
    except Timeout:
        raise ArgumentError(
            "folder", str(folder), "a recorder is writing to it", "Repair it when that has ended."
        ) from None
    try:
        with exclusively(folder):
            found = examine(folder)
            if found.is_damaged:
                _keep_whole(found)
            elif read_header(folder)["version"] > 1:
                if found.tail is not None:
                    with open(found.tail.block, "r+b") as file:
                        file.truncate(found.tail.start)
                clean(folder, BlockLog(records_folder(folder, read_header(folder))))
    finally:
        recorder.release()
    done = {"damage": "set aside; the rest is kept", "leftover": "removed", "note": ""}
    found.findings = [replace(f, mended=done[f.kind]) for f in found.findings]
    return found


def _keep_whole(found: Examined) -> None:
    folder = found.folder
    old = [path for path in folder.glob("records*") if is_record_folder(path.name)]
    log = replace_records(folder, (_row(entry) for entry in found.whole))
    for path in {f.place for f in found.findings if f.kind == "damage"}:
        set_aside(path)
    place = make_folder(folder / f"damaged-{1 + len(list(folder.glob('damaged-*')))}")
    for path in (*old, folder / "metrics", folder / "predictions.zarr"):
        if path.exists():
            path.rename(place / path.name)
    (folder / "complete").unlink(missing_ok=True)  # whoever filled it shall do so again
    clean(folder, log)


def set_aside(path: Path) -> None:
    """Rename a file to end in .damaged, so that it is no longer read."""
    if path.is_file() and path.name != HEADER and path.suffix != ".bin":
        path.rename(path.with_name(path.name + ".damaged"))


def _records_folder(found: Examined) -> Path | None:
    """Return the folder of the blocks, or None where there is none."""
    folder = found.folder
    try:
        header = read_header(folder)
        return records_folder(folder, header)
    except ArgumentError as error:
        if "newer hyperribbon" in error.reason or "outside" in error.reason:
            raise
        found.add(folder / HEADER, error.reason.removeprefix("it is damaged: "))
    candidates = [path for path in folder.glob("records*") if is_record_folder(path.name)]
    filled = [path for path in candidates if block_files(path)]
    return max(filled, key=lambda path: path.stat().st_mtime_ns, default=None)


def _examine_blocks(found: Examined, records: Path) -> None:
    if not records.is_dir():
        found.add(records, "the folder of the records is missing")
    files = block_files(records)
    items = [(block, item) for block in files for item in scan_block(block)]
    expected = 0
    for number, (block, item) in enumerate(items):
        ends_here = number == len(items) - 1 and block == files[-1]
        if isinstance(item, Damage) or not item.is_whole():
            if ends_here:
                found.tail = Damage(block, item.start, item.end)
                found.add(block, "truncated last record", "leftover")
            else:
                found.add(block, f"record {expected} is damaged")
            expected += 1
            continue
        index = item.content["index"]
        if index > expected:
            found.add(block, f"{index - expected} records before record {index} are missing")
        if not _is_record(item.content, found.whole[-1][0] if found.whole else None):
            found.add(block, f"record {index} does not belong to this trajectory")
        else:
            found.whole.append((item.content, item))
        expected = index + 1
    if files and first_index(files[0]) > 0 and not found.findings:
        found.add(records, "the first block is missing")


def _examine_weights(found: Examined, content: dict[str, Any]) -> dict[str, Any]:
    if content["weights"] is None:
        return content
    path = stored_path(found.folder, content["weights"])
    if not path.is_file():
        found.add(path, f"the weights of step {content['step']} are missing")
    elif not _is_whole_state(path, content.get("digest")):
        found.add(path, f"the weights of step {content['step']} are damaged")
    else:
        return content
    return content | {"weights": None, "digest": None}


def _row(entry: _Record) -> Row:
    content, source = entry
    plain = {k: v for k, v in content.items() if k not in ("index", "predictions")}
    return plain, {name: source.read(name) for name in source.arrays}


def _is_record(content: dict[str, Any], earlier: dict[str, Any] | None) -> bool:
    is_one = type(content.get("step")) is int and {"epoch", "weights", "metrics"} <= content.keys()
    return is_one and (earlier is None or earlier["step"] < content["step"])


def _is_whole_state(path: Path, digest: str | None) -> bool:
    if digest is not None:
        return file_digest(path) == digest
    try:
        with safe_open(path, framework="numpy"):
            return True
    except SafetensorError:
        return False


def _is_whole_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False

"""The files of a trajectory: its header, its records, and its manifest.

trajectory.json           format, version, the folder of the records, and what they hold
records/block-000000.bin  records with their predictions and metrics; see `record_log`
weights/000000500.safetensors   weights by step
manifest.json             every file, once the trajectory is finished
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import (
    clear_leftovers,
    make_folder,
    read_json,
    stored_path,
    sync,
    write_json,
)
from hyperribbon.core.store.manifest import MANIFEST, Manifest, list_files
from hyperribbon.core.store.record_log import (
    COUNT,
    RecordLog,
    block_files,
    damage_error,
    read_count,
    write_count,
)

HEADER = "trajectory.json"
STATUS = "recording.json"
_FORMAT, _VERSION = "hyperribbon trajectory", 2
_RECORD_FOLDER = re.compile(r"records(-\d+)?")
_WEIGHTS_FILE = re.compile(r"\d+\.safetensors")


def begin_records(folder: Path) -> RecordLog:
    """Write the header file of a trajectory that has no records yet."""
    if block_files(folder / "records"):
        raise damage_error(folder, f"{HEADER} is missing")
    for name in ("records", "weights"):
        make_folder(stored_path(folder, f"{name}/file").parent)
    write_count(folder / "records", 0)
    _write_header(folder, "records", {})
    return RecordLog(folder / "records")


def read_about(folder: Path) -> dict[str, Any]:
    """Return what a trajectory's header file says of its records; nothing where it is older.

    Raises:
        ArgumentError: The header is damaged.
    """  # noqa: DOC501 - damage_error() returns an ArgumentError
    about: Any = read_header(folder).get("about", {})
    names: Any = about.get("parameters", []) if isinstance(about, dict) else None
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or not isinstance(about.get("omitted", {}), dict)
        or not isinstance(about.get("predictions", ""), str)
    ):
        raise damage_error(folder, f"{HEADER} says {str(about)[:80]!r} of the records")
    return about


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Write what the records of a trajectory hold into its header; the caller holds its files."""
    write_json(folder / HEADER, {**read_header(folder), "about": about}, checksum=True)


def read_header(folder: Path) -> dict[str, Any]:
    """Return the header in a trajectory's files.

    Raises:
        ArgumentError: It is damaged, of another kind, or of a newer hyperribbon.
    """  # noqa: DOC501 - damage_error() returns an ArgumentError
    try:
        header = read_json(folder / HEADER)
        kind, version = header["format"], header["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damage_error(folder, f"{HEADER} cannot be read ({error!r})") from None
    if kind != _FORMAT or type(version) is not int or version < _VERSION:
        raise damage_error(folder, f"{HEADER} says format {kind!r}, version {version!r}")
    if version > _VERSION:
        reason = (
            f"written by a newer hyperribbon: trajectory format {version}; this version reads "
            f"format {_VERSION}"
        )
        remedy = "Install a newer hyperribbon: pip install --upgrade hyperribbon."
        raise ArgumentError("folder", str(folder), reason, remedy)
    if not is_record_folder(header.get("records")):
        raise damage_error(
            folder, f"{HEADER} names {header.get('records')!r} as folder of the records"
        )
    return header


def open_records(folder: Path) -> RecordLog:
    """Return the records in a trajectory's files, opened.

    Raises:
        ArgumentError: The header or a record is damaged, or the format is newer than this code.
    """  # noqa: DOC501 - damage_error() returns an ArgumentError
    header = read_header(folder)
    records = records_folder(folder, header)
    if not records.is_dir():
        raise damage_error(folder, f"the folder {records.name} is missing")
    if read_count(records) is None:
        raise damage_error(folder, f"{records.name}/{COUNT} is missing")
    return RecordLog(records)


def records_folder(folder: Path, header: dict[str, Any]) -> Path:
    """Return the folder with the files of a trajectory's records.

    Raises an ArgumentError where it is a link to a place outside the trajectory.
    """
    return stored_path(folder, f"{header['records']}/block").parent


@contextmanager
def lock_files(folder: Path) -> Generator[None]:
    """Hold the files of a trajectory for one change."""
    with FileLock(folder / ".change.lock", mode=0o644):
        yield


def replace_records(
    folder: Path, records: Iterable[tuple[dict[str, Any], dict[str, np.ndarray]]]
) -> None:
    """Write a trajectory's files of records anew beside the old; the header then points to them."""
    used = {path.name for path in folder.glob("records*")}
    name = next(n for i in range(2, len(used) + 3) if (n := f"records-{i}") not in used)
    write_count(make_folder(folder / name), 0)
    RecordLog(folder / name).extend(list(records))
    try:
        about = read_about(folder)
    except ArgumentError:  # the header is damaged
        about = {}
    _write_header(folder, name, about)


def begin_change(folder: Path, log: RecordLog) -> None:
    """Prepare a trajectory's files for new records: no manifest, no leftovers of killed writers."""
    (folder / MANIFEST).unlink(missing_ok=True)
    sync(folder)
    write_count(log.folder, len(log))  # a kill may have come between a record and its count
    weights = folder / "weights"
    for place in (folder, log.folder, weights, folder / "state"):
        if not place.is_symlink():
            clear_leftovers(place)
    if weights.is_symlink():
        return
    named = {log.content(index).get("weights") for index in range(len(log))}
    for path in weights.glob("*.safetensors"):
        if _WEIGHTS_FILE.fullmatch(path.name) and f"weights/{path.name}" not in named:
            path.unlink()


def finish_trajectory(folder: Path, log: RecordLog) -> None:
    """Write the manifest of a trajectory's files, which completes it."""
    contents = [log.content(index) for index in range(len(log))]
    known = {c["weights"]: c["digest"] for c in contents if c["weights"] and c.get("digest")}
    places = [folder / HEADER, *log.folder.glob("*"), *folder.glob("state/*")]
    kept = [p for p in places if p.is_file() and not p.name.endswith((".tmp", ".damaged"))]
    names = {path.relative_to(folder).as_posix() for path in kept}
    files = list_files(folder, names | known.keys(), known)
    kind = "recording" if (folder / STATUS).is_file() else "trajectory"
    Manifest(kind, files=files, records=len(log)).write(folder)


def is_record_folder(name: object) -> bool:
    """Whether a name is that of the folder with a trajectory's files of records."""
    return isinstance(name, str) and _RECORD_FOLDER.fullmatch(name) is not None


def _write_header(folder: Path, records: str, about: dict[str, Any]) -> None:
    header = {"format": _FORMAT, "version": _VERSION, "records": records}
    header |= {"about": about} if about else {}
    write_json(folder / HEADER, header, checksum=True)

"""The files of a trajectory: its header and version, its records, what is left from before.

trajectory.json           format, version, the folder of the records, and what they hold
records/block-000000.bin  records with their predictions and metrics; see `blocks`
weights/000000500.safetensors   weights by step
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Generator, Iterator
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
    write_json,
)
from hyperribbon.core.store.blocks import BlockLog, block_files, write_log
from hyperribbon.core.store.frames import damaged

__all__ = [
    "HEADER",
    "begin_records",
    "clean",
    "exclusively",
    "is_record_folder",
    "open_records",
    "read_about",
    "read_header",
    "records_folder",
    "replace_records",
    "write_about",
]

HEADER = "trajectory.json"
_NAME, _VERSION = "hyperribbon trajectory", 2
_RECORD_FOLDER = re.compile(r"records(-\d+)?")
_WEIGHTS_FILE = re.compile(r"\d+\.safetensors")

"""Records of either format: `len`, `content(index)`, `rows(indices, name)`."""


def begin_records(folder: Path) -> BlockLog:
    """Write the header of a trajectory that has no records yet."""
    if block_files(folder / "records"):
        raise damaged(folder, f"{HEADER} is missing")
    for name in ("records", "weights"):
        make_folder(stored_path(folder, f"{name}/file").parent)
    _write_header(folder, "records", {})
    return BlockLog(folder / "records")


def read_about(folder: Path) -> dict[str, Any]:
    """Return what the header of a trajectory says of its records; nothing where it is older.

    Raises:
        ArgumentError: The header is damaged.
    """  # noqa: DOC501 - damaged() returns an ArgumentError
    about: Any = read_header(folder).get("about", {})
    names: Any = about.get("parameters", []) if isinstance(about, dict) else None
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or not isinstance(about.get("omitted", {}), dict)
        or not isinstance(about.get("predictions", ""), str)
    ):
        raise damaged(folder, f"{HEADER} says {str(about)[:80]!r} of the records")
    return about


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Write what the records of a trajectory hold into its header."""
    with exclusively(folder):
        write_json(folder / HEADER, {**read_header(folder), "about": about})


def read_header(folder: Path) -> dict[str, Any]:
    """Return the header of a trajectory.

    Raises:
        ArgumentError: It is damaged, of another kind, or of a newer hyperribbon.
    """  # noqa: DOC501 - damaged() returns an ArgumentError
    try:
        header = read_json(folder / HEADER)
        kind, version = header["format"], header["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(folder, f"{HEADER} cannot be read ({error!r})") from None
    if kind != _NAME or type(version) is not int or version < _VERSION:
        raise damaged(folder, f"{HEADER} says format {kind!r}, version {version!r}")
    if version > _VERSION:
        reason = (
            f"written by a newer hyperribbon: trajectory format {version}; this version reads "
            f"format {_VERSION}"
        )
        remedy = "Install a newer hyperribbon: pip install --upgrade hyperribbon."
        raise ArgumentError("folder", str(folder), reason, remedy)
    if not is_record_folder(header.get("records")):
        raise damaged(folder, f"{HEADER} names {header.get('records')!r} as folder of the records")
    return header


def open_records(folder: Path) -> BlockLog:
    """Return the records of a trajectory.

    Raises:
        ArgumentError: The header or a record is damaged, or the format is newer than this code.
    """  # noqa: DOC501 - damaged() returns an ArgumentError
    header = read_header(folder)
    records = records_folder(folder, header)
    if not records.is_dir():
        raise damaged(folder, f"the folder {records.name} is missing")
    return BlockLog(records)


def records_folder(folder: Path, header: dict[str, Any]) -> Path:
    """Return the folder of the records.

    Raises an ArgumentError where it is a link to a place outside the trajectory.
    """
    return stored_path(folder, f"{header['records']}/block").parent


@contextmanager
def exclusively(folder: Path) -> Generator[None]:
    """Hold a trajectory's files for one change."""
    with FileLock(folder / ".change.lock", mode=0o644):
        yield


def replace_records(
    folder: Path, records: Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]
) -> BlockLog:
    """Write all records anew beside the old ones; the header then points to the new ones."""
    taken = {path.name for path in folder.glob("records*")}
    name = next(n for i in range(2, len(taken) + 3) if (n := f"records-{i}") not in taken)
    make_folder(folder / name)
    write_log(folder / name, records)
    try:
        about = read_about(folder)
    except ArgumentError:  # records are mended whose header is damaged
        about = {}
    _write_header(folder, name, about)
    return BlockLog(folder / name)


def clean(folder: Path, log: BlockLog) -> None:
    """Remove what killed writers left: temporary files, files of records that never came to be."""
    for place in (folder, log.folder, folder / "weights", folder / "state"):
        if not place.is_symlink():
            clear_leftovers(place)
    for path in folder.glob("records*"):
        if path != log.folder and is_record_folder(path.name):
            _remove(path)
    named = {log.content(index).get("weights") for index in range(len(log))}
    weights = folder / "weights"
    if not weights.is_symlink():
        for path in weights.glob("*.safetensors"):
            if _WEIGHTS_FILE.fullmatch(path.name) and f"weights/{path.name}" not in named:
                path.unlink()


def is_record_folder(name: object) -> bool:
    """Return whether a name is that of a folder of records."""
    return isinstance(name, str) and _RECORD_FOLDER.fullmatch(name) is not None


def _write_header(folder: Path, records: str, about: dict[str, Any]) -> None:
    header = {"format": _NAME, "version": _VERSION, "records": records}
    header |= {"about": about} if about else {}
    write_json(folder / HEADER, header)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

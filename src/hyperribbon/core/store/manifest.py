"""Manifests: name, size and checksum of every file of a stored result; saves in one step.

manifest.json lists the files of a finished run, inspection, comparison, sweep or recording. A
result that is saved again is first written to a folder beside, which one rename commits:

    .saving-x1y2z3a4/   files of a save that is not complete; ignored
    .committed/         files of a complete save; whoever opens the result moves them into place

The old files go before the first new one comes, so that no kill leaves old beside new ones.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import (
    ensure_folder,
    file_digest,
    make_folder,
    read_json,
    stored_path,
    sync,
    write_json,
)

MANIFEST = "manifest.json"
COMMITTED = ".committed"
SAVING = ".saving-"
SAVE_LOCK = ".save.lock"
LISTED = ".listed"
"""Empty file that says of a folder to which files are added that it has a manifest."""
_FORMAT, _VERSION = "hyperribbon manifest", 1


@dataclass(frozen=True)
class Manifest:
    """The files of a stored result.

    Attributes:
        kind: "run", "inspection", "comparison", "sweep", "trajectory", or "recording" for a
            trajectory with the status file of a Recorder.
        state: "finished", or "running" for one that is still to be completed.
        files: Size in bytes and checksum of every file, by its name within the folder.
        records: Number of records of a recording.
    """

    kind: str
    state: str = "finished"
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    records: int | None = None

    def write(self, folder: Path) -> None:
        """Write the manifest into a folder; this completes the result."""
        files = {
            name: {"size": size, "hash": digest} for name, (size, digest) in self.files.items()
        }
        content: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, "kind": self.kind}
        content |= {"state": self.state, "records": self.records, "files": files}
        write_json(folder / MANIFEST, content, checksum=True)

    def find_damage(self, folder: Path) -> dict[str, str]:
        """Read every file in the manifest; return what is wrong with those that differ, by name."""
        found = {name: _compare(folder, name, *entry) for name, entry in self.files.items()}
        return {name: what for name, what in found.items() if what}


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder, or None without one.

    Raises:
        ValueError: It is damaged, or of a newer hyperribbon.
    """
    if not os.path.lexists(folder / MANIFEST):
        return None
    try:
        content = read_json(folder / MANIFEST, checksum=True)
        if content["format"] != _FORMAT or content["version"] != _VERSION:
            raise ValueError(f"format {content['format']!r}, version {content['version']!r}")
        files = {n: (int(e["size"]), str(e["hash"])) for n, e in content["files"].items()}
        for name in files:
            stored_path(folder, name)
        return Manifest(content["kind"], content["state"], files, content["records"])
    except (OSError, KeyError, TypeError, AttributeError, ArgumentError) as error:
        raise ValueError(getattr(error, "reason", repr(error))) from None


def list_files(
    folder: Path, names: Iterable[str] | None = None, known: Mapping[str, str] | None = None
) -> dict[str, tuple[int, str]]:
    """Return size and checksum of a folder's files, by name, for its manifest.

    Args:
        folder: The folder.
        names: The files; None for all but hidden ones, lock files, what was set aside as damaged,
            and folders that have a manifest of their own.
        known: Checksums that need not be computed, by name.
    """
    files: dict[str, tuple[int, str]] = {}
    for name in sorted(_names_within(folder) if names is None else names):
        path = stored_path(folder, name)
        digest = known[name] if known and name in known else file_digest(path)
        files[name] = (path.stat().st_size, digest)
    return files


def add_to_manifest(folder: Path, kind: str, names: Iterable[str]) -> None:
    """List files in the manifest of a folder to which several processes may write.

    Args:
        folder: The folder.
        kind: See `Manifest`.
        names: The files, in addition to those that are listed already and still there.
    """
    with FileLock(folder / SAVE_LOCK, mode=0o644):
        files = {n: e for n, e in _listed(folder).items() if (folder / n).is_file()}
        files |= list_files(folder, names)
        Manifest(kind, files=dict(sorted(files.items()))).write(folder)
        (folder / LISTED).touch(0o644)


def list_new_files(folder: Path, kind: str) -> None:
    """List the states and trees that the manifest does not list, as after a kill.

    Args:
        folder: The folder.
        kind: See `Manifest`.
    """
    known = _listed(folder)
    if new := [f.name for f in folder.glob("*.safetensors") if f.name not in known]:
        add_to_manifest(folder, kind, new)


def _listed(folder: Path) -> Mapping[str, tuple[int, str]]:
    """Return the files that a folder's manifest lists; none where it is missing or damaged."""
    with suppress(ValueError):
        if (manifest := read_manifest(folder)) is not None:
            return manifest.files
    return {}


@contextmanager
def save_folder(folder: Path, kind: str) -> Generator[Path]:
    """Yield an empty folder; its files and manifest replace the last save in one step.

    A kill leaves the old files or the new ones, never some of both. Other files in the folder stay.

    Args:
        folder: Where the result goes; made if it is missing.
        kind: See `Manifest`.
    """
    ensure_folder("folder", folder)
    with FileLock(folder / SAVE_LOCK, mode=0o644):
        _move_into_place(folder)
        for left in folder.glob(f"{SAVING}*"):
            shutil.rmtree(left, ignore_errors=True)
        beside = Path(tempfile.mkdtemp(prefix=SAVING, dir=folder))
        try:
            yield beside
            Manifest(kind, files=list_files(beside)).write(beside)
            for place, _, _ in os.walk(beside):
                sync(Path(place))
            os.rename(beside, folder / COMMITTED)
            sync(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        _move_into_place(folder)


def finish_save(folder: Path) -> None:
    """Move the files of a save with a manifest into place, where a kill has interrupted that.

    Call it before reading a result. Does nothing where the folder cannot be written to.
    """
    if (folder / COMMITTED).is_dir():
        with suppress(OSError, ValueError), FileLock(folder / SAVE_LOCK, mode=0o644):
            _move_into_place(folder)


def _move_into_place(folder: Path) -> None:
    committed = folder / COMMITTED
    if not committed.is_dir():
        return
    new = read_manifest(committed)
    if new is not None:
        for name in {*_listed(folder), *new.files}:
            if (committed / name).exists() or name not in new.files:
                (folder / name).unlink(missing_ok=True)
        for name in new.files:
            if (committed / name).exists():
                make_folder(stored_path(folder, name).parent)
                os.replace(committed / name, folder / name)
        for place in {(folder / name).parent for name in new.files}:
            sync(place)
        os.replace(committed / MANIFEST, folder / MANIFEST)
        sync(folder)
    if not any(path.is_file() for path in committed.rglob("*")):
        shutil.rmtree(committed, ignore_errors=True)


def _compare(folder: Path, name: str, size: int, digest: str) -> str:
    """Return how a file differs from its entry in the manifest, or an empty string."""
    path = folder / name
    try:
        if not os.path.lexists(path):
            return "it is missing"
        if path.is_symlink() or not path.is_file():
            return "it is not a regular file"
        if path.stat().st_size != size:
            return f"it has {path.stat().st_size:,} bytes, and was written with {size:,}"
        return "" if file_digest(path) == digest else "its checksum is wrong"
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"


def _names_within(folder: Path) -> Iterator[str]:
    for place, inside, names in os.walk(folder):
        at = Path(place)
        inside[:] = [
            name
            for name in inside
            if not name.startswith((".", "damaged-")) and not (at / name / MANIFEST).exists()
        ]
        for name in names:
            is_own = not name.startswith(".") and not name.endswith((".lock", ".damaged"))
            if is_own and name != MANIFEST and (at / name).is_file():
                yield (at / name).relative_to(folder).as_posix()

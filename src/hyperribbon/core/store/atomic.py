"""Atomic file writes (temporary file, sync, rename), and reads of regular files only."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from hyperribbon.core.checks import ArgumentError

try:
    import fcntl
except ImportError:  # not on this system: leftovers of killed processes stay
    fcntl = None


_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")
REMOVED = ".removed-"
_LARGEST_JSON = 2**28


@contextmanager
def writing(path: Path) -> Generator[Path]:
    """Yield a temporary path for an atomic write: it replaces `path` when the block succeeds.

    When the block has ended the file and its name are on disk. A process that dies inside leaves
    the temporary file behind for `clear_leftovers`. What is written to a device or a pipe, such as
    /dev/stdout, goes through it.

    Raises:
        ArgumentError: The path is a link, which would be replaced, or a folder.
    """
    if _is_special(path):
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / "content"
            yield temporary
            _write_through(path, temporary.read_bytes())
        return
    if path.is_symlink() or path.is_dir():
        kind = f"a link to {os.readlink(path)}" if path.is_symlink() else "a folder"
        remedy = "Give the file itself, or another path."
        raise ArgumentError("path", str(path), f"it is {kind}, which is not replaced", remedy)
    handle, temporary = _open_temporary(path)
    try:
        yield temporary
        sync(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


def _is_special(path: Path) -> bool:
    """Whether a path to write atomically is a device or a pipe, which cannot be replaced."""
    if str(path).startswith(("/dev/std", "/dev/fd/", "/proc/")):
        return True
    try:
        mode = path.stat(follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISFIFO(mode)


def _write_through(path: Path, content: bytes) -> None:
    """Write without atomic replacement to a device or a pipe; one that nobody reads is an error."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    with open(handle, "wb") as file:
        file.write(content)


def clear_leftovers(folder: Path, *, remove: bool = True) -> list[Path]:
    """Remove the temporary files that atomic writes of dead processes left; return them.

    A living writer holds a lock on its temporary file, so nothing is taken from under it.

    Args:
        folder: Where to look; folders within are not entered.
        remove: False only finds them.

    Returns:
        The files that were found.
    """
    found: list[Path] = []
    for path in folder.glob(".*.tmp"):
        if path.is_symlink() or not path.is_file() or not _TEMPORARY.fullmatch(path.name):
            continue
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:
            continue
        try:
            if _lock(handle, wait=False):
                found.append(path)
                if remove:
                    path.unlink(missing_ok=True)
        finally:
            os.close(handle)
    return found


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with writing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any, *, checksum: bool = False) -> None:
    """Write a JSON file atomically, keys in the order given.

    Args:
        path: The file.
        content: Plain values.
        checksum: Add a checksum to a dict, which `read_json` verifies and removes.
    """
    if checksum:
        content = {**content, "checksum": _json_digest(content)}
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path, *, checksum: bool = False) -> Any:
    """Read a JSON file that `write_json` wrote atomically; verify its checksum.

    Args:
        path: The file.
        checksum: Whether it must have a checksum.

    Returns:
        Plain values, without the checksum that `write_json` adds.

    Raises:
        ValueError: It is not JSON, nested too deeply, larger than 256 MB, or its checksum is wrong.
    """
    with open_regular(path) as file:
        text = file.read(_LARGEST_JSON + 1)
    if len(text) > _LARGEST_JSON:
        raise ValueError("it is larger than 256 MB")
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(content, dict) and "checksum" in content:
        expected = content.pop("checksum")
        if expected != _json_digest(content):
            raise ValueError("its checksum is wrong")
    elif checksum:
        raise ValueError("its checksum is missing")
    return content


def _json_digest(content: dict[str, Any]) -> str:
    return digest_of(json.dumps(content, sort_keys=True).encode())


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file that was written atomically; never wait for a pipe or a device.

    Returns:
        The open file.

    Raises:
        OSError: It is missing, or a folder, pipe, socket or device.
    """
    if stat.S_ISREG(path.stat().st_mode):
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return os.fdopen(handle, "rb")
        os.close(handle)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def remove_folder(folder: Path) -> None:
    """Remove a folder atomically: a kill leaves it whole, or under a name nobody reads."""
    gone = folder.with_name(REMOVED + folder.name)
    shutil.rmtree(gone, ignore_errors=True)  # what an earlier kill left
    if folder.is_dir():
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents atomically; when this returns their names are on disk."""
    if not folder.is_dir():
        if folder.parent != folder:
            make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
    return folder


def ensure_folder(argument: str, folder: Path) -> Path:
    """Create a folder for files to be written atomically, or raise if it is read-only."""
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"it cannot be written to ({error.strerror or error})"
        remedy = "Choose a folder you may write to."
        raise ArgumentError(argument, str(folder), reason, remedy) from None
    return folder


def stored_path(folder: Path, name: object) -> Path:
    """Return folder/name for a name read from an atomically written file of the folder.

    Raises:
        ArgumentError: The name leads outside the folder, by itself or through a link.
    """
    path = folder / str(name)
    named_inside = isinstance(name, str) and not {"", ".", ".."} & set(name.split("/"))
    if not named_inside or not path.parent.resolve().is_relative_to(folder.resolve()):
        reason = f"one of its files refers to {str(name)!r}, outside the folder"
        remedy = "Do not trust this folder; nothing was read or changed."
        raise ArgumentError("folder", str(folder), reason, remedy)
    return path


def digest_of(content: bytes | memoryview) -> str:
    """Return the checksum that atomically written files carry: BLAKE2b, 16 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def file_digest(path: Path) -> str:
    """Return the checksum of an atomically written file, read piece by piece."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's names, to disk, for writing atomically."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock for an atomic write; nothing is waited for or created."""
    if fcntl is None:
        return path.exists()
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _open_temporary(path: Path) -> tuple[int, Path]:
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        _lock(handle, wait=True)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # cleared away between its creation and its lock: take another


def _lock(handle: int, *, wait: bool) -> bool:
    """Lock a file to be written atomically; False if another process has it, or without locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True

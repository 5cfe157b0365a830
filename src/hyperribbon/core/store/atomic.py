"""Files that are either whole or absent: write beside, sync, rename."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hyperribbon.core.checks import ArgumentError

__all__ = ["ensure_folder", "read_json", "writing", "write_bytes", "write_json", "write_text"]


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder that replaces `path` when the block succeeds."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with writing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Write a JSON file atomically, keys in the order given."""
    write_text(path, json.dumps(content, indent=2, default=default) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text())


def ensure_folder(argument: str, folder: Path) -> Path:
    """Create a folder, or say why it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ArgumentError(
            argument,
            str(folder),
            f"it cannot be written to ({error.strerror or error})",
            "Choose a folder you may write to.",
        ) from None
    return folder


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

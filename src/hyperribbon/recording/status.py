"""Status file of a recording: running or finished, and its contents."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hyperribbon.core.store import read_json, write_json
from hyperribbon.core.store.atomic import is_locked
from hyperribbon.core.store.manifest import MANIFEST
from hyperribbon.core.store.trajectory_files import STATUS

LOCK = ".lock"
_MOST_BYTES = 100_000
_STATES = ("running", "finished", "stopped")


def write_status(folder: Path, state: str, about: dict[str, Any]) -> None:
    """Write the status of a recording."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"state": state, "changed": now, **about}
    is_ended = state != "running" and (folder / MANIFEST).is_file()
    about["has_manifest"] = is_ended  # if so, a missing manifest is damage
    write_json(folder / STATUS, about, checksum=True)


def read_status(folder: Path) -> dict[str, Any]:
    """Return the status of a recording; the state is "recorded" if unknown.

    A run marked as running whose recorder is gone was killed: "stopped".
    """
    path, found = folder / STATUS, None
    try:
        if not path.is_symlink() and path.stat().st_size < _MOST_BYTES:
            found = read_json(path)
    except (OSError, ValueError, RecursionError):
        pass
    if not isinstance(found, dict) or found.get("state") not in _STATES:
        return {"state": "recorded"}
    if found["state"] == "running" and not is_locked(folder / LOCK):
        found["state"] = "stopped"
    return found

"""Read trajectories of format 1: one JSON file per record, arrays in zarr."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from hyperribbon.core.checks import ArgumentError, is_array
from hyperribbon.core.store.atomic import read_json, stored_path
from hyperribbon.core.store.frames import damaged

__all__ = ["FirstFormat", "leftovers_of_format1"]


class FirstFormat:
    """The records of a trajectory of format 1.

    Args:
        folder: The trajectory's folder.
        strict: Raise when a record is missing or damaged; otherwise leave it out.

    Attributes:
        contents: What every record says, in order; "row" is its place in the arrays.

    Raises:
        ArgumentError: A record is missing or damaged.
    """

    def __init__(self, folder: Path, *, strict: bool = True) -> None:
        self.folder = folder
        self.contents: list[dict[str, Any]] = []
        self.lost: list[str] = []
        self._arrays: dict[str, Any] = {}
        files = sorted((folder / "records").glob("[0-9]*.json"))
        expected = 0
        for path in files:
            row = int(path.stem) if path.stem.isdecimal() else -1
            lost = [f"record {i} is missing" for i in range(expected, row)]
            content = _read(path)
            if content is None or row < expected:
                lost.append(f"records/{path.name} is damaged")
            else:
                self.contents.append({**content, "row": row})
            if lost and strict:
                raise damaged(folder, lost[0])
            self.lost += lost
            expected = max(expected, row + 1)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.contents)

    def content(self, index: int) -> dict[str, Any]:
        """Return the JSON values stored for a record."""
        return self.contents[index]

    def rows(self, indices: Sequence[int], name: str) -> np.ndarray:
        """Return one array of several records, (len(indices), ...)."""
        rows = [self.contents[index]["row"] for index in indices]
        try:
            if name not in self._arrays:
                package: Any = import_module("zarr")
                path = stored_path(self.folder, f"{name}.zarr")
                opened = package.open_array(str(path), mode="r")
                self._arrays[name] = opened if name == "predictions" else opened[:]
            array = self._arrays[name]
            if max(rows) >= array.shape[0]:
                raise ValueError("it is too short")
            return array[rows] if is_array(array) else np.asarray(array.oindex[rows])
        except ArgumentError:
            raise
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise damaged(self.folder, f"{name}.zarr cannot be read ({error})") from None


def leftovers_of_format1(folder: Path) -> list[Path]:
    """Return the files and folders that only format 1 has."""
    found = [folder / "predictions.zarr"]
    for name, pattern in (("records", "[0-9]*.json"), ("metrics", "*.zarr")):
        if not (folder / name).is_symlink():
            found += (folder / name).glob(pattern)
    return [path for path in found if path.exists() and not path.is_symlink()]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = read_json(path)
        metrics = [str(name) for name in content["metrics"]]
        content = {**content, "metrics": metrics, "predictions": bool(content["has_predictions"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content

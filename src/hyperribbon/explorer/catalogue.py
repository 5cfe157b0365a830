"""What a store holds: experiments, inspections and trajectories, found and read."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store import read_json
from hyperribbon.core.trajectory import Trajectory

__all__ = ["Entry", "find_entries"]


@dataclass(frozen=True)
class Entry:
    """One stored run.

    Attributes:
        name: Its folder relative to the store: its address on the page.
        kind: "experiment", "inspection" or "trajectory".
        folder: Where it lies.
    """

    name: str
    kind: str
    folder: Path

    @property
    def info(self) -> dict[str, Any]:
        """Title, configuration and environment."""
        path = self.folder / "run.json"
        return read_json(path) if path.is_file() else {"title": self.name, "config": {}}

    @property
    def claims(self) -> list[dict[str, Any]]:
        """Judged claims of an experiment."""
        path = self.folder / "claims.json"
        return read_json(path) if path.is_file() else []

    @property
    def reading(self) -> list[str]:
        """An inspection in plain sentences."""
        path = self.folder / "inspection.json"
        return read_json(path)["reading"] if path.is_file() else []

    def figures(self) -> dict[str, go.Figure]:
        """Return interactive figures by name."""
        found = {}
        for path in sorted((self.folder / "figures").glob("*.plotly.json")):
            found[path.name.removesuffix(".plotly.json")] = go.Figure(
                json.loads(path.read_text()), skip_invalid=True
            )
        return found

    def images(self) -> dict[str, str]:
        """Return printed figures as data URIs, of which there is no interactive version."""
        folder = self.folder / "figures"
        interactive = {p.name.removesuffix(".plotly.json") for p in folder.glob("*.plotly.json")}
        return {
            path.stem: "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
            for path in sorted(folder.glob("*.png"))
            if path.stem not in interactive
        }

    def trajectory(self) -> Trajectory | None:
        """Return the trajectory, of a recorded run."""
        if self.kind != "trajectory":
            return None
        try:
            return Trajectory.open(self.folder)
        except ArgumentError:
            return None

    def curves(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return pruning curves of an inspection: fraction and accuracy by name."""
        found = {}
        for name, figure in self.figures().items():
            if "prune" not in name and "fraction" not in name:
                continue
            traces: Any = figure.data
            for trace in traces:
                if trace.type == "scatter" and trace.x is not None and trace.name:
                    found[str(trace.name)] = (
                        np.asarray(trace.x, dtype=float),
                        np.asarray(trace.y, dtype=float),
                    )
        return found


def find_entries(store: Path) -> dict[str, Entry]:
    """Return everything that is complete in a store, by name."""
    entries = {}
    for marker, kind in (
        ("claims.json", "experiment"),
        ("inspection.json", "inspection"),
        ("trajectory.json", "trajectory"),
    ):
        for depth in ("*", "*/*", "*/*/*"):
            for path in store.glob(f"{depth}/{marker}"):
                name = str(path.parent.relative_to(store))
                entries[name] = Entry(name, kind, path.parent)
    return dict(sorted(entries.items()))

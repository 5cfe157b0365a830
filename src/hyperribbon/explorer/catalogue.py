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
        """Return interactive figures by title, or by name where they have none."""
        path = self.folder / "inspection.json"
        parts = read_json(path)["parts"] if path.is_file() else []
        titles = {chart["name"]: chart["title"] for part in parts for chart in part["charts"]}
        paths = {
            p.name.removesuffix(".plotly.json"): p
            for p in sorted((self.folder / "figures").glob("*.plotly.json"))
        }
        order = [
            *(name for name in titles if name in paths),
            *(n for n in paths if n not in titles),
        ]
        return {
            titles.get(name, name): go.Figure(
                _decoded(json.loads(paths[name].read_text())), skip_invalid=True
            )
            for name in order
        }

    def images(self) -> dict[str, str]:
        """Return printed figures as data URIs, of which there is no interactive version."""
        folder = self.folder / "figures"
        interactive = {p.name.removesuffix(".plotly.json") for p in folder.glob("*.plotly.json")}
        return {
            path.stem: "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
            for path in sorted(folder.glob("*.png"))
            if path.stem not in interactive
        }

    def code(self) -> str:
        """Return Python lines that make or open this run."""
        info = self.info
        if self.kind == "experiment":
            seed = info.get("environment", {}).get("seed", 0)
            return (
                "from hyperribbon.experiments import run_experiment\n\n"
                f'run_experiment("{info["id"]}", preset="{info["preset"]}", seed={seed}, '
                'out="runs")\n'
            )
        if self.kind == "inspection":
            config = info["config"]
            return (
                "import hyperribbon as hr\n\n"
                f"found = hr.inspect(model, loss, data, k={config.get('k', 50)}, "
                f"budget={config.get('seconds', 60.0):g}, seed={config.get('seed', 0)})\n"
                "found.summary()\n"
            )
        return (
            "import numpy as np\nimport hyperribbon as hr\n\n"
            f"trajectory = hr.Trajectory.open({str(self.folder)!r})\n"
            "trajectory.metrics()\n"
            "hr.InPCA(n_components=3).fit_transform(np.exp(trajectory.predictions()))\n"
        )

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
        path = self.folder / "figures" / "fractions.plotly.json"
        if not path.is_file():
            return {}
        traces = _decoded(json.loads(path.read_text()))["data"]
        return {
            str(trace["name"]): (np.asarray(trace["x"], float), np.asarray(trace["y"], float))
            for trace in traces
            if trace.get("name") and len(trace.get("x", ())) > 1
        }


def _decoded(tree: Any) -> Any:
    """Return a stored figure with the arrays that plotly packs into text unpacked."""
    if isinstance(tree, dict):
        if tree.keys() >= {"dtype", "bdata"}:
            array = np.frombuffer(base64.b64decode(tree["bdata"]), dtype=tree["dtype"])
            shape = str(tree.get("shape", "")).split(",")
            return array.reshape([int(n) for n in shape]) if len(shape) > 1 else array
        return {key: _decoded(value) for key, value in tree.items()}
    return [_decoded(value) for value in tree] if isinstance(tree, list) else tree


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

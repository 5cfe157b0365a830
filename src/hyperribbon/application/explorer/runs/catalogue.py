"""Find and read the experiments, inspections and trajectories in a folder."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hyperribbon.application.explorer.figures import blend_in
from hyperribbon.application.report.images import data_uri
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store import finish_save, read_json
from hyperribbon.recording.trajectory import Trajectory

_MOST_BYTES = 64_000_000
UNREADABLE = (
    *(ArgumentError, ArithmeticError, AttributeError, LookupError),
    *(OSError, TypeError, ValueError, RecursionError),
)


@dataclass(frozen=True)
class Entry:
    """A stored run in the explorer's catalogue.

    Attributes:
        name: Its folder relative to the store, used in links.
        kind: "experiment", "inspection" or "trajectory".
        folder: Its folder.
    """

    name: str
    kind: str
    folder: Path

    @property
    def label(self) -> str:
        """The displayed name of a catalogue entry."""
        return self.folder.resolve().name if self.name == "." else self.name

    @property
    def shown_kind(self) -> str:
        """The displayed kind of a catalogue entry."""
        return "recording" if self.kind == "trajectory" else self.kind

    @cached_property
    def damage(self) -> str:
        """Why a catalogue entry cannot be shown; empty if it can."""
        try:
            _ = self.info, self.claims, self.answers, self.code()
        except UNREADABLE as error:
            return str(error) or repr(error)
        return ""

    @cached_property
    def info(self) -> dict[str, Any]:
        """Title, configuration and environment of a catalogue entry."""
        found = self._read("run.json", dict, {"title": self.label, "config": {}})
        return {**found, "title": str(found.get("title", self.label))}

    @cached_property
    def claims(self) -> list[dict[str, Any]]:
        """Judged claims of a catalogue entry that is an experiment."""
        return [_claim(claim) for claim in self._read("claims.json", list, [])]

    @cached_property
    def reading(self) -> list[str]:
        """Summary sentences of a catalogue entry that is an inspection."""
        found = self._read("inspection.json", dict, {"reading": []})
        return [str(sentence) for sentence in found["reading"]]

    @cached_property
    def answers(self) -> list[tuple[str, str]]:
        """First sentence and the rest of each answer of a catalogue entry, an inspection."""
        found = self._read("inspection.json", dict, {}).get("answers", [])
        findings = [str(answer["finding"]) for answer in found]
        return [
            (finding, text.removeprefix(finding))
            for finding, text in zip(findings, self.reading, strict=False)
        ]

    def _read(self, name: str, kind: type, absent: Any) -> Any:
        """Read a JSON file of a catalogue entry."""
        path = self._inside(self.folder / name)
        if not path.is_file():
            return absent
        found = read_json(path)
        if not isinstance(found, kind):
            raise ArgumentError(
                name, type(found).__name__, f"it must be a JSON {kind.__name__}", "Write it again."
            )
        return found

    def _inside(self, path: Path) -> Path:
        """Return a path of a catalogue entry after checking that it stays inside, and its size."""
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise ArgumentError(
                "run", path.name, "it points outside the run's folder", "Remove it."
            )
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            raise ArgumentError(
                "run", path.name, f"it has {path.stat().st_size / 1e6:.0f} MB", "Remove it."
            )
        return path

    def figures(self) -> dict[str, go.Figure]:
        """Return a catalogue entry's interactive figures by title, or by name if untitled."""
        parts = self._read("inspection.json", dict, {"parts": []})["parts"]
        titles = {
            str(chart["name"]): str(chart["title"]) for part in parts for chart in part["charts"]
        }
        paths = {
            path.name.removesuffix(".plotly.json"): path
            for path in sorted((self.folder / "figures").glob("*.plotly.json"))
        }
        return {
            titles.get(name, name): blend_in(
                go.Figure(json.loads(self._inside(paths[name]).read_text()), skip_invalid=True)
            )
            for name in dict.fromkeys((*titles, *paths))
            if name in paths
        }

    def images(self) -> dict[str, str]:
        """Return a catalogue entry's figures without an interactive version, as data URIs."""
        folder = self.folder / "figures"
        interactive = {p.name.removesuffix(".plotly.json") for p in folder.glob("*.plotly.json")}
        pictures = [p for p in sorted(folder.glob("*.png")) if p.stem not in interactive]
        return {path.stem: data_uri("png", self._inside(path).read_bytes()) for path in pictures}

    def code(self) -> str:
        """Return Python code that reproduces or opens a catalogue entry."""
        info = self.info
        if self.kind == "experiment":
            seed = info.get("environment", {}).get("seed", 0)
            changed = dict(info["changed"]) if "changed" in info else None
            return (
                "from hyperribbon.papers.experiments import run\n\n"
                f"run({str(info['id'])!r}, {changed!r}, "
                f"preset={str(info['preset'])!r}, seed={int(seed)}, "
                f"seeds={len(info.get('seeds', [seed]))}, out='runs')\n"
            )
        if self.kind == "inspection":
            config = info["config"]
            return (
                "import hyperribbon as hr\n\n"
                f"found = hr.inspect(model, loss, data, k={int(config.get('k', 50))}, "
                f"budget={float(config.get('seconds', 60.0)):g}, "
                f"seed={int(config.get('seed', 0))})\n"
                "print(found.summary())\n"
            )
        return (
            "import numpy as np\nimport hyperribbon as hr\n\n"
            f"trajectory = hr.Trajectory.open({str(self.folder)!r})\n"
            "trajectory.metrics()\n"
            "hr.InPCA(n_components=3).fit_transform(np.exp(trajectory.predictions()))\n"
        )

    def trajectory(self) -> Trajectory | None:
        """Return the trajectory of a catalogue entry that is a recorded run."""
        return Trajectory.open(self.folder) if self.kind == "trajectory" else None

    def curves(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return the pruning curves of a catalogue entry: fractions and accuracies by name."""
        path = self._inside(self.folder / "figures" / "fractions.plotly.json")
        if not path.is_file():
            return {}
        return {
            str(trace["name"]): (_numbers(trace["x"]), _numbers(trace["y"]))
            for trace in json.loads(path.read_text())["data"]
            if trace.get("name") and len(trace.get("x", ())) > 1
        }


def _claim(given: Any) -> dict[str, Any]:
    """Return a catalogue entry's claim as strings, the measured value as a number or None."""
    measured = given["measured"]
    texts = {name: str(given[name]) for name in ("verdict", "place", "reading", "why")}
    return {**texts, "measured": None if measured is None else float(measured)}


def _numbers(values: Any) -> np.ndarray:
    """Return numbers of a catalogue entry's figure, a list or plotly's base64, as an array."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]).astype(float)
    return np.asarray(values, float)


def find_entries(store: Path) -> dict[str, Entry]:
    """Return the catalogue of a folder: its complete runs by name; "." is the folder itself."""
    depths = ("", "*/", "*/*/", "*/*/*/")
    for path in (path for depth in depths for path in store.glob(f"{depth}.committed")):
        finish_save(path.parent)
    entries = {}
    for marker, kind in (
        ("claims.json", "experiment"),
        ("inspection.json", "inspection"),
        ("trajectory.json", "trajectory"),
    ):
        for path in (path for depth in depths for path in store.glob(f"{depth}{marker}")):
            name = str(path.parent.relative_to(store))
            if not path.parent.name.startswith(".saving-"):
                entries[name] = Entry(name, kind, path.parent)
    return dict(sorted(entries.items()))

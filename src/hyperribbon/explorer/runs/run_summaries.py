"""Run summaries with sparklines for the list, cached until the files change."""

from __future__ import annotations

import base64
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Lock

import numpy as np

from hyperribbon.explorer.runs.catalogue import UNREADABLE, Entry
from hyperribbon.explorer.runs.recordings import measured
from hyperribbon.recording.trajectory import Trajectory
from hyperribbon.recording.writing.forecast import in_words
from hyperribbon.recording.writing.status import read_status

__all__ = ["Summaries", "RunSummary", "sharpness_name", "sparkline"]

_KEPT = 1000
_MOST_FILES = 20_000
_WIDTH, _HEIGHT = 150, 34

Series = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run in the list.

    Attributes:
        name: Its identifier in links.
        label: Its displayed name.
        kind: "recording", "inspection" or "experiment".
        state: "running", "finished", "stopped", "recorded" or "damaged".
        when: Time of its last change.
        size: Size on disk, formatted.
        text: One-line description.
        curves: Steps and values of the loss and the sharpness, where they were recorded.
        metrics: Names of what was recorded.
    """

    name: str
    label: str
    kind: str
    state: str
    when: float
    size: str
    text: str
    curves: dict[str, Series] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()

    @property
    def date(self) -> str:
        """Time of the last change, in local time."""
        return datetime.fromtimestamp(self.when).strftime("%Y-%m-%d %H:%M")

    def matches(self, text: str, choice: str) -> bool:
        """Return whether the run matches a search and a filter."""
        words = (
            f"{self.label} {self.kind} {self.state} {self.text} {' '.join(self.metrics)}".lower()
        )
        found = all(word in words for word in text.lower().split())
        return found and choice in ("all", self.kind, self.state)


class Summaries:
    """The summaries of all runs, reread only when files change."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, tuple[object, RunSummary]] = OrderedDict()
        self._lock = Lock()

    def of(self, entry: Entry) -> RunSummary:
        """Return the summary of a run."""
        changed, size = _files(entry.folder)
        state = read_status(entry.folder)["state"] if entry.kind == "trajectory" else "finished"
        key = (changed, size, state)
        with self._lock:
            if (known := self._known.get(entry.folder)) is not None and known[0] == key:
                return known[1]
        summary = _summarise(entry, state, changed, size)
        with self._lock:
            self._known[entry.folder] = (key, summary)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return summary


def _summarise(entry: Entry, state: str, changed: float, size: int) -> RunSummary:
    kind = {"trajectory": "recording"}.get(entry.kind, entry.kind)
    curves: dict[str, Series] = {}
    metrics: tuple[str, ...] = ()
    try:
        damage = entry.damage
        if damage:
            text, state = f"Cannot be read: {damage}", "damaged"
        elif (trajectory := entry.trajectory()) is not None:
            curves, metrics = _curves(trajectory), tuple(trajectory.metric_names())
            last = f", up to step {trajectory[-1].step:,}" if len(trajectory) else ""
            text = f"{len(trajectory):,} records{last}"
        elif entry.claims:
            holds = sum(claim["verdict"] == "holds" for claim in entry.claims)
            text = f"{entry.info['title']}: {holds} of {len(entry.claims)} claims hold"
        else:
            text = (entry.reading or [entry.info["title"]])[0]
    except UNREADABLE as error:
        text, state = f"Cannot be read: {str(error) or repr(error)}", "damaged"
    about = (kind, state, changed, in_words(size), text[:300])
    return RunSummary(entry.name, entry.label, *about, curves, metrics)


def sharpness_name(trajectory: Trajectory) -> str | None:
    """Return the name of the sharpness metric, or else of the leading eigenvalues."""
    names = trajectory.metric_names()
    if "sharpness" in names:
        return "sharpness"
    return next((name for name in names if name.endswith("eigenvalues")), None)


def _curves(trajectory: Trajectory) -> dict[str, Series]:
    names = {"loss": "loss", "sharpness": sharpness_name(trajectory)}
    known = {label: n for label, n in names.items() if n in trajectory.metric_names()}
    curves = {label: measured(trajectory, trajectory.metric(n)) for label, n in known.items()}
    return {label: series for label, series in curves.items() if len(series[0])}


def _files(folder: Path) -> tuple[float, int]:
    """Return a folder's last modification time and total file size in bytes."""
    changed, size, number = 0.0, 0, 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                about = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            if not name.endswith(".lock"):
                changed = max(changed, about.st_mtime)
            size, number = size + about.st_size, number + 1
        if number > _MOST_FILES:
            break
    return changed, size


def sparkline(series: Series, color: str) -> str:
    """Return a sparkline as a data URI, scaled to its own range."""
    x, y = (np.asarray(values, dtype=float) for values in series)
    if len(x) > _WIDTH:
        rows = np.unique(np.linspace(0, len(x) - 1, _WIDTH).astype(int))
        x, y = x[rows], y[rows]
    across = np.full(len(x), _WIDTH / 2) if np.ptp(x) == 0 else (x - x[0]) / np.ptp(x) * _WIDTH
    up = np.full(len(y), 0.5) if np.ptp(y) == 0 else (y - y.min()) / np.ptp(y)
    down = (1 - up) * (_HEIGHT - 8) + 4
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across + 3, down, strict=True))
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 6} {_HEIGHT}">'
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.6" '
        'stroke-linejoin="round"/>'
        f'<circle cx="{across[-1] + 3:.1f}" cy="{down[-1]:.1f}" r="2.4" fill="{color}"/></svg>'
    )
    return "data:image/svg+xml;base64," + base64.b64encode(picture.encode()).decode()

"""Run summaries with sparklines for the list, cached until the files change."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import numpy as np

from hyperribbon.application.explorer.runs.catalogue import UNREADABLE, Entry
from hyperribbon.application.explorer.runs.recording_figures import series
from hyperribbon.recording.disk_space import in_words
from hyperribbon.recording.status import read_status
from hyperribbon.recording.trajectory import Trajectory

__all__ = ["RunSummary", "sharpness_name", "sparkline", "summarize"]

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
        """Time of the run's last change for its summary, in local time."""
        return datetime.fromtimestamp(self.when).strftime("%Y-%m-%d %H:%M")

    def matches(self, text: str, choice: str) -> bool:
        """Return whether the run matches a search and a filter."""
        words = (
            f"{self.label} {self.kind} {self.state} {self.text} {' '.join(self.metrics)}".lower()
        )
        found = all(word in words for word in text.lower().split())
        return found and choice in ("all", self.kind, self.state)


def summarize(entry: Entry) -> RunSummary:
    """Return the summary of a run; its files are read again only when they have changed."""
    changed, size = _files(entry.folder)
    state = read_status(entry.folder)["state"] if entry.kind == "trajectory" else "finished"
    return _summarize(entry.name, entry.kind, entry.folder, state, changed, size)


@lru_cache(maxsize=1000)
def _summarize(
    name: str, kind: str, folder: Path, state: str, changed: float, size: int
) -> RunSummary:
    entry = Entry(name, kind, folder)
    curves: dict[str, Series] = {}
    metrics: tuple[str, ...] = ()
    try:
        if entry.damage:
            text, state = f"Cannot be read: {entry.damage}", "damaged"
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
    shown_kind = "recording" if kind == "trajectory" else kind
    about = (shown_kind, state, changed, in_words(size), text[:300])
    return RunSummary(name, entry.label, *about, curves, metrics)


def sharpness_name(trajectory: Trajectory) -> str | None:
    """Return the name of the sharpness metric, or else of the leading eigenvalues."""
    names = trajectory.metric_names()
    if "sharpness" in names:
        return "sharpness"
    return next((name for name in names if name.endswith("eigenvalues")), None)


def _curves(trajectory: Trajectory) -> dict[str, Series]:
    names = {"loss": "loss", "sharpness": sharpness_name(trajectory)}
    found = {
        label: series(trajectory, name)
        for label, name in names.items()
        if name in trajectory.metric_names()
    }
    return {label: curve for label, curve in found.items() if len(curve[0])}


def _files(folder: Path) -> tuple[float, int]:
    """Return the modification time and size of a run's folder, for its summary."""
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


def sparkline(curve: Series, color: str) -> str:
    """Return the sparkline of a run's summary as a data URI."""
    x, y = (np.asarray(values, dtype=float) for values in curve)
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

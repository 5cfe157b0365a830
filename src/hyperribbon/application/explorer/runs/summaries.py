"""Run summaries with sparklines for the list, cached until the files change."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hyperribbon.application.explorer.runs.catalogue import UNREADABLE, Entry
from hyperribbon.application.explorer.runs.recording_figures import series
from hyperribbon.application.report.images import data_uri
from hyperribbon.recording.disk_space import in_words
from hyperribbon.recording.status import read_status
from hyperribbon.recording.trajectory import Trajectory

_MOST_FILES = 20_000
_WIDTH, _HEIGHT = 150, 34
_SETTINGS = ("optimizer", "batch_size", "lr", "weight_decay", "momentum", "commit", "parameters")
_NUMBERS = {
    "lr": "stability.own_rate",
    "loss": "model.loss",
    "accuracy": "model.accuracy",
    "sharpness": "hessian.largest",
}
_NUMBERS |= {"trace": "gauss_newton.trace", "noise_scale": "noise.scale"}

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
        values: Settings, and the last value of every number that was recorded or measured.
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
    values: dict[str, float | str] = field(default_factory=dict)

    @property
    def date(self) -> str:
        """Time of the last change, in local time, that a run's summary shows."""
        return datetime.fromtimestamp(self.when).strftime("%Y-%m-%d %H:%M")

    def matches(self, text: str, choice: str) -> bool:
        """Return whether the summarised run matches a search and a filter."""
        words = (
            f"{self.label} {self.kind} {self.state} {self.text} {' '.join(self.metrics)}".lower()
        )
        found = all(word in words for word in text.lower().split())
        return found and choice in ("all", self.kind, self.state)


def summarize(entry: Entry) -> RunSummary:
    """Return the summary of a run for the explorer; files are read again only after a change."""
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
    values: dict[str, float | str] = {}
    try:
        if entry.damage:
            text, state = f"Cannot be read: {entry.damage}", "damaged"
        elif (trajectory := entry.trajectory()) is not None:
            curves, metrics = _curves(trajectory), tuple(trajectory.metric_names())
            last = f", up to step {trajectory[-1].step:,}" if len(trajectory) else ""
            text = f"{len(trajectory):,} records{last}"
            values = _last_values(trajectory)
        elif entry.claims:
            text = f"{entry.info['title']}: {count_claims(entry.claims)}"
        else:
            text = (entry.reading or [entry.info["title"]])[0]
            values = _measured(entry)
    except UNREADABLE as error:
        text, state = f"Cannot be read: {str(error) or repr(error)}", "damaged"
    about = (entry.shown_kind, state, changed, in_words(size), text[:300])
    return RunSummary(name, entry.label, *about, curves, metrics, values)


def count_claims(claims: list[dict[str, Any]]) -> str:
    """Return for a run's summary how many claims hold, of those judged at this scale.

    >>> count_claims([{"verdict": "holds"}, {"verdict": "fails"}, {"verdict": "not comparable"}])
    '1 of 2 claims hold, 1 not comparable at this scale'
    >>> count_claims([{"verdict": "not comparable"}] * 2)
    '2 claims not comparable at this scale'
    """
    verdicts = [claim["verdict"] for claim in claims]
    judged, apart = len(verdicts), verdicts.count("not comparable")
    if apart == judged:
        return f"{apart} claims not comparable at this scale"
    beside = f", {apart} not comparable at this scale" if apart else ""
    return f"{verdicts.count('holds')} of {judged - apart} claims hold{beside}"


def _last_values(trajectory: Trajectory) -> dict[str, float | str]:
    """Return for a recording's summary its settings and each number's last finite value."""
    config = trajectory.about.get("config", trajectory.about.get("settings"))
    found: dict[str, float | str] = {
        str(name): value
        for name, value in (config if isinstance(config, dict) else {}).items()
        if isinstance(value, int | float | str)
    }
    for name in trajectory.metric_names():
        values = np.asarray(trajectory.metric(name), dtype=float)
        there = values[np.isfinite(values)] if values.ndim == 1 else values[:0, ...].ravel()
        if len(there) and not name.endswith((".error", ".residual", ".products", ".samples")):
            found[name] = float(there[-1])
    return found


def _measured(entry: Entry) -> dict[str, float | str]:
    """Return for a stored inspection's summary its settings and main numbers."""
    stored = entry._read("inspection.json", dict, {"parts": []})
    numbers = {
        str(quantity["key"]): quantity["value"]
        for part in stored["parts"]
        for quantity in part["quantities"]
    }
    config = {**entry.info.get("config", {})}
    config["commit"] = entry.info.get("environment", {}).get("commit", "")
    found = {name: config[name] for name in _SETTINGS if config.get(name) not in (None, "")}
    found |= {name: numbers[key] for name, key in _NUMBERS.items() if numbers.get(key) is not None}
    return {name: value for name, value in found.items() if isinstance(value, int | float | str)}


def sharpness_name(trajectory: Trajectory) -> str | None:
    """Return which metric a run's summary calls sharpness, or else the leading eigenvalues."""
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
    return data_uri("svg", picture.encode())

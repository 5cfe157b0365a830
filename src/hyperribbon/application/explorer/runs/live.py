"""Live page of a recording: loss, sharpness and stability limit, spectrum, trajectory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from hyperribbon.application.explorer.controls import read_query, write_query
from hyperribbon.application.explorer.figures import picture_block
from hyperribbon.application.explorer.runs.catalogue import UNREADABLE, Entry, find_entries
from hyperribbon.application.explorer.runs.recording_figures import (
    draw_embedding,
    draw_metric,
    draw_spectrum,
    has_path,
)
from hyperribbon.application.explorer.runs.summaries import sharpness_name
from hyperribbon.plots.style import COLORS
from hyperribbon.recording.status import read_status
from hyperribbon.recording.trajectory import Trajectory

_TICK_MS = 700
_MOST_ON_PATH = 150
_PICTURES = {
    "loss": ("Loss", "Mini-batch loss over training"),
    "sharpness": (
        "Sharpness and stability limit",
        "Largest Hessian eigenvalue over training with the stability limit",
    ),
    "spectrum": ("Spectrum", "Eigenvalues over training as a heat map"),
    "path": ("Path of the predictions (inPCA)", "Training trajectory in three dimensions"),
}
_STATES = {
    "running": "running",
    "finished": "finished",
    "stopped": "stopped: killed or failed; it can be resumed",
    "recorded": "recorded",
    "damaged": "damaged",
}


class LivePage:
    """The live page: a recording, redrawn whenever a record is added.

    Args:
        store: Folder of stored runs; it may be absent.
    """

    key = "live"
    title = "Live"

    def __init__(self, store: Path) -> None:
        self._store = store

    def layout(self, search: str | None) -> html.Div:
        """Return the live page of the run named in a link, or of the most recent one."""
        entries = self._recordings()
        name = read_query(search).get("run")
        if name not in entries:
            name = max(entries, key=lambda n: _last_change(entries[n]), default=None)
        if name is None:
            text = (
                f"There is no recording in {self._store} yet; the home page shows how to make one."
            )
            return html.Div([html.H1("Live"), html.P(text, className="lead")], className="page")
        entry = entries[name]
        pictures = [
            html.Div(
                picture_block(title, f"{describe} of {entry.label}", f"live-{key}"),
                id=f"live-{key}-place",
                hidden=True,
            )
            for key, (title, describe) in _PICTURES.items()
        ]
        return html.Div(
            [
                dcc.Store(id="live-name", data=name),
                dcc.Store(id="live-seen"),
                dcc.Interval(id="live-tick", interval=_TICK_MS),
                html.H1(entry.label),
                html.Div(id="live-state", role="status", className="live-state"),
                html.Div(pictures, className="pictures"),
                html.P(id="live-note", className="quiet-text"),
                html.P(
                    dcc.Link(
                        "All charts · compare with another run",
                        href=f"/runs{write_query({'run': name})}",
                    )
                ),
            ],
            className="page",
            id="page-live",
        )

    def _recordings(self) -> dict[str, Entry]:
        found = find_entries(self._store)
        return {name: entry for name, entry in found.items() if entry.kind == "trajectory"}

    def connect(self, app: Dash) -> None:
        """Register the callback of the live page."""

        @app.callback(
            Output("live-state", "children"),
            Output("live-note", "children"),
            Output("live-seen", "data"),
            [Output(f"live-{key}", "figure") for key in _PICTURES],
            [Output(f"live-{key}-place", "hidden") for key in _PICTURES],
            Input("live-tick", "n_intervals"),
            State("live-name", "data"),
            State("live-seen", "data"),
            # A request sent before the last response would make the browser drop that response.
            running=[(Output("live-tick", "disabled"), True, False)],
        )
        def _follow(_: int | None, name: str, seen: Any) -> Any:
            seen = seen if isinstance(seen, dict) else {}
            entry = self._recordings().get(str(name))
            if entry is None:
                return _answer("This run no longer exists.")
            try:
                status = read_status(entry.folder)
                files = [status["state"], _signature(entry)]
                if files == seen.get("files"):
                    return _answer(_facts(seen, status, _last_change(entry)))
                trajectory = Trajectory.open(entry.folder)
                now = _now(trajectory, files, seen)
                drawn = _draw(trajectory, now["path"] != seen.get("path"))
            except UNREADABLE as error:
                return _answer(f"This run cannot be read: {error}")
            facts = _facts(now, status, _last_change(entry))
            return _answer(facts, _note(status), now, drawn)


def _answer(
    facts: Any, note: Any = no_update, now: Any = no_update, drawn: dict[str, Any] | None = None
) -> tuple[Any, ...]:
    """Return the live page's callback outputs; omitted ones stay unchanged."""
    figures = [no_update if drawn is None else drawn.get(key, no_update) for key in _PICTURES]
    hidden = [no_update if drawn is None else key not in drawn for key in _PICTURES]
    return facts, note, now, *figures, *hidden


def _now(trajectory: Trajectory, files: list[Any], seen: dict[str, Any]) -> dict[str, Any]:
    """Return the live page's new state; the path is redrawn when it has grown by 3%."""
    number = len(trajectory)
    drawn = seen.get("path")
    is_due = not isinstance(drawn, int) or number < drawn or number > 1.03 * drawn
    last = trajectory[-1] if number else None
    return {
        "files": files,
        "records": number,
        "step": None if last is None else last.step,
        "epoch": None if last is None else last.epoch,
        "path": number if is_due or files[0] != "running" else drawn,
    }


def _signature(entry: Entry) -> str:
    """Return a value that changes with every record of a live run."""
    blocks = sorted(entry.folder.glob("records*/block-*.bin"))
    return "" if not blocks else f"{blocks[-1].name} {blocks[-1].stat().st_size}"


def _last_change(entry: Entry) -> float:
    """Return the time of a live run's last record."""
    blocks = [p.stat().st_mtime for p in entry.folder.glob("records*/block-*.bin")]
    return max(blocks, default=0.0)


def _facts(now: dict[str, Any], status: dict[str, Any], changed: float) -> list[Any]:
    state = str(status["state"])
    text = f"{now['records']:,} records"
    if now["step"] is not None:
        text += f", up to step {now['step']:,}"
        text += "" if now["epoch"] is None else f", epoch {now['epoch']:.4g}"
        if state == "running":
            text += f"; the last one {_ago(time.time() - changed)} ago"
    return [html.Span(_STATES[state], className=f"badge {state}"), html.Span(f" {text}")]


def _ago(seconds: float) -> str:
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def _note(status: dict[str, Any]) -> str:
    notes = status.get("notes", {})
    lines = [f"{name}: {text}." for name, text in notes.items()] if isinstance(notes, dict) else []
    lines += [f"Recording: {status['overhead']}."] if "overhead" in status else []
    return " ".join(lines)


def _draw(trajectory: Trajectory, with_path: bool) -> dict[str, Any]:
    """Return the live page's figures that the records have data for."""
    names, drawn, shown = trajectory.metric_names(), {}, {"": trajectory}
    if "loss" in names:
        drawn["loss"] = draw_metric(shown, "loss", "loss")
    sharpness = sharpness_name(trajectory)
    if sharpness is not None:
        drawn["sharpness"] = draw_metric(shown, sharpness, "sharpness", COLORS[1:])
    rows = next((name for name in names if name.endswith("eigenvalues")), None)
    if rows is not None:
        drawn["spectrum"] = draw_spectrum(trajectory, rows)
    if has_path(trajectory):
        drawn["path"] = (
            draw_embedding(trajectory, "step", _MOST_ON_PATH) if with_path else no_update
        )
    return drawn

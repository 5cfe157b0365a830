"""Recordings overlaid: one chart per metric, one colour per run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import html

from hyperribbon.application.explorer.figures import picture_block
from hyperribbon.application.explorer.runs.catalogue import UNREADABLE, Entry
from hyperribbon.application.explorer.runs.recording_figures import draw_metrics
from hyperribbon.recording.trajectory import Trajectory


def overlay_blocks(entries: Sequence[Entry], kind: str, **options: Any) -> list[Any]:
    """Return the charts of overlaid recordings, and the runs that have none.

    Args:
        entries: The runs that were chosen.
        kind: Type of the charts' ids.
        **options: As in `draw_metrics`.
    """
    runs: dict[str, Trajectory] = {}
    for entry in entries:
        try:
            trajectory = entry.trajectory()
        except UNREADABLE:
            continue
        if trajectory is not None and len(trajectory):
            runs[entry.label] = trajectory
    left_out = [entry.label for entry in entries if entry.label not in runs]
    note = f"Without metrics to overlay: {', '.join(left_out)}." if left_out else ""
    blocks = [
        picture_block(name, f"{name} of {', '.join(runs)}", {"type": kind, "of": name}, figure)
        for name, figure in draw_metrics(runs, **options).items()
    ]
    text = f"One chart per metric, one colour per run. {note}"
    shown = [html.P(text, className="quiet-text"), html.Div(blocks, className="pictures")]
    return [html.H2("Overlay"), *shown] if entries else []

"""Recorded trainings as a tab: every metric over time, all runs in one chart."""

from __future__ import annotations

from collections.abc import Container
from io import BytesIO
from pathlib import Path as FolderPath

import matplotlib as mpl
import numpy as np
import pandas as pd

from hyperribbon.application.inspection.joint_embedding import JointEmbedding, embed_runs
from hyperribbon.application.report.images import data_uri
from hyperribbon.application.report.page import (
    DAMAGE,
    Picture,
    Section,
    Tab,
    Table,
    describe_damage,
    distinct_labels,
    format_number,
    regular,
)
from hyperribbon.plots import STYLE, Chart, Curve, Path, draw, draw_interactive
from hyperribbon.recording.trajectory import AUXILIARY, Trajectory

_FEW = 3
"""Runs above which only the first chart names them."""
_MANY = 8
"""Runs above which a legend would hide the chart."""
_LIMIT = (
    "Dashed: the largest curvature at which the optimiser's step is stable on a quadratic, 2/η for "
    "plain SGD and 2(1+β)/η with momentum β."
)


def trajectory_tabs(folders: list[FolderPath]) -> list[Tab]:
    """Return the report's tab of recorded trajectories side by side."""
    trajectories, damaged = [], []
    for folder in folders:
        try:
            for file in folder.rglob("*"):
                if not file.is_dir():
                    regular(file)
            trajectory = Trajectory.open(folder)
            trajectory.metrics()
            trajectories.append(trajectory)
        except DAMAGE as error:
            damaged.append(Section(folder.name, warning=describe_damage("the recording", error)))
    if not trajectories:
        return [Tab("Training", damaged)] if damaged else []
    names = [trajectory.folder.name for trajectory in trajectories]
    labels = distinct_labels(names, [str(trajectory.folder) for trajectory in trajectories])
    tables = {
        label: trajectory.metrics() for label, trajectory in zip(labels, trajectories, strict=True)
    }
    metrics = dict.fromkeys(
        column for table in tables.values() for column in table if column not in ("step", "epoch")
    )
    shown = [metric for metric in metrics if _is_drawn(metric, metrics)]
    charts = [_chart(metric, tables) for metric in shown]
    curves = [mark for chart in charts for mark in chart.marks if isinstance(mark, Curve)]
    places = [float(x) for curve in curves for x in curve.x]
    ends = (min(places), max(places)) if places else None  # of all: charts are read side by side
    joint = embed_runs(trajectories)
    if joint is not None:
        charts.insert(0, _embedding_chart(joint, labels))
    named = charts if len(tables) <= _FEW else charts[:1]
    pictures = [_render(chart, ends, is_named=any(chart is c for c in named)) for chart in charts]
    note = "" if len(tables) <= _FEW else "Colours are those of the first chart; dashed: limits."
    rows = [_row(label, table, list(metrics)) for label, table in tables.items()]
    heads = ("run", "records", "last step", *metrics)
    caption = "Values at the last record that has them."
    summary = Table("runs", "Runs", heads, rows, caption=caption)
    section = Section("Training", note=note, pictures=pictures, tables=[summary])
    return [Tab("Training", [section, *damaged])]


def _embedding_chart(joint: JointEmbedding, labels: list[str]) -> Chart:
    paths = tuple(
        Path(points, label, notes=tuple(f"{label}, step {step}" for step in steps))
        for points, label, steps in zip(joint.paths, labels, joint.steps, strict=True)
    )
    x, y, z = (f"component {number}" for number in (1, 2, 3))
    caption = (
        f"All runs in one space; its three dimensions hold {joint.explained:.1%} of the distances "
        f"between {joint.landmarks} records on {joint.samples} probe samples. Drag to rotate."
    )
    title = "Paths of the predictions (InPCA)"
    return Chart("inpca", title, x, y, paths, z_label=z, caption=caption)


def _is_drawn(metric: str, metrics: Container[str]) -> bool:
    """Return whether a trajectory's metric has a chart: of vectors, the first entry alone."""
    base, _, number = metric.rpartition(".")
    if number.isdigit() and f"{base}.1" in metrics:
        return number == "1" and base.removesuffix(".eigenvalues") not in metrics
    return not metric.endswith(AUXILIARY)


def _chart(metric: str, tables: dict[str, pd.DataFrame]) -> Chart:
    use_epoch = not any(np.isnan(table["epoch"].to_numpy()).any() for table in tables.values())
    axis = "epoch" if use_epoch else "step"
    curves: list[Curve] = []
    caption, positive = "", True
    for color, (label, table) in enumerate(tables.items()):
        for name in (metric, f"{metric}.limit"):
            if name not in table:
                continue
            there = ~np.isnan(table[name].to_numpy())
            x, y = table[axis].to_numpy()[there], table[name].to_numpy()[there]
            positive = positive and bool((y > 0).all())
            if name == metric:
                style = "both" if len(tables) <= _MANY and len(y) <= 200 else "line"
                curves.append(Curve(x, y, label, style, color=color))
            else:
                limit = "stability limit" if len(tables) == 1 else ""
                curves.append(Curve(x, y, limit, dashed=True, color=color))
                caption = _LIMIT
    sizes = f"{metric}.samples"
    samples = [np.nanmax(table[sizes].to_numpy()) for table in tables.values() if sizes in table]
    if samples:
        fewest, most = int(min(samples)), int(max(samples))
        some = f"{most}" if fewest == most else f"{fewest} to {most}"
        caption = f"Of the loss on a fixed sample of {some}. {caption}".strip()
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in metric)
    title = metric if _LIMIT not in caption else f"{metric} and stability limit"
    toggles = ("x", "y") if positive else ()
    marks = tuple(curves)
    return Chart(f"metric-{name}", title, axis, metric, marks, caption=caption, toggles=toggles)


def _row(label: str, table: pd.DataFrame, metrics: list[str]) -> list[str]:
    last = []
    for metric in metrics:
        values = table[metric].dropna().to_numpy() if metric in table else np.array([])
        last.append(format_number(float(values[-1])) if len(values) else "–")
    step = str(int(table["step"].iloc[-1])) if len(table) else "–"
    return [label, str(len(table)), step, *last]


def _render(chart: Chart, ends: tuple[float, float] | None, *, is_named: bool) -> Picture:
    """Return a trajectory's chart in the report as a picture, static and interactive."""
    figure = draw_interactive(chart)
    if not is_named:
        figure.update_layout(showlegend=False)
    if ends is not None and not chart.is_spatial:
        margin = 0.03 * (ends[1] - ends[0])
        figure.update_xaxes(range=[ends[0] - margin, ends[1] + margin])
    buffer = BytesIO()
    with mpl.rc_context(STYLE):
        draw(chart).savefig(buffer, format="svg", metadata={"Date": None})
    interactive = str(figure.to_json())
    image = data_uri("svg", buffer.getvalue())
    return Picture(chart.name, chart.title, image, interactive, chart.caption, chart.toggles)

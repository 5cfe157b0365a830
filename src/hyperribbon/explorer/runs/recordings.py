"""A recorded training run as figures: spectra over time, metrics, the path of its predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hyperribbon.explorer.pages import axes_layout
from hyperribbon.manifold import InPCA
from hyperribbon.manifold.predictions import as_probabilities
from hyperribbon.plots.style import COLORS
from hyperribbon.recording.trajectory import Trajectory

__all__ = [
    "draw_embedding",
    "draw_metrics",
    "draw_spectra",
    "has_path",
    "measured",
    "point_colors",
]

_MOST_RECORDS = 400
_MOST_MARKERS = 200
_LIMIT = "largest stable curvature (2/η; with momentum 2(1+β)/η)"


def draw_spectra(trajectory: Trajectory) -> dict[str, go.Figure]:
    """Return a heat map over training for every vector-valued metric."""
    figures = {}
    for name in trajectory.metric_names():
        values = trajectory.metric(name)
        if values.ndim != 2 or values.shape[1] < 2:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            heights = np.log10(np.where(values > 0, values, np.nan))
        figure = go.Figure(
            go.Heatmap(
                x=trajectory.steps,
                y=np.arange(1, values.shape[1] + 1),
                z=heights.T,
                colorscale="Viridis",
                colorbar={"title": {"text": "log₁₀"}, "thickness": 12},
                hovertemplate="step %{x}<br>index %{y}<br>10^%{z:.2f}<extra></extra>",
            )
        )
        figures[f"{name} over training"] = figure.update_layout(axes_layout("step", "index"))
    return figures


def draw_metrics(trajectories: Mapping[str, Trajectory]) -> dict[str, go.Figure]:
    """Return one figure per metric with every run that has it.

    For vector-valued metrics, the first entry is drawn. A limit is drawn with the metric that it
    bounds; solver errors appear only in the table.

    Args:
        trajectories: Runs by the name in the legend.
    """
    columns = {label: _columns(trajectory) for label, trajectory in trajectories.items()}
    names = dict.fromkeys(name for found in columns.values() for name in found)
    figures = {}
    for name in names:
        if name.endswith((".limit", ".error", ".residual", ".products")):
            continue
        figure = go.Figure()
        for position, (label, found) in enumerate(columns.items()):
            if name in found:
                color = COLORS[position % len(COLORS)]
                legend = name if len(columns) == 1 else label
                x, y = found[name]
                marks = {"size": 4 if len(x) < _MOST_MARKERS else 1}
                look = {"mode": "lines+markers", "line": {"color": color}, "marker": marks}
                figure.add_scatter(x=x, y=y, name=legend, **look)
                if f"{name}.limit" in found:
                    x, y = found[f"{name}.limit"]
                    line = {"color": color, "dash": "dash", "width": 1.5, "shape": "hv"}
                    look = {"mode": "lines", "line": line, "hovertext": _LIMIT}
                    figure.add_scatter(x=x, y=y, name=f"limit of {legend}", **look)
        traces: Any = figure.data
        heights = np.concatenate([np.asarray(trace.y, dtype=float) for trace in traces])
        wide = bool(heights.min() > 0 and heights.max() > 30 * heights.min())
        look = axes_layout("step", name, log="y" if wide else "", showlegend=len(traces) > 1)
        figures[name] = figure.update_layout(look)
    return figures


def _columns(trajectory: Trajectory) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the measured steps and values of every metric."""
    found = {}
    for name in trajectory.metric_names():
        values = trajectory.metric(name)
        steps, first = measured(trajectory, values)
        is_row = values.ndim > 1
        if len(steps) and not (is_row and name.removesuffix(".eigenvalues") in found):
            found[f"{name}, first" if is_row else name] = (steps, first)
    return found


def measured(trajectory: Trajectory, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the measured steps and values of a metric (first entry of a vector)."""
    first = values.reshape(len(values), -1)[:, 0] if values.size else np.full(len(values), np.nan)
    there = np.isfinite(first)
    return trajectory.steps[there], first[there]


def has_path(trajectory: Trajectory) -> bool:
    """Return whether there are enough predictions to draw the trajectory."""
    recorded = all(record.has_predictions for record in trajectory)
    return len(trajectory) >= 4 and recorded and trajectory.has_probabilities


def point_colors(trajectory: Trajectory) -> dict[str, np.ndarray]:
    """Return the quantities that can colour embedding points: time and every metric.

    For a vector-valued metric, such as a spectrum, the first entry is used.
    """
    colors = {"step": trajectory.steps.astype(float)}
    if not np.isnan(trajectory.epochs).any():
        colors["epoch"] = trajectory.epochs
    for name in trajectory.metric_names():
        values = np.asarray(trajectory.metric(name), dtype=float)
        first = values.reshape(len(values), -1)[:, 0]
        colors[name if values.ndim == 1 else f"{name}, first"] = first
    return colors


def draw_embedding(trajectory: Trajectory, color: str, most: int = _MOST_RECORDS) -> go.Figure:
    """Return the inPCA embedding of the recorded predictions in three dimensions.

    Args:
        trajectory: A recorded run with predictions.
        color: Quantity that colours the points, one of `point_colors`.
        most: Maximum number of records shown, evenly spaced.
    """
    rows = np.unique(np.linspace(0, len(trajectory) - 1, most).astype(int))
    chosen = np.stack([trajectory.predictions(int(row)) for row in rows])
    points = InPCA(n_components=3).fit_transform(as_probabilities(chosen))
    colors = point_colors(trajectory)
    color = color if color in colors else "step"
    shade = colors[color][rows]
    figure = go.Figure(
        go.Scatter3d(
            x=points[:, 0],
            y=points[:, 1],
            z=points[:, 2],
            name=color,
            mode="lines+markers",
            line={"color": "#9ca3af", "width": 2},
            marker={
                "size": 4,
                "color": shade,
                "colorscale": "Viridis",
                "colorbar": {"title": {"text": color}, "thickness": 12},
            },
            text=[
                f"step {step}<br>{color} {value:.4g}"
                for step, value in zip(trajectory.steps[rows], shade, strict=True)
            ],
            hoverinfo="text",
        )
    )
    axis = {"gridcolor": "rgba(128,128,128,.3)", "backgroundcolor": "rgba(0,0,0,0)"}
    figure.update_layout(
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
        paper_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#6b7280"},
        scene={
            **{
                name: {"title": {"text": f"inPCA {i}"}, "nticks": 4, "zeroline": False, **axis}
                for i, name in enumerate(("xaxis", "yaxis", "zaxis"), 1)
            },
            "camera": {"eye": {"x": 1.5, "y": 1.5, "z": 1.0}},
        },
        uirevision="keep",
    )
    return figure

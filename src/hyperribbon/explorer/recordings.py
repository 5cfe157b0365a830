"""A recorded training run as figures: spectra over time, metrics, the path of its predictions."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from hyperribbon.core.trajectory import Trajectory
from hyperribbon.explorer.pages import axes_layout
from hyperribbon.manifold import InPCA
from hyperribbon.manifold.predictions import as_probabilities
from hyperribbon.plots.style import COLORS

__all__ = ["draw_embedding", "draw_metrics", "draw_spectra", "point_colors"]

_MOST_RECORDS = 400


def draw_spectra(trajectory: Trajectory) -> dict[str, go.Figure]:
    """Return a heat map over training of every metric that is a row of numbers."""
    figures = {}
    for name in _metric_names(trajectory):
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


def draw_metrics(trajectory: Trajectory) -> dict[str, go.Figure]:
    """Return every scalar metric against the step, in one figure."""
    figure = go.Figure()
    table = trajectory.metrics()
    for position, name in enumerate(column for column in table if column not in ("step", "epoch")):
        figure.add_scatter(
            x=table["step"],
            y=table[name],
            name=str(name),
            mode="lines+markers",
            connectgaps=True,
            line={"color": COLORS[position % len(COLORS)]},
            marker={"size": 4},
        )
    if not figure.data:
        return {}
    return {"Metrics": figure.update_layout(axes_layout("step", "value"))}


def point_colors(trajectory: Trajectory) -> dict[str, np.ndarray]:
    """Return what points of the embedding may be coloured by: time, and every metric.

    Of a metric that is a row of numbers, such as a spectrum, the first one counts.
    """
    colors = {"step": trajectory.steps.astype(float)}
    if not np.isnan(trajectory.epochs).any():
        colors["epoch"] = trajectory.epochs
    for name in _metric_names(trajectory):
        values = np.asarray(trajectory.metric(name), dtype=float)
        first = values.reshape(len(values), -1)[:, 0]
        colors[name if values.ndim == 1 else f"{name}, first"] = first
    return colors


def draw_embedding(trajectory: Trajectory, color: str) -> go.Figure:
    """Return the inPCA embedding of the recorded predictions in three dimensions."""
    rows = np.unique(np.linspace(0, len(trajectory) - 1, _MOST_RECORDS).astype(int))
    points = InPCA(n_components=3).fit_transform(as_probabilities(trajectory.predictions()[rows]))
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
            name: {"title": {"text": f"inPCA {i}"}, **axis}
            for i, name in enumerate(("xaxis", "yaxis", "zaxis"), 1)
        },
        uirevision="keep",
    )
    return figure


def _metric_names(trajectory: Trajectory) -> list[str]:
    return list(dict.fromkeys(name for record in trajectory for name in record.metrics))

"""A recorded training run as figures: spectra over time, metrics, the path of its predictions."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from hyperribbon.core.trajectory import Trajectory
from hyperribbon.explorer.pages import style_figure
from hyperribbon.manifold import InPCA
from hyperribbon.plots.style import COLORS

__all__ = ["color_choices", "draw_embedding", "draw_metrics", "draw_spectra"]

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
        figures[f"{name} over training"] = style_figure(figure, x="step", y="index")
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
    return {"Metrics": style_figure(figure, x="step", y="value")}


def color_choices(trajectory: Trajectory) -> list[str]:
    """Return what points of the embedding may be coloured by."""
    table = trajectory.metrics()
    return ["step", *(str(column) for column in table if column not in ("step", "epoch"))]


def draw_embedding(trajectory: Trajectory, color: str) -> go.Figure:
    """Return the inPCA embedding of the recorded predictions in three dimensions."""
    rows = np.unique(np.linspace(0, len(trajectory) - 1, _MOST_RECORDS).astype(int))
    log_probabilities = np.stack([trajectory.predictions(int(row)) for row in rows])
    probabilities = _as_probabilities(log_probabilities)
    points = InPCA(n_components=3).fit_transform(probabilities)
    table = trajectory.metrics()
    shade = table["step" if color not in table else color].to_numpy()[rows]
    figure = go.Figure(
        go.Scatter3d(
            x=points[:, 0],
            y=points[:, 1],
            z=points[:, 2],
            mode="lines+markers",
            line={"color": "#9ca3af", "width": 2},
            marker={
                "size": 4,
                "color": shade,
                "colorscale": "Viridis",
                "colorbar": {"title": {"text": color}, "thickness": 12},
            },
            text=[f"step {step}" for step in trajectory.steps[rows]],
        )
    )
    figure.update_layout(
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
        paper_bgcolor="rgba(0,0,0,0)",
        scene={
            axis: {"title": {"text": f"inPCA {i}"}}
            for i, axis in enumerate(("xaxis", "yaxis", "zaxis"), 1)
        },
        uirevision="keep",
    )
    return figure


def _metric_names(trajectory: Trajectory) -> list[str]:
    return list(dict.fromkeys(name for record in trajectory for name in record.metrics))


def _as_probabilities(predictions: np.ndarray) -> np.ndarray:
    """Return probabilities of recorded log-probabilities, logits or probabilities."""
    predictions = predictions.astype(np.float64)
    sums = predictions.sum(axis=-1)
    if predictions.min() >= 0 and np.allclose(sums, 1, atol=1e-3):
        return predictions / sums[..., None]
    shifted = np.exp(predictions - predictions.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)

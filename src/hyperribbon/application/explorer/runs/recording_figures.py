"""A recorded training run as figures: metrics, spectra over time, the path of its predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hyperribbon.application.explorer.figures import Drawing, curve, drawing, plain
from hyperribbon.manifold import InPCA
from hyperribbon.manifold.predictions import as_probabilities
from hyperribbon.plots.interactive import BELOW, CAMERA
from hyperribbon.plots.style import COLORS
from hyperribbon.recording.trajectory import AUXILIARY, Trajectory

_MOST_RECORDS = 400
_MOST_MARKERS = 200
_MOST_POINTS = 1500
AXES = {"step": "steps", "epoch": "epochs", "training time, s": "seconds"}
"""Horizontal axes of a recording's figures, and the attribute of the trajectory."""
_LIMIT = "largest stable curvature (2/η; with momentum 2(1+β)/η)"


def series(
    trajectory: Trajectory, name: str, x: str = "steps", smoothing: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return a metric over time for a recording's figure; a vector's first entry.

    Very long series are subsampled.

    Args:
        trajectory: A recorded run.
        name: A metric of it.
        x: What it is drawn over: "steps", "epochs" or "seconds".
        smoothing: Weight w of `smooth`.
    """
    values, places = _first(trajectory.metric(name)), getattr(trajectory, x)
    rows = np.flatnonzero(np.isfinite(values) & np.isfinite(places))
    values = smooth(values[rows], smoothing)
    chosen = np.arange(len(rows))
    if len(rows) > _MOST_POINTS:
        chosen = np.unique(np.linspace(0, len(rows) - 1, _MOST_POINTS).astype(int))
    return places[rows[chosen]], values[chosen]


def smooth(values: np.ndarray, weight: float) -> np.ndarray:
    """Return a recording's curve smoothed by s ← w·s + (1 − w)·v, unbiased at the start.

    >>> smooth(np.array([1.0, 1.0, 4.0]), 0.5).round(3).tolist()
    [1.0, 1.0, 2.714]
    """
    if weight <= 0:
        return values
    total, norm, found = 0.0, 0.0, []
    for value in values.tolist():
        total, norm = weight * total + (1 - weight) * value, weight * norm + (1 - weight)
        found.append(total / norm)
    return np.array(found)


def _first(values: np.ndarray) -> np.ndarray:
    """Return the first entry of a metric for a recording's figure, record by record."""
    return values.reshape(len(values), -1)[:, 0] if values.size else np.full(len(values), np.nan)


def draw_spectra(trajectory: Trajectory) -> dict[str, Drawing]:
    """Draw the heat maps of a recording, one per vector-valued metric."""
    found = {name: trajectory.metric(name) for name in trajectory.metric_names()}
    return {
        f"{name} over training": draw_spectrum(trajectory, name)
        for name, values in found.items()
        if values.ndim == 2 and values.shape[1] > 1
    }


def draw_spectrum(trajectory: Trajectory, name: str) -> Drawing:
    """Draw a heat map of a recording's vector-valued metric."""
    values = trajectory.metric(name)
    rows = np.flatnonzero(np.isfinite(values).any(axis=1))[-_MOST_POINTS:]
    with np.errstate(divide="ignore", invalid="ignore"):
        heights = np.log10(values[rows].T)
    trace = {
        "type": "heatmap",
        "name": name,
        "x": plain(trajectory.steps[rows]),
        "y": list(range(1, values.shape[1] + 1)),
        "z": plain(heights),
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": "log₁₀"}, "thickness": 12},
        "hovertemplate": "step %{x}<br>index %{y}<br>10^%{z:.2f}<extra></extra>",
    }
    return drawing([trace], "step", "index")


def draw_metrics(
    trajectories: Mapping[str, Trajectory], axis: str = "step", smoothing: float = 0.0
) -> dict[str, Drawing]:
    """Return the figures of recordings: one per metric, with every run that has it.

    For vector-valued metrics, the first entry is drawn. A limit is drawn with the metric that it
    bounds; solver errors appear only in the table.

    Args:
        trajectories: Runs by the name in the legend.
        axis: The horizontal axis, one of `AXES`.
        smoothing: Weight w of `smooth`.
    """
    figures = {}
    for name in dict.fromkeys(n for t in trajectories.values() for n in t.metric_names()):
        holders = [t for t in trajectories.values() if name in t.metric_names()]
        is_row = holders[0].metric(name).ndim > 1
        if name.endswith(AUXILIARY) or (is_row and name.removesuffix(".eigenvalues") in figures):
            continue
        title = f"{name}, first" if is_row else name
        figure = draw_metric(trajectories, name, title, axis=axis, smoothing=smoothing)
        if figure["data"]:
            figures[title] = figure
    places = [x for figure in figures.values() for trace in figure["data"] for x in trace["x"]]
    for figure in figures.values():  # one range for all: charts are read below each other
        figure["layout"]["xaxis"]["range"] = [min(places), max(places)]
        values = {y for trace in figure["data"] for y in trace["y"] if y is not None}
        if len(values) == 1:  # plotly would show a constant c from c - 1 to c + 1
            figure["layout"]["yaxis"]["range"] = sorted((0.0, 2 * values.pop()))
    return figures


def draw_metric(
    trajectories: Mapping[str, Trajectory],
    name: str,
    title: str,
    colors: Sequence[str] = COLORS,
    axis: str = "step",
    smoothing: float = 0.0,
) -> Drawing:
    """Return the figure of a recorded metric, dashed the stability limit where there is one.

    Args:
        trajectories: Runs by the name in the legend.
        name: A metric.
        title: Its name on the axis.
        colors: Colours of the runs.
        axis: The horizontal axis, one of `AXES`.
        smoothing: Weight w of `smooth`.
    """
    limit = f"{name.removesuffix('.eigenvalues')}.limit"
    traces = []
    for position, (label, trajectory) in enumerate(trajectories.items()):
        if name not in trajectory.metric_names():
            continue
        places, values = series(trajectory, name, AXES[axis], smoothing)
        if not len(places):
            continue
        color = colors[position % len(colors)]
        marks = {"size": 4 if len(places) < _MOST_MARKERS else 1}
        look = {"mode": "lines+markers", "line": {"color": color}, "marker": marks}
        alone = len(trajectories) == 1
        traces.append(curve(title if alone else label, places, values, **look))
        if limit in trajectory.metric_names():
            line = {"color": color, "dash": "dash", "width": 1.5, "shape": "hv"}
            legend = "stability limit" if alone else f"limit of {label}"
            limits = series(trajectory, limit, AXES[axis])
            traces.append(curve(legend, *limits, line=line, hovertext=_LIMIT))
    heights = [value for trace in traces for value in trace["y"]]
    wide = min(heights, default=0) > 0 and max(heights) > 30 * min(heights)
    return drawing(traces, axis, title, log="y" if wide else "", showlegend=len(traces) > 1)


def has_path(trajectory: Trajectory) -> bool:
    """Return whether a recording has enough predictions for a figure of the trajectory."""
    recorded = all(record.has_predictions for record in trajectory)
    return len(trajectory) >= 4 and recorded and trajectory.has_probabilities


def point_colors(trajectory: Trajectory) -> dict[str, np.ndarray]:
    """Return what can colour the points of a recording's figure: time and every metric.

    For a vector-valued metric, such as a spectrum, the first entry is used.
    """
    colors = {"step": trajectory.steps.astype(float)}
    if not np.isnan(trajectory.epochs).any():
        colors["epoch"] = trajectory.epochs
    for name in (name for name in trajectory.metric_names() if not name.endswith(AUXILIARY)):
        values = np.asarray(trajectory.metric(name), dtype=float)
        colors[name if values.ndim == 1 else f"{name}, first"] = _first(values)
    return colors


def draw_embedding(trajectory: Trajectory, color: str, most: int = _MOST_RECORDS) -> Drawing:
    """Return the figure of a recording's predictions: their inPCA embedding in 3D.

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
    texts = [
        f"step {n}<br>{color} {v:.4g}" for n, v in zip(trajectory.steps[rows], shade, strict=True)
    ]
    bar = {"title": {"text": color, "side": "top"}, **BELOW}
    trace = {
        "type": "scatter3d",
        "name": color,
        **{axis: plain(column) for axis, column in zip("xyz", points.T, strict=True)},
        "mode": "lines+markers",
        "line": {"color": "#9ca3af", "width": 2},
        "marker": {"size": 4, "color": plain(shade), "colorscale": "Viridis", "colorbar": bar},
        "text": texts,
        "hoverinfo": "text",
    }
    look = {"gridcolor": "#9aa0a6", "backgroundcolor": "rgba(0,0,0,0)", "tickfont": {"size": 10}}
    look |= {"nticks": 4, "zeroline": False, "color": "#7d8590"}  # read on light and dark alike
    titles = {n: {"text": f"inPCA {i}", "font": {"size": 11}} for i, n in enumerate("xyz", 1)}
    scene = {f"{name}axis": {**look, "title": title} for name, title in titles.items()}
    scene |= {"camera": CAMERA, "aspectmode": "cube"}
    return drawing([trace], "", "", margin={"l": 0, "r": 0, "t": 0, "b": 48}, scene=scene)

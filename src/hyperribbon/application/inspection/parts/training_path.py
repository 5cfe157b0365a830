"""The path of the training: how many dimensions the predictions and the weights moved in."""

from __future__ import annotations

import numpy as np
import torch

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.core.checks import ArgumentError
from hyperribbon.manifold import PCA, InPCA
from hyperribbon.manifold.predictions import as_probabilities
from hyperribbon.plots import Chart, Curve, Path
from hyperribbon.recording.trajectory import Trajectory

_FEWEST = 4
_PART = 32
"""Part of the memory that rows of weights or predictions take; more are thinned evenly."""


def path_part(level: Level, notebook: Notebook) -> Part:
    """Embed the training path: recorded predictions by InPCA, recorded weights by PCA."""
    trajectory = notebook.trajectory
    assert trajectory is not None
    part = Part("path", "Path of the training", "Trajectory", is_of_samples=False)
    times, label = _times(trajectory)
    still = _predictions(part, trajectory, notebook.memory, times, label)
    weights, kept = _weights(trajectory, level.subject, notebook.memory)
    if weights is not None:
        components = PCA(n_components=3).fit(weights)
        ratio = float(np.sum(components.explained_variance_ratio_))
    if weights is not None and not np.isnan(ratio):
        name = "Variance of the weights' path in 3 dimensions"
        part.exact("manifold.weights", name, ratio, f"PCA of {len(kept)} records")
        told = f"Three dimensions hold {ratio:.1%} of the variance of the weights' path."
        part.readings.append(told)
        points, own = components.embedding_, times[kept]
        title = "Path of the weights (PCA)"
        part.charts.append(_path_chart("weights-pca", title, points, own, label))
        part.charts.append(_distance_chart(weights, own, label))
        part.arrays["weights_pca"] = points
    if not part.quantities:
        reason = f"it has fewer than {_FEWEST} different records with predictions or weights{still}"
        remedy = "Record with a probe, more often."
        raise ArgumentError("trajectory", str(trajectory.folder), reason, remedy)
    return part


def _predictions(
    part: Part, trajectory: Trajectory, memory: float, times: np.ndarray, label: str
) -> str:
    """Add the training path of the predictions; say if they never changed."""
    rows = [record.index for record in trajectory if record.has_predictions]
    if len(rows) < _FEWEST:
        return ""
    if not trajectory.has_probabilities:
        return "; the predictions are outputs of a regression, not probabilities"
    size = int(np.prod(trajectory.predictions(rows[0]).shape)) * 8
    rows = _thin(rows, memory / _PART / size)
    rows = _thin(rows, (memory / _PART / 8) ** 0.5)
    probabilities = np.stack([as_probabilities(trajectory.predictions(row)) for row in rows])
    space = InPCA(n_components=3).fit(probabilities)
    if np.isnan(space.explained_stress_).any():
        return "; the predictions never changed"
    share = 1 - float(np.asarray(space.explained_stress_).reshape(-1)[-1])
    negative = int((np.asarray(space.eigenvalues_) < 0).sum())
    name = "Share of the predictions' path left out by 3 dimensions"
    how = f"InPCA of {len(rows)} records, Bhattacharyya distances"
    part.exact("manifold.stress", name, share, how)
    told = f"Three dimensions hold {1 - share:.1%} of the path of the predictions"
    part.readings.append(told + (f", {negative} of them time-like." if negative else "."))
    points, title = space.embedding_, "Path of the predictions (InPCA)"
    part.charts.append(_path_chart("inpca", title, points, times[rows], label))
    part.arrays["inpca"] = points
    return ""


def _times(trajectory: Trajectory) -> tuple[np.ndarray, str]:
    epochs = trajectory.epochs
    if np.isnan(epochs).any():
        return trajectory.steps.astype(float), "step"
    return epochs, "epoch"


def _thin(rows: list[int], most: float) -> list[int]:
    """Return some records of a training path, evenly chosen, where not all fit."""
    count = max(_FEWEST, int(most))
    if len(rows) <= count:
        return rows
    return [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, count).astype(int))]


def _weights(
    trajectory: Trajectory, subject: Subject, memory: float
) -> tuple[np.ndarray | None, list[int]]:
    """Return the training path's weights as rows (records, P), thinned to what fits in memory."""
    space = subject.hessian.space
    rows = [record.index for record in trajectory if record.weights is not None]
    rows = _thin(rows, memory / _PART / (4 * space.dimension))
    if len(rows) < _FEWEST:
        return None, []
    states = []
    for row in rows:
        state = trajectory.weights(row)
        if any(name not in state for name in space.names):
            return None, []
        states.append(space.flatten(state).to(torch.float32).numpy())
    return np.stack(states), rows


def _path_chart(name: str, title: str, points: np.ndarray, times: np.ndarray, label: str) -> Chart:
    path = Path(points, "", times, label, tuple(f"{label} {time:.4g}" for time in times))
    x, y, z = (f"component {i}" for i in (1, 2, 3))
    caption = "Drag to rotate; colour is time."
    return Chart(name, title, x, y, (path,), z_label=z, caption=caption)


def _distance_chart(weights: np.ndarray, times: np.ndarray, label: str) -> Chart:
    line = Curve(times, np.linalg.norm(weights - weights[0], axis=1), style="both")
    texts = "Distance from the first record", label, "‖θ(t) − θ(0)‖"
    return Chart("distance", *texts, (line,), toggles=("x", "y"))


def _no_trajectory(level: Level, notebook: Notebook) -> str:
    return "" if notebook.trajectory is not None else "pass trajectory= (a Recorder's folder)"


MEASUREMENTS = (
    Measurement(
        "path",
        "Path of the training",
        order=80,
        run=path_part,
        products=lambda level, n: len(n.trajectory or ()),
        size=512,
        obstacle=_no_trajectory,
    ),
)

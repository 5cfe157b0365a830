"""The path of the training: how many dimensions the predictions and the weights moved in."""

from __future__ import annotations

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.trajectory import Trajectory
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity, exact
from hyperribbon.inspection.subject import Subject
from hyperribbon.manifold import PCA, InPCA
from hyperribbon.manifold.predictions import as_probabilities
from hyperribbon.plots import Chart, Curve, Path

__all__ = ["path_part"]

_FEWEST = 4
_PART = 32
"""Part of the memory that rows of weights or predictions take; more are thinned evenly."""


def path_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Embed the recorded predictions by InPCA and the recorded weights by PCA."""
    trajectory = notebook.trajectory
    assert trajectory is not None
    quantities: list[Quantity] = []
    readings: list[str] = []
    charts: list[Chart] = []
    arrays: dict[str, np.ndarray] = {}
    times, label = _times(trajectory)
    rows = [record.index for record in trajectory if record.has_predictions]
    still = ""
    if len(rows) >= _FEWEST:
        size = int(np.prod(trajectory.predictions(rows[0]).shape)) * 8
        rows = _thinned(rows, notebook.memory / _PART / size)
        rows = _thinned(rows, (notebook.memory / _PART / 8) ** 0.5)
        probabilities = np.stack([as_probabilities(trajectory.predictions(row)) for row in rows])
        space = InPCA(n_components=3).fit(probabilities)
        if np.isnan(space.explained_stress_).any():
            still = "; the predictions never changed"
    if len(rows) >= _FEWEST and not still:
        share = 1 - float(np.asarray(space.explained_stress_).reshape(-1)[-1])
        negative = int((np.asarray(space.eigenvalues_) < 0).sum())
        quantities.append(
            exact("manifold.stress", "Share of the predictions' path left out by 3 dimensions",
                  share, f"InPCA of {len(rows)} records, Bhattacharyya distances")
        )  # fmt: skip
        readings.append(
            f"Three dimensions hold {1 - share:.1%} of the path of the predictions"
            + (f", {negative} of them time-like." if negative else ".")
        )
        charts.append(_path_chart("inpca", "Path of the predictions (InPCA)",
                                  space.embedding_, times[rows], label))  # fmt: skip
        arrays["inpca"] = space.embedding_
    weights, kept = _weights(trajectory, subject, notebook.memory)
    if weights is not None:
        components = PCA(n_components=3).fit(weights)
        ratio = float(np.sum(components.explained_variance_ratio_))
    if weights is not None and not np.isnan(ratio):
        quantities.append(
            exact("manifold.weights", "Variance of the weights' path in 3 dimensions", ratio,
                  f"PCA of {len(kept)} records")
        )  # fmt: skip
        readings.append(f"Three dimensions hold {ratio:.1%} of the variance of the weights' path.")
        charts.append(_path_chart("weights-pca", "Path of the weights (PCA)",
                                  components.embedding_, times[kept], label))  # fmt: skip
        charts.append(_distance_chart(weights, times[kept], label))
        arrays["weights_pca"] = components.embedding_
    if not quantities:
        raise ArgumentError(
            "trajectory", str(trajectory.folder),
            f"it has fewer than {_FEWEST} different records with predictions or weights{still}",
            "Record with a probe, more often.",
        )  # fmt: skip
    return Part(
        "path", "Path of the training", "Trajectory", tuple(quantities), tuple(readings),
        tuple(charts), arrays=arrays,
    )  # fmt: skip


def _times(trajectory: Trajectory) -> tuple[np.ndarray, str]:
    epochs = trajectory.epochs
    if np.isnan(epochs).any():
        return trajectory.steps.astype(float), "step"
    return epochs, "epoch"


def _thinned(rows: list[int], most: float) -> list[int]:
    """Return some of the rows, evenly chosen, where there are more than fit."""
    count = max(_FEWEST, int(most))
    if len(rows) <= count:
        return rows
    return [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, count).astype(int))]


def _weights(
    trajectory: Trajectory, subject: Subject, memory: float
) -> tuple[np.ndarray | None, list[int]]:
    """Return recorded weights as rows (records, P), thinned to what fits in memory."""
    space = subject.hessian.space
    rows = [record.index for record in trajectory if record.weights is not None]
    rows = _thinned(rows, memory / _PART / (4 * space.dimension))
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
    notes = tuple(f"{label} {time:.4g}" for time in times)
    return Chart(
        name, title, "component 1", "component 2", (Path(points, "", times, label, notes),),
        z_label="component 3", caption="Drag to rotate; colour is time.",
    )  # fmt: skip


def _distance_chart(weights: np.ndarray, times: np.ndarray, label: str) -> Chart:
    distance = np.linalg.norm(weights - weights[0], axis=1)
    return Chart(
        "distance", "Distance from the first record", label, "‖θ(t) − θ(0)‖",
        (Curve(times, distance, style="both"),), toggles=("x", "y"),
    )  # fmt: skip

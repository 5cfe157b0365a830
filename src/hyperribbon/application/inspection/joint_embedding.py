"""Several recorded trainings in one space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hyperribbon.manifold import InPCA
from hyperribbon.manifold.predictions import as_probabilities
from hyperribbon.recording.trajectory import Trajectory

_LANDMARKS = 300
_SAMPLES = 200


@dataclass(frozen=True)
class JointEmbedding:
    """A joint embedding: paths of several trainings in the same three dimensions.

    Attributes:
        paths: For each training, (records, 3).
        steps: For each training, the steps of its records.
        explained: Share of the squared distances that the three dimensions hold.
        landmarks: Records the space was built from.
        samples: Probe samples the distances are taken over.
    """

    paths: tuple[np.ndarray, ...]
    steps: tuple[np.ndarray, ...]
    explained: float
    landmarks: int
    samples: int


def embed_runs(trajectories: Sequence[Trajectory], *, seed: int = 0) -> JointEmbedding | None:
    """Return the joint embedding of several trainings' recorded predictions by InPCA.

    At most 300 records, drawn at random, span the space and the others are projected into it; at
    most 200 probe samples are used, so that many runs stay cheap.

    Args:
        trajectories: Recorded trainings with predictions on the same probe.
        seed: Seed of the draw.

    Returns:
        The paths, or None when predictions are missing, are not of classes, differ in shape, or
        never change.
    """
    rows = [[r.index for r in trajectory if r.has_predictions] for trajectory in trajectories]
    if not rows or min(len(kept) for kept in rows) < 2:
        return None
    if not all(trajectory.has_probabilities for trajectory in trajectories):
        return None
    predictions = [
        np.asarray(trajectory.predictions())[kept, :_SAMPLES]
        for trajectory, kept in zip(trajectories, rows, strict=True)
    ]
    if len({entry.shape[1:] for entry in predictions}) > 1 or predictions[0].ndim != 3:
        return None
    models = as_probabilities(np.concatenate(predictions))
    if not np.isfinite(models).all() or len(models) < 4:
        return None
    landmarks = min(_LANDMARKS, len(models))
    space = InPCA(n_components=3, landmarks=landmarks, seed=seed).fit(models)
    if np.isnan(space.explained_stress_).any():
        return None  # no run ever moved
    points = space.transform(models)
    cuts = np.cumsum([len(kept) for kept in rows])[:-1]
    return JointEmbedding(
        tuple(np.split(points, cuts)),
        tuple(t.steps[kept] for t, kept in zip(trajectories, rows, strict=True)),
        float(np.asarray(space.explained_stress_).reshape(-1)[-1]),
        landmarks,
        models.shape[1],
    )

"""Landmark selection: which models an embedding is fitted to."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.core.checks import ArgumentError, check_array, check_positive_int
from hyperribbon.core.generators import numpy_generator

__all__ = ["choose_landmarks"]


def choose_landmarks(landmarks: Any, count: int, seed: int) -> np.ndarray:
    """Return the indices of the landmarks that an embedding is fitted to.

    Args:
        landmarks: None for all; a number, of which one is drawn from each of as many stretches of
            the models in their order; or indices, or a mask.
        count: Models.
        seed: Of the draw.
    """
    if landmarks is None:
        return np.arange(count)
    if not isinstance(landmarks, np.ndarray | list | tuple) and np.ndim(landmarks) == 0:
        wanted = check_positive_int("landmarks", landmarks, maximum=count)
        rng = numpy_generator(seed, "landmarks")
        return np.array([rng.choice(part) for part in np.array_split(np.arange(count), wanted)])
    return _indices(landmarks, count)


def _indices(given: Any, count: int) -> np.ndarray:
    """Return the indices that a mask or a list of indices chooses."""
    found = check_array("landmarks", given)
    chosen = found.astype(int)
    if np.asarray(given).dtype == bool and found.shape == (count,):
        chosen = np.flatnonzero(found)
    elif found.ndim != 1 or (chosen != found).any() or np.asarray(given).dtype == bool:
        chosen = np.zeros(0, dtype=int)
    inside = ((chosen >= 0) & (chosen < count)).all()
    if not chosen.size or not inside or len(set(chosen)) < len(chosen):
        reason = f"it selects none, or duplicates, of {count} models"
        remedy = f"Give a number, different indices from 0 to {count - 1}, or {count} booleans."
        raise ArgumentError("landmarks", given, reason, remedy)
    return chosen

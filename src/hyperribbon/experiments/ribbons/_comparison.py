"""How alike the manifolds of different networks are, from the distances of all their models."""

from __future__ import annotations

import numpy as np

from hyperribbon.manifold import InPCA, explained_stress

__all__ = ["apart_at_equal_progress", "four_ways", "without_each"]

_DEPTH = 50
_WINDOW = 0.05


def four_ways(distances: np.ndarray, is_linear: np.ndarray) -> np.ndarray:
    """Return the explained stress of embeddings built from some models and used for others."""
    everyone = np.arange(len(distances))
    ways = [
        (everyone, everyone),
        (everyone[~is_linear], everyone[~is_linear]),
        (everyone[is_linear], everyone),
        (everyone[is_linear], everyone[~is_linear]),
    ]
    depth = min([_DEPTH, *(len(built) - 1 for built, _ in ways)])
    curves = []
    for built, used in ways:
        space = InPCA(depth, metric="precomputed").fit(distances[np.ix_(built, built)])
        coordinates = space.transform(distances[np.ix_(used, built)])
        curves.append(
            explained_stress(distances[np.ix_(used, used)], coordinates, space.time_like_)
        )
    return np.array(curves)


def without_each(distances: np.ndarray, owner: np.ndarray, count: int) -> np.ndarray:
    """Return the explained stress of all models but one architecture's, for each: (count, k)."""
    depth = min(_DEPTH, *(int((owner != left).sum()) - 1 for left in range(count)))
    curves = []
    for left in range(count):
        kept = owner != left
        space = InPCA(depth, metric="precomputed").fit(distances[np.ix_(kept, kept)])
        curves.append(space.explained_stress_)
    return np.array(curves)


def apart_at_equal_progress(
    distances: np.ndarray, owner: np.ndarray, along: np.ndarray, count: int
) -> np.ndarray:
    """Return mean distances of architectures over pairs of models of similar progress."""
    similar = np.abs(along[:, None] - along) < _WINDOW
    table = np.zeros((count, count))
    for a in range(count):
        for b in range(count):
            pairs = similar & (owner[:, None] == a) & (owner == b)
            np.fill_diagonal(pairs, False)
            table[a, b] = distances[pairs].mean() if pairs.any() else np.nan
    return table

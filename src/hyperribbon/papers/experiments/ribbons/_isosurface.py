"""Surfaces of equal value of a field on a grid, by marching tetrahedra."""

from __future__ import annotations

import itertools
from typing import Annotated as Float

import numpy as np


def isosurface(field: np.ndarray, level: float) -> Float[np.ndarray, "k 3 3"]:
    """Return triangles on which a field, interpolated linearly in tetrahedra, has a value.

    Every cell of the grid is six tetrahedra around its diagonal. A tetrahedron is cut in a triangle
    or in a quadrilateral; neighbours share the edges of their cuts, so the surface has no gaps.

    Args:
        field: (a, b, c), values on the grid.
        level: The value.

    Returns:
        (triangles, 3 corners, 3 coordinates), in units of the grid.
    """
    cells = np.stack(np.meshgrid(*(np.arange(n - 1) for n in field.shape), indexing="ij"), axis=-1)
    cells = cells.reshape(-1, 3)
    found = [np.zeros((0, 3, 3))]
    for order in itertools.permutations(range(3)):
        steps = np.zeros((4, 3), dtype=int)
        for corner, axis in enumerate(order, start=1):
            steps[corner:, axis] = 1
        corners = cells[:, None] + steps
        values = field[tuple(np.moveaxis(corners, -1, 0))] - level
        above = values > 0
        some = above.any(axis=1) & ~above.all(axis=1)
        found += _cut(corners[some].astype(float), values[some], above[some])
    return np.concatenate(found)


def _cut(corners: np.ndarray, values: np.ndarray, above: np.ndarray) -> list[np.ndarray]:
    """Return the isosurface's triangles in tetrahedra (k, 4, 3) that it cuts."""
    triangles = []
    for number in (1, 2, 3):
        rows = np.flatnonzero(above.sum(axis=1) == number)
        # The corners above the level first.
        order = np.argsort(~above[rows], axis=1, kind="stable")
        place = np.take_along_axis(corners[rows], order[..., None], axis=1)
        height = np.take_along_axis(values[rows], order, axis=1)

        def edge(i: int, j: int, place: np.ndarray = place, height: np.ndarray = height):
            share = height[:, i] / (height[:, i] - height[:, j])
            return place[:, i] + share[:, None] * (place[:, j] - place[:, i])

        if number == 2:
            a, b, c, d = edge(0, 2), edge(0, 3), edge(1, 3), edge(1, 2)
            triangles += [np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)]
        else:
            lone = 0 if number == 1 else 3
            others = [k for k in range(4) if k != lone]
            triangles.append(np.stack([edge(lone, k) for k in others], axis=1))
    return triangles

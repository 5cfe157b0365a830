"""Surfaces of equal value against a plane and a sphere."""

import numpy as np
import pytest

from hyperribbon.papers.experiments.ribbons._isosurface import isosurface
from hyperribbon.papers.experiments.runner import _caption


def areas(triangles):
    sides = np.diff(triangles, axis=1)
    return np.linalg.norm(np.cross(sides[:, 0], sides[:, 1]), axis=1) / 2


def test_the_surface_of_a_linear_field_is_the_plane():
    x, y, z = np.meshgrid(range(4), range(5), range(6), indexing="ij")
    found = isosurface(x + 0.0 * y + 0 * z, 1.3)
    np.testing.assert_allclose(found[..., 0], 1.3)
    assert areas(found).sum() == pytest.approx(4 * 5)


def test_a_sphere_has_its_area_and_no_gap():
    grid = np.linspace(-1.5, 1.5, 31)
    x, y, z = np.meshgrid(grid, grid, grid, indexing="ij")
    found = (isosurface(np.sqrt(x**2 + y**2 + z**2), 1.0) - 15) / 10
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, atol=0.01)
    assert areas(found).sum() == pytest.approx(4 * np.pi, rel=0.01)
    # Closed: every edge belongs to two triangles.
    corners = np.round(found[areas(found) > 1e-12] * 1e6).astype(int)
    edges = np.concatenate([corners[:, [i, j]] for i, j in ((0, 1), (1, 2), (2, 0))])
    keys = [tuple(sorted(map(tuple, edge))) for edge in edges.tolist()]
    keys = [key for key in keys if key[0] != key[1]]
    _, counts = np.unique(np.array(keys).reshape(len(keys), -1), axis=0, return_counts=True)
    assert (counts == 2).mean() > 0.99


def test_no_surface_where_the_level_is_not_reached():
    assert isosurface(np.zeros((3, 3, 3)), 1.0).shape == (0, 3, 3)


def test_captions_name_what_is_random():
    assert _caption({}, {}, 0, 5, None) == "seed 0 of 5"
    assert _caption({}, {}, 0, 5, "trained models") == "trained models: seed 0 of 5"
    assert _caption({}, {}, 0, 5, "") == ""
    assert _caption({}, {}, 0, 1, "trained models") == ""

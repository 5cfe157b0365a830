import numpy as np
import pytest
from scipy.special import softmax

from hyperribbon.core.checks import ArgumentError
from hyperribbon.manifold import (
    bhattacharyya,
    geodesic,
    ignorance,
    progress,
    resample,
    trajectory_distances,
    truth,
)


@pytest.fixture
def labels():
    return np.random.default_rng(0).integers(0, 4, 30)


def test_geodesic_is_a_path_of_probabilities_at_constant_speed(labels):
    start, end = ignorance(30, 4), truth(labels, 4)
    path = geodesic(start, end, np.linspace(0, 1, 11))
    np.testing.assert_allclose(path.sum(axis=2), 1, atol=1e-12)
    np.testing.assert_allclose(path[0], start, atol=1e-12)
    np.testing.assert_allclose(path[-1], end, atol=1e-12)
    cosines = np.einsum("tsc,tsc->ts", np.sqrt(path[1:]), np.sqrt(path[:-1]))
    np.testing.assert_allclose(np.arccos(cosines), np.arccos(0.5) / 10, atol=1e-9)


@pytest.mark.parametrize("distance", ["angle", "bhattacharyya"])
def test_points_of_the_geodesic_know_their_progress(labels, distance):
    tau = np.array([0.0, 0.13, 0.5, 0.77, 1.0])
    path = geodesic(ignorance(30, 4), truth(labels, 4), tau)
    found = progress(path, truth(labels, 4), distance=distance)
    np.testing.assert_allclose(found, tau, atol=1e-6)


def test_sharpening_the_right_class_is_progress(labels):
    logits = truth(labels, 4)[None] * np.linspace(0, 8, 9)[:, None, None]
    noise = np.random.default_rng(1).standard_normal((30, 4)) * 0.3
    along = progress(softmax(logits + noise, axis=2), truth(labels, 4))
    assert (np.diff(along) > 0).all() and along[0] < 0.1 and along[-1] > 0.9


def test_resampling_the_geodesic_gives_it_back(labels):
    tau = np.linspace(0, 1, 6) ** 2
    path = geodesic(ignorance(30, 4), truth(labels, 4), tau)
    grid = np.linspace(0.05, 0.95, 7)
    expected = geodesic(ignorance(30, 4), truth(labels, 4), grid)
    np.testing.assert_allclose(resample(path, tau, grid), expected, atol=1e-10)
    with pytest.raises(ArgumentError, match="progress runs from"):
        resample(path[:3], tau[:3], grid)


def test_distances_of_trajectories_average_over_equal_progress(labels):
    rng = np.random.default_rng(2)
    paths = softmax(rng.standard_normal((3, 5, 30, 4)), axis=3)
    distances = trajectory_distances(list(paths))
    by_hand = np.mean([bhattacharyya(paths[:, t], precision="double") for t in range(5)], axis=0)
    np.testing.assert_allclose(distances, by_hand, rtol=1e-12)
    with pytest.raises(ArgumentError, match="Resample"):
        trajectory_distances([paths[0], paths[1][:2]])

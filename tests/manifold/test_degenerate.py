"""Landmarks given as a mask, and models that are all the same."""

import numpy as np
import pytest
from scipy.special import softmax

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.manifold import PCA, explained_stress
from hyperribbon.manifold.streaming import Streaming


@pytest.fixture
def P():
    return softmax(np.random.default_rng(0).normal(size=(20, 6, 4)), axis=2)


def test_a_mask_of_landmarks_chooses_the_models_where_it_is_true(P):
    mask = np.arange(20) % 2 == 0
    by_mask = hr.InPCA(2, landmarks=mask).fit(P)
    by_index = hr.InPCA(2, landmarks=np.flatnonzero(mask)).fit(P)
    np.testing.assert_array_equal(by_mask.landmarks_, np.arange(0, 20, 2))
    np.testing.assert_array_equal(by_mask.embedding_, by_index.embedding_)


@pytest.mark.parametrize(
    "landmarks",
    [
        np.ones(7, bool),
        np.zeros(20, bool),
        [0, 0, 1],
        [0, 25],
        [-1, 2],
        [0.5, 1.5],
        [],
        [[1, 2]],
        "first",
        ["a"],
    ],
)
def test_landmarks_that_are_no_models_are_refused(P, landmarks):
    with pytest.raises(ArgumentError, match="landmarks"):
        hr.InPCA(2, landmarks=landmarks).fit(P)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("landmarks", [None, 8])
def test_identical_models_have_no_direction_and_no_stress(P, dtype, precision, landmarks):
    same = np.repeat(P[:1].astype(dtype), 20, axis=0)
    space = hr.InPCA(2, landmarks=landmarks, precision=precision).fit(same)
    assert np.isnan(space.explained_stress_).all()
    assert not space.eigenvalues_.any()
    assert not space.embedding_.any()


def test_identical_models_by_tiles_have_no_stress_either(P):
    same = np.repeat(P[:1], 40, axis=0)
    space = hr.InPCA(2, streaming=Streaming(memory=1000)).fit(same)
    assert np.isnan(space.explained_stress_).all()
    assert not space.embedding_.any()


def test_other_spaces_of_identical_points_have_no_stress(P):
    same = np.repeat(P[:1], 20, axis=0)
    space = PCA(2).fit(same)
    assert np.isnan(space.explained_stress_).all()
    assert np.isnan(space.explained_variance_ratio_).all()
    zeros = np.zeros((5, 5))
    with pytest.raises(ArgumentError, match="identical"):
        explained_stress(zeros, np.zeros((5, 2)), np.zeros(2, bool))
    assert np.isnan(hr.InPCA(2, metric="precomputed").fit(zeros).explained_stress_).all()


def test_models_a_little_apart_keep_their_stress(P):
    """A millionth of a direction is seven orders above the distances' rounding."""
    step = np.array([1.0, -1.0, 0.0, 0.0])
    logits = np.log(P[:1]) + 1e-3 * np.arange(20)[:, None, None] * step
    space = hr.InPCA(2).fit(softmax(logits, axis=2))
    assert space.explained_stress_[0] > 0.99


def nearly_equal(P, dtype, seed, count=20):
    """Return copies of one model whose numbers differ by a few units of rounding of their type."""
    noise = np.random.default_rng(seed).normal(size=(count, *P.shape[1:]))
    return (P[:1] * (1 + 4 * np.finfo(dtype).eps * noise)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize(
    "options", [{}, {"landmarks": 8}, {"log": True}, {"streaming": Streaming(memory=1000)}]
)
def test_models_that_differ_by_rounding_have_no_stress(P, dtype, precision, options):
    for seed in range(10):
        models = nearly_equal(P, dtype, seed)
        models = np.log(models) if "log" in options else models
        space = hr.InPCA(2, precision=precision, **options).fit(models)
        assert np.isnan(space.explained_stress_).all()
        assert np.isnan(space.stress_error_).all()
        assert not space.embedding_.any()


def true_stress(models, count):
    """Return the explained stress from −log(1 − ½ Σ(√p − √q)²), where nothing cancels."""
    p = models.astype(np.longdouble)
    roots = np.sqrt(p / p.sum(axis=2, keepdims=True))
    apart = ((roots[:, None] - roots[None]) ** 2).sum(axis=3) / 2
    distances = -np.log1p(-apart).mean(axis=2)
    rows = distances - distances.mean(axis=1, keepdims=True)
    W = -((rows - rows.mean(axis=0)) / 2 / distances.max()).astype(float)
    values = np.sort(np.linalg.eigvalsh(W) ** 2)[::-1]
    left = values.sum() - np.cumsum(values)[:count]
    return 1 - np.sqrt(np.clip(left, 0, None) / values.sum())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("streaming", [None, Streaming(memory=1000)])
def test_rounding_changes_the_stress_by_no_more_than_its_error(P, dtype, precision, streaming):
    """From models that are the same to rounding up to models that are far apart."""
    smallest = 1e-6 if (dtype, precision) == (np.float64, "double") else 1e-2
    informative = 0
    for seed, size in enumerate(np.logspace(-9, 0, 28)):
        moves = np.random.default_rng(seed).normal(size=P.shape)
        models = softmax(np.log(P[:1]) + size * moves, axis=2).astype(dtype)
        space = hr.InPCA(3, precision=precision, streaming=streaming).fit(models)
        if np.isnan(space.explained_stress_).any():
            assert size < smallest
            continue
        error = np.abs(space.explained_stress_ - true_stress(models, 3))
        assert (error <= space.stress_error_ + 1e-10).all()
        informative += bool(space.stress_error_[0] < 0.05)
    assert informative >= 5


def test_distances_that_are_a_sum_of_two_numbers_have_no_stress():
    """Centring leaves nothing of D = a1ᵀ + 1aᵀ but its rounding."""
    a = np.random.default_rng(0).uniform(1, 2, size=30)
    distances = a[:, None] + a
    space = hr.InPCA(2, metric="precomputed").fit(distances)
    assert np.isnan(space.explained_stress_).all()
    with pytest.raises(ArgumentError, match="identical"):
        explained_stress(distances, np.zeros((30, 2)), np.zeros(2, bool))

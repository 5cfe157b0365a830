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
    [np.ones(7, bool), np.zeros(20, bool), [0, 0, 1], [0, 25], [-1, 2], [0.5, 1.5], [], [[1, 2]],
     "first", ["a"]],
)  # fmt: skip
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
    with pytest.raises(ArgumentError, match="same"):
        explained_stress(zeros, np.zeros((5, 2)), np.zeros(2, bool))
    assert np.isnan(hr.InPCA(2, metric="precomputed").fit(zeros).explained_stress_).all()


def test_models_a_little_apart_keep_their_stress(P):
    """A millionth of a direction is seven orders above the distances' rounding."""
    step = np.array([1.0, -1.0, 0.0, 0.0])
    logits = np.log(P[:1]) + 1e-3 * np.arange(20)[:, None, None] * step
    space = hr.InPCA(2).fit(softmax(logits, axis=2))
    assert space.explained_stress_[0] > 0.99

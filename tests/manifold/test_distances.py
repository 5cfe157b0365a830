import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp

from hyperribbon.core.checks import ArgumentError
from hyperribbon.manifold import bhattacharyya, truth


def plain(logs_p, logs_q):
    return np.array([[-logsumexp((p + q) / 2, axis=1).mean() for q in logs_q] for p in logs_p])


def random_logs(seed, models, samples, classes, scale):
    rng = np.random.default_rng(seed)
    return log_softmax(scale * rng.standard_normal((models, samples, classes)), axis=2)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    models=st.integers(1, 9),
    samples=st.integers(1, 60),
    classes=st.integers(2, 7),
    scale=st.floats(0, 12),
)
def test_probabilities_give_the_plain_sum(seed, models, samples, classes, scale):
    logs = random_logs(seed, models, samples, classes, scale)
    expected = plain(logs, logs)
    np.fill_diagonal(expected, 0)
    single = bhattacharyya(np.exp(logs))
    double = bhattacharyya(np.exp(logs), precision="double")
    # A float32 affinity of `classes` terms carries a relative error of about classes·6e-8.
    np.testing.assert_allclose(single, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(double, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(double, double.T)
    assert (np.diagonal(single) == 0).all()


def test_many_tiles_agree_with_the_plain_sum():
    logs = random_logs(1, 290, 21, 5, 3.0)
    distances = bhattacharyya(np.exp(logs), threads=2)
    rows = [0, 130, 289]
    expected = plain(logs[rows], logs)
    expected[range(3), rows] = 0
    np.testing.assert_allclose(distances[rows], expected, atol=1e-6)
    np.testing.assert_array_equal(distances, distances.T)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_log_probabilities_far_below_the_smallest_number_are_exact(precision):
    logs = random_logs(2, 6, 40, 10, 2000.0)
    expected = plain(logs, logs)
    np.fill_diagonal(expected, 0)
    distances, report = bhattacharyya(logs, log=True, precision=precision, report=True)
    assert report.underflows > 0
    np.testing.assert_allclose(distances, expected, rtol=3e-7)


def test_two_sets_of_models_and_tensors():
    logs = random_logs(3, 7, 30, 4, 1.0)
    P, Q = torch.from_numpy(np.exp(logs[:3])), torch.from_numpy(np.exp(logs[3:]))
    np.testing.assert_allclose(
        bhattacharyya(P, Q, precision="double"), plain(logs[:3], logs[3:]), rtol=1e-12
    )


def test_truth_has_zeros_and_finite_distances():
    logs = random_logs(4, 5, 50, 3, 2.0)
    labels = np.random.default_rng(0).integers(0, 3, 50)
    models = np.concatenate([np.exp(logs), truth(labels, 3)[None]])
    distances, report = bhattacharyya(models, precision="double", report=True)
    assert report.zeros == 100
    expected = -logs[:, np.arange(50), labels].mean(axis=1) / 2
    np.testing.assert_allclose(distances[-1, :-1], expected, rtol=1e-12)


def test_disjoint_models_are_an_error_that_names_the_way_out():
    models = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    with pytest.raises(ArgumentError, match="floor=1e-12"):
        bhattacharyya(models)
    distances, report = bhattacharyya(models, floor=1e-12, precision="double", report=True)
    assert report.floored == 2
    np.testing.assert_allclose(distances[0, 1], -np.log(2e-6), rtol=1e-9)


def test_subset_error_is_estimated():
    logs = random_logs(5, 12, 4000, 3, 2.0)
    full = bhattacharyya(np.exp(logs), precision="double")
    errors, estimates = [], []
    for seed in range(6):
        part, report = bhattacharyya(np.exp(logs), subset=400, seed=seed, report=True)
        assert report.used == 400
        errors.append(np.sqrt(((part - full) ** 2).mean()))
        estimates.append(report.stderr)
    assert 0.6 < np.mean(estimates) / np.mean(errors) < 1.6
    same = bhattacharyya(np.exp(logs), subset=4000, precision="double", report=True)
    assert same[1].stderr == 0
    np.testing.assert_allclose(same[0], full, atol=1e-12)


def test_rows_that_are_not_probabilities_are_refused():
    with pytest.raises(ArgumentError, match="softmax"):
        bhattacharyya(np.ones((2, 3, 4)))
    with pytest.raises(ArgumentError, match="models, samples, classes"):
        bhattacharyya(np.ones((2, 3)))

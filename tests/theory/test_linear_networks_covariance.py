"""Balanced networks on inputs of any covariance, against dense kernels."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory import linear_networks as ln


@st.composite
def shapes(draw):
    depth = draw(st.integers(1, 6))
    widths = draw(st.lists(st.integers(1, 9), min_size=depth + 1, max_size=depth + 1))
    return widths, draw(st.integers(1, 14)), draw(st.integers(0, 2**32 - 1))


def make_problem(widths, samples, seed):
    """Return balanced weights of some rank, and inputs of any covariance, rank-deficient too."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, min(widths) + 1))
    singular = np.zeros(min(widths))
    singular[:rank] = np.sort(rng.uniform(0.3, 2.0, rank))[::-1]
    weights = ln.sample_balanced_weights(widths, singular, rng)
    mixing = rng.standard_normal((widths[0], widths[0])) * np.exp(rng.uniform(-3, 1, widths[0]))
    return weights, singular[:rank], mixing @ rng.standard_normal((widths[0], samples))


SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@SETTINGS
@given(shapes())
def test_eigenvalues_on_any_inputs_equal_those_of_the_dense_kernel(shape):
    weights, singular, X = make_problem(*shape)
    d_in, n = X.shape
    d_out = len(weights[-1])
    product = np.linalg.multi_dot([*weights[::-1], np.eye(d_in)])
    directions = np.linalg.svd(product)[2][: len(singular)].T
    found = ln.balanced_eigenvalues(
        singular, len(weights), d_in, d_out, covariance=X @ X.T / n, input_directions=directions
    )
    dense = np.linalg.eigvalsh(ln.ntk(weights, X))[::-1]
    size = max(len(found), len(dense))
    found, dense = (np.pad(values, (0, size - len(values))) for values in (found, dense))
    assert np.abs(found - dense).max() <= 1e-11 * dense[0]


@SETTINGS
@given(shapes())
def test_eigenvectors_of_any_depth_diagonalise_the_dense_kernel(shape):
    weights, _, X = make_problem(*shape)
    kernel = ln.ntk(weights, X)
    values, vectors = ln.balanced_eigenvectors(weights, X)
    scale = np.linalg.norm(kernel, 2)
    assert np.abs(kernel @ vectors - vectors * values).max() <= 1e-11 * scale
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(values)), atol=1e-11)
    assert values.sum() == pytest.approx(np.trace(kernel), rel=1e-11)


def test_white_inputs_give_equation_9a_back():
    rng = np.random.default_rng(0)
    weights = ln.sample_balanced_weights([5, 4, 3], [1.5, 0.7, 0.2], rng)
    directions = np.linalg.svd(weights[0])[2][:3].T
    white = ln.balanced_eigenvalues([1.5, 0.7, 0.2], 2, 5, 3, 1.3)
    any_inputs = ln.balanced_eigenvalues(
        [1.5, 0.7, 0.2], 2, 5, 3, covariance=1.69 * np.eye(5), input_directions=directions
    )
    np.testing.assert_allclose(any_inputs, white, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"input_directions": None}, "input directions"),
        ({"input_directions": np.ones((2, 1))}, "not orthonormal"),
        ({"covariance": np.diag([1.0, -1.0])}, "negative eigenvalue"),
        ({"covariance": np.triu(np.ones((2, 2)))}, "not symmetric"),
        ({"covariance": None}, "not white"),
        ({"sigma_x": 2.0}, "incompatible with covariance"),
    ],
)
def test_what_does_not_fit_is_named(change, match):
    good = {"covariance": np.eye(2), "input_directions": np.array([[1.0], [0.0]])}
    with pytest.raises(ArgumentError, match=match):
        ln.balanced_eigenvalues([2.0], 3, 2, 1, **{**good, **change})


def test_layers_that_are_not_balanced_have_no_closed_eigenvectors():
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((3, 4)), rng.standard_normal((2, 3))]
    with pytest.raises(ArgumentError, match="not balanced"):
        ln.balanced_eigenvectors(weights, rng.standard_normal((4, 6)))

"""Closed forms against dense Hessians from autograd."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory import linear_networks as ln

SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def dense_hessian(weights, X, Y):
    """Autograd's Hessian of (1/2n)‖f(X) − Y‖² in double precision."""
    shapes = [w.shape for w in weights]
    sizes = [w.size for w in weights]
    X, Y = torch.from_numpy(X), torch.from_numpy(Y)

    def loss(flat):
        output = X
        for piece, shape in zip(flat.split(sizes), shapes, strict=True):
            output = piece.reshape(shape) @ output
        return (output - Y).square().sum() / (2 * X.shape[1])

    flat = torch.from_numpy(np.concatenate([w.ravel() for w in weights]))
    return torch.autograd.functional.hessian(loss, flat, vectorize=True).numpy()


def end_to_end(weights):
    product = weights[0]
    for weight in weights[1:]:
        product = weight @ product
    return product


def padded(values, size):
    """The first `size` of values, descending, padded by zeros."""
    values = np.sort(values)[::-1]
    return np.concatenate([values, np.zeros(max(0, size - len(values)))])[:size]


def assert_same_spectrum(measured, predicted):
    size = max(len(measured), len(predicted))
    difference = np.abs(padded(measured, size) - padded(predicted, size)).max()
    assert difference <= 1e-11 * np.abs(predicted).max()


@st.composite
def networks(draw, shallowest=1, deepest=6, narrowest=1, most=260):
    """Widths with few enough weights for a dense Hessian, a number of samples and a generator."""
    layers = draw(st.integers(shallowest, deepest))
    widths = draw(st.lists(st.integers(narrowest, 24), min_size=layers + 1, max_size=layers + 1))
    while sum(a * b for a, b in pairwise(widths)) > most:
        widths[int(np.argmax(widths))] //= 2
    samples = draw(st.integers(1, max(widths[0] + 2, min(2 * widths[0], 300 // widths[-1]))))
    seed = draw(st.integers(0, 2**32 - 1))
    return widths, samples, np.random.default_rng(seed)


def stationary_targets(weights, X, rng):
    """Targets that leave a residual no linear map of X can reduce, when n > rank X."""
    noise = rng.standard_normal((weights[-1].shape[0], X.shape[1]))
    return end_to_end(weights) @ X + noise - noise @ np.linalg.pinv(X) @ X


@SETTINGS
@given(networks())
def test_tangent_kernel_and_trace_equal_the_hessian_at_a_stationary_residual(network):
    widths, samples, rng = network
    weights = [rng.standard_normal((b, a)) for a, b in pairwise(widths)]
    X = rng.standard_normal((widths[0], samples))
    Y = stationary_targets(weights, X, rng)
    measured = np.linalg.eigvalsh(dense_hessian(weights, X, Y))
    assert_same_spectrum(measured, np.linalg.eigvalsh(ln.ntk(weights, X)))
    assert_same_spectrum(
        measured, np.linalg.svd(ln.jacobian(weights, X), compute_uv=False) ** 2 / samples
    )
    assert ln.trace(weights, X) == pytest.approx(measured.sum(), rel=1e-11)
    assert ln.trace(weights, ln.Moments.of(X, Y)) == pytest.approx(measured.sum(), rel=1e-11)
    assert ln.sharpness_bound(weights, X) >= measured[-1] * (1 - 1e-12)


@SETTINGS
@given(networks())
def test_balanced_eigenvalues_and_their_count_equal_the_hessian(network):
    widths, samples, rng = network
    sigma_x = rng.uniform(0.5, 3)
    white = ln.whiten(rng.standard_normal((widths[0], samples)), sigma_x)
    widths = [white.rank, *widths[1:]]
    singular = rng.uniform(0.5, 1.5, min(widths))
    weights = ln.sample_balanced_weights(widths, singular, rng)
    Y = stationary_targets(weights, white.inputs, rng)
    measured = np.linalg.eigvalsh(dense_hessian(weights, white.inputs, Y))
    depth = len(weights)
    predicted = ln.balanced_eigenvalues(singular, depth, widths[0], widths[-1], sigma_x)
    assert_same_spectrum(measured, predicted)
    count = ln.balanced_count(min(widths), depth, widths[0], widths[-1])
    assert np.sum(measured > 1e-11 * measured[-1]) == count
    assert np.sum(predicted > 0) == count
    assert ln.balance_defect(weights) < 1e-13
    assert ln.sharpness_bound(weights, sigma_x=sigma_x) == pytest.approx(predicted[0], rel=1e-12)


@SETTINGS
@given(networks(2, 2))
def test_two_layers_without_balance_equal_the_hessian(network):
    widths, samples, rng = network
    sigma_x = rng.uniform(0.5, 3)
    white = ln.whiten(rng.standard_normal((widths[0], samples)), sigma_x)
    X = white.inputs
    W1 = rng.standard_normal((widths[1], white.rank))
    W2 = rng.standard_normal((widths[2], widths[1]))
    measured = np.linalg.eigvalsh(dense_hessian([W1, W2], X, stationary_targets([W1, W2], X, rng)))
    predicted = ln.shallow_eigenvalues(W1, W2, sigma_x)
    assert_same_spectrum(measured, predicted)
    # The smallest non-zero eigenvalue may be tiny by chance: count in the kernel's own terms.
    assert np.sum(predicted > 1e-13 * predicted[0]) == ln.shallow_count(W1, W2)
    assert ln.shallow_sharpness(W1, W2, sigma_x) == pytest.approx(measured[-1], rel=1e-11)
    assert ln.shallow_trace(W1, W2, sigma_x) == pytest.approx(measured.sum(), rel=1e-11)
    vectors = ln.shallow_eigenvectors(W1, W2, X)
    assert np.allclose(vectors.T @ vectors, np.eye(vectors.shape[1]), atol=1e-12)
    kernel = ln.ntk([W1, W2], X)
    error = np.abs(kernel @ vectors - vectors * predicted).max()
    assert error <= 1e-12 * predicted[0] * np.sqrt(len(kernel))


@SETTINGS
@given(networks())
def test_operators_equal_the_dense_hessian_at_any_loss_and_the_trace_is_exact_there(network):
    widths, samples, rng = network
    weights = [rng.standard_normal((b, a)) for a, b in pairwise(widths)]
    X = rng.standard_normal((widths[0], samples))
    Y = 3 * rng.standard_normal((widths[-1], samples))
    moments = ln.Moments.of(X, Y)
    dense = dense_hessian(weights, X, Y)
    identity = np.eye(len(dense))
    operator = ln.hessian(weights, moments)
    scale = np.abs(dense).max()
    assert np.abs(operator @ identity - dense).max() <= 1e-11 * scale
    assert np.abs(operator @ identity[0] - dense[0]).max() <= 1e-11 * scale
    gauss_newton = ln.ggn(weights, moments) @ identity
    assert_same_spectrum(np.linalg.eigvalsh(gauss_newton), np.linalg.eigvalsh(ln.ntk(weights, X)))
    assert ln.trace(weights, X) == pytest.approx(np.trace(dense), rel=1e-11)
    loss = moments.loss(end_to_end(weights))
    residual = end_to_end(weights) @ X - Y
    assert loss == pytest.approx(np.sum(residual**2) / (2 * samples), rel=1e-10, abs=1e-12 * scale)


def test_the_printed_count_is_short_for_20_7_5():
    rng = np.random.default_rng(3)
    X = ln.whiten(rng.standard_normal((20, 60))).inputs
    weights = ln.sample_balanced_weights((20, 7, 5), rng.uniform(0.5, 1.5, 5), rng)
    eigenvalues = np.linalg.svd(ln.jacobian(weights, X), compute_uv=False) ** 2 / 60
    assert np.sum(eigenvalues > 1e-11 * eigenvalues[0]) == 100
    assert ln.balanced_count(5, 2, 20, 5) == 100
    assert ln.printed_count((20, 7, 5)) == 25


@pytest.mark.parametrize("seed", range(2))
def test_the_widest_and_deepest_network_agrees_too(seed):
    rng = np.random.default_rng(seed)
    widths = [24, *rng.integers(10, 25, 5), 24]
    singular = rng.uniform(0.2, 1.5, min(widths))
    weights = ln.sample_balanced_weights(widths, singular, rng)
    X = ln.whiten(rng.standard_normal((24, 40)), 2.0).inputs
    squares = np.linalg.svd(ln.jacobian(weights, X), compute_uv=False) ** 2 / 40
    assert_same_spectrum(squares, ln.balanced_eigenvalues(singular, 6, 24, 24, 2.0))


@pytest.mark.parametrize(
    "test",
    [
        test_tangent_kernel_and_trace_equal_the_hessian_at_a_stationary_residual,
        test_balanced_eigenvalues_and_their_count_equal_the_hessian,
    ],
    ids=lambda test: test.__name__,
)
def test_wider_networks_agree_too(test):
    @settings(SETTINGS, max_examples=8)
    @given(networks(shallowest=3, narrowest=14, most=3600))
    def check(network):
        test.hypothesis.inner_test(network)

    check()


@SETTINGS
@given(networks(), st.booleans())
def test_curvature_outside_its_range_is_zero(network, is_gauss_newton):
    widths, samples, rng = network
    weights = [rng.standard_normal((b, a)) for a, b in pairwise(widths)]
    X, Y = (rng.standard_normal((width, samples)) for width in (widths[0], widths[-1]))
    whole = (ln.ggn if is_gauss_newton else ln.hessian)(weights, ln.Moments.of(X, Y))
    part = ln.restrict_to_range(whole)
    dense, small = (matrix @ np.eye(matrix.shape[0]) for matrix in (whole, part))
    scale = np.abs(dense).max() + 1e-300
    assert np.abs(small - small.T).max() <= 1e-11 * scale
    expected, found = (np.linalg.eigvalsh(matrix) for matrix in (dense, small))
    assert part.shape[0] <= sum(widths[-1] * (a + b) for a, b in pairwise(widths))
    zeros = np.zeros(len(expected) - len(found))
    assert np.allclose(np.sort([*found, *zeros]), expected, atol=1e-11 * np.abs(expected).max())


def test_only_the_curvature_of_a_linear_network_is_restricted():
    with pytest.raises(ArgumentError, match="of no linear network"):
        ln.restrict_to_range(np.eye(3))


@pytest.mark.parametrize("rank", [1, 3])
def test_balanced_layers_have_the_map_they_are_asked_for(rank):
    rng = np.random.default_rng(rank)
    product = rng.standard_normal((4, rank)) @ rng.standard_normal((rank, 6))
    layers = ln.balance_layers(product, (5, 3, 4))
    assert [layer.shape for layer in layers] == [(5, 6), (3, 5), (4, 3)]
    assert ln.balance_defect(layers) < 1e-12
    np.testing.assert_allclose(ln.end_to_end(layers), product, atol=1e-12)
    (narrow,) = ln.balance_layers(product, (4,))
    np.testing.assert_allclose(narrow, product, atol=1e-12)
    with pytest.raises(ArgumentError, match="its last entry must be dL = 4"):
        ln.balance_layers(product, (5, 3))

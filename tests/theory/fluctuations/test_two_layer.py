"""Two-layer closed forms against dense linear algebra in the weights themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperribbon.core import ArgumentError
from hyperribbon.theory import fluctuations as th


def assert_equal(ours, brute, condition=1.0):
    """Relative difference below 1e-10, or what rounding leaves of a problem so ill-conditioned.

    Both sides carry rounding errors of up to about 100·ε·κ, which only exceeds 1e-10 for κ > 5e3.
    """
    scale = max(np.abs(brute).max(), 1e-300)
    allowed = max(1e-10, 100 * np.finfo(float).eps * condition)
    np.testing.assert_allclose(ours / scale, brute / scale, rtol=0, atol=allowed)


@st.composite
def networks(draw):
    N_o = draw(st.integers(1, 5))
    N_h = draw(st.integers(N_o, 6))
    N_i = draw(st.integers(N_h, 8))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    return rng.normal(size=(N_h, N_i)), rng.normal(size=(N_o, N_h))


def weight_jacobian(W1, W2):
    """vec(W₂δW₁ + δW₂W₁) as a matrix on (vec δW₁, vec δW₂), columns stacked."""
    return np.hstack([np.kron(np.eye(W1.shape[1]), W2), np.kron(W1.T, np.eye(len(W2)))])


@settings(max_examples=40, deadline=None)
@given(networks())
def test_drift_has_the_eigenvalues_multiplicities_and_rank_of_the_paper(network):
    modes = th.decompose(*network)
    N_i, N_h, N_o = modes.sizes
    drift = th.drift_matrix(modes)
    values = np.sort(np.linalg.eigvalsh(drift))[::-1]
    assert_equal(values, th.drift_eigenvalues(modes))
    assert np.linalg.matrix_rank(drift) == N_o * N_i
    blocks = [
        [
            np.kron(np.eye(N_i), np.diag(modes.D2)),
            np.kron(modes.B[:, :N_h] * modes.s1, (modes.U * modes.s2).T),
        ],
        [
            np.kron((modes.B[:, :N_h] * modes.s1).T, modes.U * modes.s2),
            np.kron(np.diag(modes.D1), np.eye(N_o)),
        ],
    ]
    assert_equal(drift, np.block(blocks))


@settings(max_examples=40, deadline=None)
@given(networks())
def test_covariance_is_half_the_pseudo_inverse_of_drift_times_diffusion(network):
    W1, W2 = network
    modes = th.decompose(W1, W2)
    lr, S, y2 = 0.1, 10, 0.7
    M = th.layer_covariance(modes, lr, S, y2)
    drift = th.drift_matrix(modes)
    brute = lr * y2 / (2 * S) * np.linalg.pinv(drift, hermitian=True) @ drift
    # The projector needs the gap between the smallest eigenvalue of Γ and its null space.
    positive = np.linalg.eigvalsh(drift)[-modes.sizes[0] * modes.sizes[2] :]
    condition = positive[-1] / positive[0]
    assert_equal(M, brute, condition)
    assert np.linalg.matrix_rank(M, tol=1e-9) == modes.sizes[0] * modes.sizes[2]

    # The same in the space of the weights: a projector on the row space of the Jacobian, whose
    # blocks are the covariances of the layers.
    J = weight_jacobian(W1, W2)
    full = lr * y2 / (2 * S) * np.linalg.pinv(J) @ J
    n1 = W1.size
    assert_equal(th.first_layer_covariance(modes, M), full[:n1, :n1], condition)
    assert_equal(th.second_layer_covariance(modes, M), full[n1:, n1:], condition)
    finite = th.layer_covariance(modes, lr, S, y2, samples=10 * modes.sizes[0])
    assert_equal(finite, 0.9 * M)


@settings(max_examples=30, deadline=None)
@given(networks())
def test_second_layer_variances_are_the_eigenvalues_of_its_block(network):
    modes = th.decompose(*network)
    N_i, N_h, N_o = modes.sizes
    M = th.layer_covariance(modes, 0.1, 10, 1.0)
    block = M[N_o * N_i :, N_o * N_i :]
    values = np.sort(th.second_layer_variances(modes.D1, modes.D2, 0.1, 10, 1.0).ravel())
    assert_equal(np.linalg.eigvalsh(block), values)
    if N_o == 1:
        assert_equal(block, np.diag(np.diag(block)))
        first = np.linalg.eigvalsh(M[:N_i, :N_i]) / (0.1 / 20)
        unit = np.concatenate([modes.D2 / (modes.D1 + modes.D2), np.ones(N_i - N_h)])
        assert_equal(first, np.sort(unit))


def gaussian_task(P, N_i, N_o, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_i, P))
    X = np.linalg.cholesky(np.linalg.inv(X @ X.T / P)).T @ X
    return X, rng.normal(size=(N_o, P))


def test_layer_noise_is_the_minibatch_covariance_of_the_layer_gradients():
    rng = np.random.default_rng(1)
    N_i, N_h, N_o, P = 4, 3, 2, 300_000
    X, Y = gaussian_task(P, N_i, N_o, 0)
    w = Y @ X.T / P
    W1 = rng.normal(size=(N_h, N_i))
    W1[:N_o] = w
    W2 = np.hstack([np.eye(N_o), np.zeros((N_o, N_h - N_o))])
    errors = Y - W2 @ W1 @ X
    g1 = np.einsum("ho,op,ip->phi", W2.T, errors, X, optimize=True)
    g2 = np.einsum("op,ip,hi->poh", errors, X, W1, optimize=True)
    strength = th.noise_strength(1.0, 1, 1.0, 1.0)
    first, second, cross = th.layer_noise_covariances(W1, W2, strength, P)
    measured = np.einsum("pij,pkl->ijkl", g1, g1, optimize=True) / P
    np.testing.assert_allclose(measured, first, atol=0.04 * abs(first).max())
    measured = np.einsum("pij,pkl->ijkl", g2, g2, optimize=True) / P
    np.testing.assert_allclose(measured, second, atol=0.04 * abs(second).max())
    measured = np.einsum("pij,pkl->ijkl", g1, g2, optimize=True) / P
    np.testing.assert_allclose(measured, cross, atol=0.04 * abs(cross).max())


def test_finite_sample_factor_is_one_minus_inputs_over_samples():
    N_i, P, trials = 10, 40, 300
    unexplained = []
    for seed in range(trials):
        X, Y = gaussian_task(P, N_i, 1, seed)
        unexplained.append(1 - np.sum((Y @ X.T / P) ** 2) / np.mean(Y**2))
    assert np.mean(unexplained) == pytest.approx(1 - N_i / P, abs=4 * np.std(unexplained) / 17)


def test_minibatch_moment_covariances_follow_wick():
    rng = np.random.default_rng(2)
    P, S = 400_000, 5
    L = np.array([[1.0, 0.0], [0.6, 0.5]])
    X = L @ rng.normal(size=(2, P))
    Y = np.array([[0.5, -1.0]]) @ X + 0.3 * rng.normal(size=(1, P))
    Sxx, Syx = L @ L.T, np.array([[0.5, -1.0]]) @ L @ L.T
    y2 = 0.09 + float(np.array([0.5, -1.0]) @ Sxx @ np.array([0.5, -1.0]))
    xx, yx, cross = th.moment_covariances(Sxx, Syx, y2, S)
    a = np.einsum("ip,jp->pij", X, X) - Sxx
    b = np.einsum("ip,jp->pij", Y, X) - Syx
    for expected, left, right in ((xx, a, a), (yx, b, b), (cross, a, b)):
        measured = np.einsum("pij,pkl->ijkl", left, right, optimize=True) / P / S
        np.testing.assert_allclose(measured, expected, atol=0.02 * abs(expected).max())


def test_loss_along_modes_is_exact_for_white_inputs():
    rng = np.random.default_rng(4)
    N_i, N_h, P, theta = 6, 4, 200, 0.3
    X, Y = gaussian_task(P, N_i, 1, 3)
    W1, W2 = rng.normal(size=(N_h, N_i)), rng.normal(size=(1, N_h))
    W1 += np.linalg.pinv(W2) @ (Y @ X.T / P - W2 @ W1)
    modes = th.decompose(W1, W2)

    def loss(V1, V2):
        return np.mean((Y - V2 @ V1 @ X) ** 2) / 2

    rise = [loss(W1, W2 + theta * a[None]) - loss(W1, W2) for a in modes.A.T]
    assert_equal(np.array(rise), th.loss_along_second_layer_modes(modes.D1, 1.0, theta))
    M = th.layer_covariance(modes, 0.1, 10, 1.0)
    _, vectors = np.linalg.eigh(th.first_layer_covariance(modes, M))
    rise = [loss(W1 + theta * v.reshape(N_i, N_h).T, W2) - loss(W1, W2) for v in vectors.T[::-1]]
    expected = th.loss_along_first_layer_modes(modes.D2[0], 1.0, theta, N_i, N_i * N_h)
    assert_equal(np.array(rise), expected)


def test_local_exponent_is_the_slope_of_the_theory_and_tends_to_two():
    D2 = 0.8
    D1 = np.geomspace(1e-4, 10, 400)
    log_slope = 2 * np.gradient(np.log(D1 / (D1 + D2)), np.log(D1))
    np.testing.assert_allclose(th.local_exponent(D1, D2)[1:-1], log_slope[1:-1], atol=1e-3)
    small = 1e-3 * D2 * np.linspace(0.1, 1, 20)
    limit = th.second_layer_variances_limit(D1, D2, 0.1, 10, 0.7)
    exact = th.second_layer_variances(D1, D2, 0.1, 10, 0.7)[:, 0]
    np.testing.assert_allclose(limit, exact * (1 + D1 / D2))
    assert th.fit_exponent(small / (small + D2), small) == pytest.approx(2, abs=2e-3)


def test_mode_relaxation_solves_its_equation():
    rates, t = np.array([0.0, 0.5, 3.0]), np.linspace(0, 4, 2001)
    variance = th.mode_variance(t, rates, 0.3, 0.02, initial=np.array([1.0, 0.5, 0.0]))
    slope = np.gradient(variance, t, axis=0)
    expected = -2 * 0.3 * rates * variance + 0.02 * rates
    np.testing.assert_allclose(slope[1:-1], expected[1:-1], atol=1e-5)
    assert np.all(th.mode_correlation(t, rates, 0.3)[:, 0] == 1)
    np.testing.assert_allclose(th.mode_correlation(2.0, rates, 0.3), np.exp(-0.6 * rates))


def test_rates_of_the_drift_matrix_that_are_rounding_do_not_move():
    rng = np.random.default_rng(0)
    modes = th.decompose(rng.normal(size=(5, 8)), rng.normal(size=(1, 5)))
    rates = np.linalg.eigvalsh(th.drift_matrix(modes))
    still = abs(rates) < 1e-12
    assert still.sum() == 5
    below = np.where(still, -1e-15, rates)
    assert np.all(th.mode_correlation([0.0, 1e6], below, 0.3)[:, still] == 1)
    assert np.all(th.mode_variance([0.0, 1e6], below, 0.3, 0.02)[:, still] == 0)
    assert np.all(th.mode_mean(1e6, below, 2.0, 1.0)[still] == 2)
    with pytest.raises(ArgumentError, match="1 of its entries are negative"):
        th.mode_variance(1.0, [-1e-6, 1.0], 0.3, 0.02)


def test_drift_rates_and_stationarity():
    perpendicular, parallel = th.drift_rates(0.1, 10, 0.02, 0.5, 50)
    assert perpendicular == pytest.approx(0.01 * 0.02 * 0.5 / 10)
    assert parallel == pytest.approx(50 * perpendicular)
    ratio = th.stationarity_ratio(0.1, 10, 0.5, 50, 0.8)
    assert ratio == pytest.approx(parallel / (0.1 * 0.02 * 0.8))


def test_shapes_outside_the_theory_are_refused():
    with pytest.raises(ArgumentError, match="W1 has shape"):
        th.decompose(np.ones((3, 4)), np.ones((1, 4)))
    with pytest.raises(ArgumentError, match="too few"):
        th.fit_exponent([1.0, 2.0], [1.0, 2.0])
    with pytest.raises(ArgumentError, match="D2"):
        th.local_exponent([0.0, 1.0], 0.0)


def test_networks_that_interpolate_or_are_zero_do_not_fluctuate():
    rng = np.random.default_rng(0)
    modes = th.decompose(rng.normal(size=(3, 5)), rng.normal(size=(1, 3)))
    assert not th.layer_covariance(modes, 0.1, 10, 1.0, samples=5).any()
    nothing = th.decompose(np.zeros((3, 5)), np.zeros((1, 3)))
    assert not th.layer_covariance(nothing, 0.1, 10, 1.0).any()
    assert not th.second_layer_variances(nothing.D1, nothing.D2, 0.1, 10, 1.0).any()

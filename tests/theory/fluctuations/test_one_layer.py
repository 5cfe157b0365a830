"""One-layer closed forms against brute force over samples, batches and random draws."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solve_continuous_lyapunov

from hyperribbon.core import ArgumentError
from hyperribbon.theory import fluctuations as th


def assert_equal(ours, brute, condition=1.0):
    """Relative difference below 1e-10, or what rounding leaves of a problem so ill-conditioned.

    Both sides carry rounding errors of up to about 100·ε·κ, which only exceeds 1e-10 for κ > 5e3.
    """
    scale = max(np.abs(brute).max(), 1e-300)
    allowed = max(1e-10, 100 * np.finfo(float).eps * condition)
    np.testing.assert_allclose(ours / scale, brute / scale, rtol=0, atol=allowed)


def regression(N, P, seed, noise=0.5):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, P))
    return X, rng.normal(size=N) @ X + noise * rng.normal(size=P)


sizes = st.integers(1, 7), st.integers(2, 12), st.integers(0, 10**6)


@settings(max_examples=40, deadline=None)
@given(*sizes)
def test_minimum_norm_solution_is_the_pseudo_inverse_and_stationary(N, P, seed):
    X, Y = regression(N, P, seed)
    w = th.minimum_norm_solution(X, Y)
    # The sensitivity of least squares grows with the square of the condition of X.
    assert_equal(w, np.linalg.pinv(X.T) @ Y, np.linalg.cond(X) ** 2)
    gradient, scale = X @ th.residuals(X, Y), np.linalg.norm(X) * np.linalg.norm(Y)
    np.testing.assert_allclose(gradient / scale, 0, atol=1e-10)


def all_batches(P, S, replacement):
    if replacement:
        return list(itertools.product(range(P), repeat=S))
    return list(itertools.combinations(range(P), S))


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(("P", "S"), [(5, 1), (5, 2), (4, 3), (4, 4)])
@pytest.mark.parametrize("at_solution", [True, False])
def test_noise_covariance_is_the_covariance_over_every_batch(P, S, replacement, at_solution):
    X, Y = regression(3, P, seed=P * S)
    w = None if at_solution else np.array([0.3, -1.0, 2.0])
    at = th.minimum_norm_solution(X, Y) if at_solution else w
    r = at @ X - Y
    means = np.array([(X * r)[:, list(b)].mean(axis=1) for b in all_batches(P, S, replacement)])
    expected = np.cov(means.T, bias=True)
    C = th.noise_covariance(X, Y, S, w, replacement=replacement)
    assert_equal(C, expected)


@settings(max_examples=30, deadline=None)
@given(*sizes)
def test_noise_at_the_solution_is_X_K_XT(N, P, seed):
    X, Y = regression(N, P, seed)
    K = np.diag(th.residual_weights(X, Y)) / P
    assert_equal(th.noise_covariance(X, Y, 3), X @ K @ X.T / 3, np.linalg.cond(X) if N < P else 1)


def test_noise_limit_is_reached_by_many_gaussian_samples():
    rng = np.random.default_rng(0)
    N, P, S = 3, 400_000, 4
    X = rng.normal(size=(N, P)) * np.array([[1.0], [0.5], [2.0]])
    u, deviation = rng.normal(size=N), np.array([0.4, -0.2, 0.3])
    Y = u @ X + 0.7 * rng.normal(size=P)
    H = np.diag([1.0, 0.25, 4.0])
    C = th.noise_covariance(X, Y, S, u + deviation)
    limit = th.noise_covariance_limit(H, S, 0.49, deviation)
    np.testing.assert_allclose(C, limit, atol=0.02 * np.abs(limit).max())
    np.testing.assert_allclose(th.noise_covariance_limit(H, S, 0.49), 0.49 * H / S)


def test_interpolating_network_has_exactly_no_noise_and_no_fluctuations():
    X, Y = regression(8, 5, seed=1)
    assert not th.noise_covariance(X, Y, 2).any()
    assert not th.discrete_covariance(X, Y, 0.1, 2).any()
    assert th.regression_loss(X, Y) == 0


def test_projector_variances_match_sampled_projectors():
    rng = np.random.default_rng(3)
    N, P = 4, 11
    bases = np.linalg.qr(rng.normal(size=(40_000, P, N)))[0]
    projectors = bases @ bases.transpose(0, 2, 1)
    diagonal, off = th.projector_variance(N, P)
    assert projectors[:, 0, 0].var() == pytest.approx(diagonal, rel=0.03)
    assert projectors[:, 0, 1].var() == pytest.approx(off, rel=0.03)
    # Exact sum rule: tr 𝒫² = N fixes the mean square of all entries.
    mean_square = P * (diagonal + (N / P) ** 2) + P * (P - 1) * off
    assert mean_square == pytest.approx(N, rel=1e-12)


def test_marchenko_pastur_edges_enclose_a_large_sample_spectrum():
    rng = np.random.default_rng(0)
    rates = np.linalg.eigvalsh(th.hessian(rng.normal(size=(400, 1200)) * 0.5))
    low, high = th.marchenko_pastur_edges(400, 1200, 0.25)
    assert rates[0] == pytest.approx(low, rel=0.05)
    assert rates[-1] == pytest.approx(high, rel=0.03)


def test_geometric_brownian_moments_match_integrated_paths():
    rng = np.random.default_rng(5)
    a, lr, S, t, steps = 1.3, 0.4, 2, 1.5, 3000
    dt = t / steps
    kicks = rng.normal(size=(steps, 1000)) * np.sqrt(dt * 2 * lr / S) * a
    w = np.prod(1 - a * dt + kicks, axis=0)
    mean, variance = th.geometric_brownian_moments(t, a, lr, S)
    assert w.mean() == pytest.approx(mean, abs=4 * w.std() / np.sqrt(1000))
    square = w**2
    expected = variance + mean**2
    assert square.mean() == pytest.approx(expected, abs=4 * square.std() / np.sqrt(1000))


def test_mode_covariance_grows_from_zero_to_the_stationary_one():
    X, Y = regression(4, 20, seed=2)
    H, C = th.hessian(X), th.noise_covariance(X, Y, 3)
    rates, V = np.linalg.eigh(H)
    late = V @ th.mode_covariance(1e4, rates, V.T @ C @ V, 0.1) @ V.T
    assert_equal(late, th.lyapunov_covariance(H, C, 0.1))
    assert not th.mode_covariance(0.0, rates, V.T @ C @ V, 0.1).any()
    start, solution = np.ones(4), np.zeros(4)
    np.testing.assert_allclose(
        th.mode_mean([0.0, 2.0], rates, start, solution)[1], np.exp(-2 * rates)
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6), st.floats(0.001, 0.2))
def test_stationary_covariance_solves_both_lyapunov_equations(N, seed, lr):
    X, Y = regression(N, 3 * N + 2, seed)
    H, C = th.hessian(X), th.noise_covariance(X, Y, 5)
    # The equations' own condition is that of H: their operator is H⊗1 + 1⊗H (− λH⊗H).
    condition = np.linalg.cond(H)
    M = th.lyapunov_covariance(H, C, lr)
    assert_equal(M, solve_continuous_lyapunov(H, lr * C), condition)
    unit = np.eye(N)
    operator = np.kron(H, unit) + np.kron(unit, H) - lr * np.kron(H, H)
    brute = np.linalg.solve(operator, lr * C.ravel()).reshape(N, N)
    assert_equal(th.lyapunov_covariance(H, C, lr, time="discrete"), brute, condition)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6))
def test_antisymmetric_part_completes_the_covariance(N, seed):
    X, Y = regression(N, 3 * N + 2, seed)
    H, C, lr = th.hessian(X), th.noise_covariance(X, Y, 5), 0.1
    Q = th.antisymmetric_part(H, C)
    np.testing.assert_array_equal(Q, -Q.T)
    M = th.lyapunov_covariance(H, C, lr)
    assert_equal(M, lr / 2 * np.linalg.solve(H, C + Q), np.linalg.cond(H))
    deviation = np.random.default_rng(seed).normal(size=(3, N))
    current = th.probability_current(deviation, H, C, lr)
    drift = deviation @ (-H + lr / 2 * C @ np.linalg.inv(M)).T
    # Both invert M, and the brute force cancels −Hδw against the noise's force.
    force = np.linalg.norm(H, 2) * np.linalg.norm(deviation)
    allowed = max(1e-10, 100 * np.finfo(float).eps * np.linalg.cond(M))
    np.testing.assert_allclose(current / force, drift / force, rtol=0, atol=allowed)


def test_detailed_balance_has_the_eigenvalues_of_the_printed_form():
    X, Y = regression(5, 12, seed=7)
    H, C = th.hessian(X), th.noise_covariance(X, Y, 2)
    printed = np.sort(np.linalg.eigvals(0.05 * np.linalg.solve(H, C)).real)
    ours = np.linalg.eigvalsh(th.detailed_balance_covariance(H, C, 0.1))
    assert_equal(ours, printed)
    proportional = th.detailed_balance_covariance(H, 3 * H, 0.1)
    assert_equal(proportional, th.lyapunov_covariance(H, 3 * H, 0.1))
    assert th.isotropic_variance(0.1, 3.0 * 4, 4) == pytest.approx(proportional[0, 0])


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("lr", [0.05, 0.6])
def test_discrete_covariance_is_the_fixed_point_over_every_batch(lr, replacement):
    N, P, S = 2, 5, 2
    X, Y = regression(N, P, seed=4)
    M = th.discrete_covariance(X, Y, lr, S, replacement=replacement)
    r = th.residuals(X, Y)
    following = np.zeros((N, N))
    batches = all_batches(P, S, replacement)
    for batch in batches:
        b = list(batch)
        A = np.eye(N) - lr * X[:, b] @ X[:, b].T / S
        kick = lr * X[:, b] @ r[b] / S
        following += A @ M @ A.T + np.outer(kick, kick)
    assert_equal(following / len(batches), M)


def test_learning_rates_beyond_stability_are_refused_with_the_limit():
    X, Y = regression(3, 30, seed=0)
    H, C = th.hessian(X), th.noise_covariance(X, Y, 4)
    limit = 2 / np.linalg.eigvalsh(H)[-1]
    with pytest.raises(ArgumentError, match="diverges"):
        th.lyapunov_covariance(H, C, 1.01 * limit, time="discrete")
    with pytest.raises(ArgumentError, match="feeds on the fluctuations"):
        th.discrete_covariance(X, Y, 0.95 * limit, 1)


def test_unusable_arguments_are_refused():
    X, Y = regression(3, 6, seed=0)
    with pytest.raises(ArgumentError, match="distinct samples"):
        th.noise_covariance(X, Y, 7, replacement=False)
    with pytest.raises(ArgumentError, match="diffuse"):
        th.lyapunov_covariance(np.diag([1.0, 0.0]), np.eye(2), 0.1)
    with pytest.raises(ArgumentError, match="negative eigenvalue"):
        th.lyapunov_covariance(np.diag([1.0, -1.0]), np.eye(2), 0.1)
    with pytest.raises(ArgumentError, match="does not have any"):
        th.lyapunov_covariance(np.eye(2), -np.eye(2), 0.1)
    with pytest.raises(ArgumentError, match="one target"):
        th.minimum_norm_solution(X, Y[:-1])
    assert th.relaxation_steps(np.diag([2.0, 0.5, 0.0]), 0.1) == pytest.approx(20)


def test_multiplicative_noise_has_the_moments_of_its_process():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(3, 3))
    H, lr, S, start = A @ A.T / 4, 0.2, 2, np.array([1.0, -0.5, 0.3])
    mean, covariance = th.multiplicative_moments(1.0, H, lr, S, start)
    dt, G = 1e-4, np.outer(start, start)
    for _ in range(10_000):  # the equation of the second moment itself
        change = -H @ G - G @ H + lr / S * (H @ G @ H + np.trace(H @ G) * H)
        G = G + dt * change
    np.testing.assert_allclose(covariance + np.outer(mean, mean), G, rtol=2e-3, atol=1e-5)
    t = np.array([0.7])
    one = th.multiplicative_moments(0.7, [[1.3]], lr, S, [2.0])
    printed = th.geometric_brownian_moments(t, 1.3, lr, S, 2.0)
    np.testing.assert_allclose(np.ravel(one[0]), printed[0])
    np.testing.assert_allclose(np.ravel(one[1]), printed[1])


def test_multiplicative_noise_is_that_of_sgd_on_fresh_samples():
    rng = np.random.default_rng(3)
    H, lr, S, chains, steps = np.diag([1.0, 0.4]), 0.02, 1, 40_000, 60
    w = np.tile([1.0, 1.0], (chains, 1))
    for _ in range(steps):  # no label noise, a new sample each step: P → ∞
        x = rng.normal(size=w.shape) * np.sqrt(np.diag(H))
        w -= lr * np.sum(w * x, axis=1, keepdims=True) * x
    mean, covariance = th.multiplicative_moments(lr * steps, H, lr, S, [1.0, 1.0])
    np.testing.assert_allclose(w.mean(axis=0), mean, rtol=0.02)
    np.testing.assert_allclose(np.cov(w.T), covariance, atol=0.06 * covariance.max())


def test_white_multiplicative_noise_vanishes_below_its_threshold():
    N, lr, S = 4, 1.0, 1
    edge = 2 * S / (lr * (N + 1))

    def growth(a):
        early, late = (
            np.trace(th.multiplicative_moments(t, a * np.eye(N), lr, S, np.ones(N))[1])
            for t in (100.0, 200.0)
        )
        return late / early

    assert growth(0.99 * edge) < 1 < growth(1.01 * edge)


def test_orders_of_the_noise_are_those_of_its_expansion():
    rng = np.random.default_rng(1)
    A = rng.normal(size=(3, 5))
    H, J, variance, lr, S = A @ A.T / 5, np.array([0.1, -0.2, 0.05]), 0.3, 0.2, 4
    C0, half, C1 = th.noise_orders(H, J, variance, lr, S)
    M = th.lyapunov_covariance(H, C0, lr / S)  # η⟨w₁w₁ᵀ⟩
    deviations = rng.multivariate_normal(np.zeros(3), M, size=20_000)
    shift = np.linalg.solve(H, J)
    drawn = np.array(
        [S * th.noise_covariance_limit(H, S, variance, shift + w) for w in deviations[:4000]]
    )
    at_rest = S * th.noise_covariance_limit(H, S, variance, shift)
    np.testing.assert_allclose(C0, at_rest)
    scatter = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (abs(drawn.mean(axis=0) - C0 - C1) < 5 * scatter).all()
    first = np.einsum("a,nb->nab", J, deviations @ H)
    first = first + first.transpose(0, 2, 1) + 2 * (deviations @ J)[:, None, None] * H
    assert half == pytest.approx(np.sqrt(np.mean(np.sum(first**2, axis=(1, 2)))), rel=0.03)
    with pytest.raises(ArgumentError, match="not unique"):
        th.noise_orders(np.diag([1.0, 0.0]), [0.0, 0.0], 1.0, 0.1, 1)


def test_samplers_have_the_covariance_of_their_chains():
    rng = np.random.default_rng(2)
    H, C, lr, T = np.diag([1.0, 0.5]), np.array([[1.0, 0.4], [0.4, 0.6]]), 0.02, 0.05
    root = np.linalg.cholesky(C)
    B = th.sampling_preconditioner(C, lr, T)
    posterior = T * np.linalg.inv(H)
    np.testing.assert_allclose(
        th.sampler_covariance(H, C, lr, preconditioner=B), posterior, atol=1e-15
    )
    cold = th.sampler_covariance(H, C, 1e-9, temperature=T)
    np.testing.assert_allclose(cold, posterior, atol=1e-7)
    np.testing.assert_allclose(
        th.sampler_covariance(H, C, lr), th.lyapunov_covariance(H, C, lr), rtol=1e-9
    )
    expected = th.sampler_covariance(H, C, lr, temperature=T)
    w, seen = np.zeros((4000, 2)), []
    for step in range(1200):
        noise = rng.normal(size=(2, *w.shape))
        w = w - lr * (w @ H + noise[0] @ root.T) + np.sqrt(2 * lr * T) * noise[1]
        if step > 600 and step % 100 == 0:
            seen.append(w.T @ w / len(w))
    np.testing.assert_allclose(np.mean(seen, axis=0), expected, atol=0.05 * expected.max())
    with pytest.raises(ArgumentError, match="no stationary state"):
        th.sampler_covariance(np.diag([1.0, 0.0]), np.zeros((2, 2)), 0.1, temperature=1.0)


def test_scaling_the_loss_scales_the_covariance_alike():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(3, 20)), rng.normal(size=20)
    H, C = th.hessian(X), th.noise_covariance(X, Y, 5)
    M = th.lyapunov_covariance(H, C, 0.1)
    np.testing.assert_allclose(th.lyapunov_covariance(3 * H, 9 * C, 0.1), 3 * M)

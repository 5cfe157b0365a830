"""Two-layer chains: exact steps, stationary covariance, drift, and the Langevin limit."""

import numpy as np
import pytest

from hyperribbon.core import ArgumentError
from hyperribbon.core.generators import numpy_generator
from hyperribbon.papers.simulation import chain_batches, descend_two_layer, simulate_two_layer
from hyperribbon.theory import fluctuations as th


def make_task(N_i, N_h, N_o, P, seed, target_variance=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_i, P)) / np.sqrt(N_i)
    Y = np.sqrt(target_variance) * rng.normal(size=(N_o, P))
    W1 = rng.normal(size=(N_h, N_i)) / np.sqrt(N_i)
    W2 = rng.normal(size=(N_o, N_h)) / np.sqrt(N_h)
    return X, Y, W1, W2


@pytest.fixture(scope="module")
def solved():
    X, Y, W1, W2 = make_task(8, 5, 1, 400, 0)
    return X, Y, *descend_two_layer(X, Y, W1, W2, lr=0.5)


def test_steps_are_those_of_plain_sgd():
    X, Y, W1, W2 = make_task(4, 3, 2, 9, 1)
    ensemble = simulate_two_layer(
        X, Y, W1, W2, lr=0.2, batch_size=3, record=[0, 5], chains=2, seed=7
    )
    stream = chain_batches(
        9, 3, 2, sampling="replacement", rng=numpy_generator(7, "chains", "sgd", "replacement")
    )
    first, second = [W1.copy(), W1.copy()], [W2.copy(), W2.copy()]
    for _ in range(5):
        for chain, batch in enumerate(next(stream)):
            rest = Y[:, batch] - second[chain] @ first[chain] @ X[:, batch]
            G = rest @ X[:, batch].T / 3
            first[chain], second[chain] = (
                first[chain] + 0.2 * second[chain].T @ G,
                second[chain] + 0.2 * G @ first[chain].T,
            )
    np.testing.assert_allclose(ensemble.W1[1], first, atol=1e-5)
    np.testing.assert_allclose(ensemble.W2[1], second, atol=1e-5)
    np.testing.assert_allclose(ensemble.W2[0], [W2, W2], atol=1e-6)


def test_descent_ends_at_the_regression_solution(solved):
    X, Y, W1, W2 = solved
    expected = Y @ X.T @ np.linalg.inv(X @ X.T)
    np.testing.assert_allclose(W2 @ W1, expected, atol=1e-8)


@pytest.mark.parametrize("dynamics", ["sgd", "flow"])
def test_second_layer_variances_match_the_linear_theory(solved, dynamics):
    X, Y, W1, W2 = solved
    modes = th.decompose(W1, W2)
    ensemble = simulate_two_layer(
        X, Y, W1, W2, lr=0.2, batch_size=500, record=[200], chains=600, dynamics=dynamics, seed=2
    )
    deviations = (ensemble.W2[0] - W2)[:, 0, :] @ modes.A
    theory = th.second_layer_variances(modes.D1, modes.D2, 0.2, 500, 1 - 8 / 400)[:, 0]
    ratio = deviations.var(axis=0) / theory
    assert ratio.mean() == pytest.approx(1, abs=0.12)
    assert abs(ratio - 1).max() < 0.4


def test_noise_shrinks_the_balance_at_the_derived_rate():
    X, Y, W1, W2 = make_task(6, 4, 1, 20_000, 3)
    W1, W2 = descend_two_layer(X, Y, W1, W2, lr=0.5)
    steps, lr, S = 40, 0.3, 20
    ensemble = simulate_two_layer(
        X, Y, W1, W2, lr=lr, batch_size=S, record=[0, steps], chains=1500, seed=1
    )
    balance = np.einsum("tcoh,tcok->thk", ensemble.W2, ensemble.W2) / 1500
    balance -= np.einsum("tchi,tcki->thk", ensemble.W1, ensemble.W1) / 1500
    rate, _ = th.drift_rates(lr, S, 1 / 6, 1.0, 6)
    # d⟨W₂ᵀW₂ − W₁W₁ᵀ⟩ = rate·(W₁W₁ᵀ − N_i W₂ᵀW₂) a step: its trace needs no basis.
    squares = (
        np.sum(ensemble.W1**2, axis=(1, 2, 3)) / 1500,
        np.sum(ensemble.W2**2, axis=(1, 2, 3)) / 1500,
    )
    growth = rate * steps * (squares[0].mean() - 6 * squares[1].mean())
    assert np.trace(balance[1] - balance[0]) == pytest.approx(growth, rel=0.1)


def test_divergence_is_named(solved):
    with pytest.raises(ArgumentError, match="diverged"):
        simulate_two_layer(*solved, lr=60.0, batch_size=5, record=[3000], chains=2)
    with pytest.raises(ArgumentError, match="gradient descent left"):
        descend_two_layer(*solved[:2], 2 * solved[2], solved[3], lr=1e-3, max_steps=10)


def test_running_covariance_is_that_of_the_recorded_path(solved):
    X, Y, W1, W2 = solved
    run = simulate_two_layer(
        X, Y, W1, W2, lr=0.2, batch_size=50, record=np.arange(101), chains=3, every=10, burn_in=40
    )
    kept = slice(50, 101, 10)
    rows = np.concatenate(
        [
            np.moveaxis(run.W1[kept], -1, -2).reshape(6, 3, -1),
            np.moveaxis(run.W2[kept], -1, -2).reshape(6, 3, -1),
        ],
        axis=2,
    )
    assert run.samples == 18
    np.testing.assert_allclose(run.mean, rows.mean(axis=(0, 1)), atol=1e-6)
    expected = np.mean([np.cov(moment.astype(float).T) for moment in rows], axis=0)
    np.testing.assert_allclose(run.covariance, expected, atol=1e-6 * expected.max())


def test_relaxation_time_is_that_of_the_slowest_curvature(solved):
    X, Y, W1, W2 = solved
    run = simulate_two_layer(
        X, Y, W1, W2, lr=0.2, batch_size=500, record=[400], chains=150, every=10, seed=3
    )
    J = np.hstack([np.kron(np.eye(8), W2), np.kron(W1.T, np.eye(1))])
    rates = np.linalg.eigvalsh(J.T @ (X @ X.T / 400) @ J)
    slowest = rates[rates > 1e-9 * rates[-1]][0]
    assert run.relaxation_steps == pytest.approx(1 / (0.2 * slowest))
    assert run.burn_in == int(np.ceil(3.5 / (0.2 * slowest)))
    modes = th.decompose(W1, W2)
    M = th.layer_covariance(modes, 0.2, 500, 1 - 8 / 400)
    second = th.second_layer_covariance(modes, M)
    assert np.trace(run.covariance[40:, 40:]) == pytest.approx(np.trace(second), rel=0.15)


def test_unusable_two_layer_runs_are_refused(solved):
    X, Y, W1, W2 = solved
    options = {"lr": 0.1, "batch_size": 5, "chains": 2}
    with pytest.raises(ArgumentError, match=r"^W2=.*Give an array of shape \(1, 5\)"):
        simulate_two_layer(X, Y, W1, W2.T, record=[5], **options)
    with pytest.raises(ArgumentError, match="ends before"):
        simulate_two_layer(X, Y, W1, W2, record=[5], every=1, **options)
    with pytest.raises(ArgumentError, match="distinct"):
        simulate_two_layer(
            X, Y, W1, W2, record=[5], sampling="shuffle", **{**options, "batch_size": 401}
        )

"""Two layers at any weights: against finite differences, brute force over samples, and SGD."""

import numpy as np
import pytest

from hyperribbon.core import ArgumentError
from hyperribbon.papers.simulation import descend_two_layer, simulate_two_layer
from hyperribbon.theory import fluctuations as th

WIDTHS = [(5, 3, 1), (5, 3, 2), (3, 6, 2), (4, 4, 3), (2, 3, 5)]


def network(N_i, N_h, N_o, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N_h, N_i)), rng.normal(size=(N_o, N_h))


def task(N_i, N_o, P, seed=0):
    """Correlated inputs, correlated targets that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_i, N_i)) @ rng.normal(size=(N_i, P))
    return X, rng.normal(size=(N_o, N_i)) @ X + rng.normal(size=(N_o, N_o)) @ rng.normal(
        size=(N_o, P)
    )


def solution(N_i, N_h, N_o, P, seed=0, scale=1.0):
    """Inputs of unit covariance on average, targets of noise, weights with W₂W₁ = w*."""
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(N_i, P)), rng.normal(size=(N_o, P))
    W1, W2 = (scale * part for part in network(N_i, N_h, N_o, seed))
    W1 = W1 + np.linalg.pinv(W2) @ (Y @ np.linalg.pinv(X) - W2 @ W1)
    return X, Y, W1, W2


def loss(z, X, Y, N_h):
    W1 = z[: N_h * len(X)].reshape(len(X), N_h).T
    W2 = z[N_h * len(X) :].reshape(N_h, len(Y)).T
    return np.sum((Y - W2 @ W1 @ X) ** 2) / (2 * X.shape[1])


def stack(W1, W2):
    return np.concatenate([W1.T.ravel(), W2.T.ravel()])


@pytest.mark.parametrize("widths", WIDTHS)
def test_hessian_is_that_of_the_loss_anywhere(widths):
    N_i, N_h, N_o = widths
    X, Y = task(N_i, N_o, 20)
    W1, W2 = network(*widths)
    H = th.two_layer_hessian(W1, W2, X @ X.T / 20, Y @ X.T / 20)
    z, rng = stack(W1, W2), np.random.default_rng(1)
    for _ in range(4):
        u, v = rng.normal(size=(2, len(z)))
        h = 1e-2  # the loss is a quartic: central differences to fourth order are nearly exact

        def along(a, b, u=u, v=v):
            return loss(z + a * u + b * v, X, Y, N_h)

        mixed = along(h, h) - along(h, -h) - along(-h, h) + along(-h, -h)
        wide = along(2 * h, 2 * h) - along(2 * h, -2 * h) - along(-2 * h, 2 * h)
        wide += along(-2 * h, -2 * h)
        found = (16 * mixed / (4 * h**2) - wide / (4 * h**2)) / 12
        assert found == pytest.approx(u @ H @ v, rel=1e-6, abs=1e-6 * np.abs(H).max())


@pytest.mark.parametrize("widths", WIDTHS)
def test_reduced_loss_is_the_rise_of_the_loss_to_second_order(widths):
    N_i, N_h, N_o = widths
    X, Y, W1, W2 = solution(*widths, 40)
    if N_h < min(N_i, N_o) or N_o > N_h:
        W2 = np.random.default_rng(0).normal(size=W2.shape)
        Y = W2 @ W1 @ X  # any weights are a solution of their own targets
    rng = np.random.default_rng(2)
    d1, d2 = 1e-4 * rng.normal(size=W1.shape), 1e-4 * rng.normal(size=W2.shape)
    z, d = stack(W1, W2), stack(d1, d2)
    rise = (loss(z + d, X, Y, N_h) + loss(z - d, X, Y, N_h)) / 2 - loss(z, X, Y, N_h)
    Sxx = X @ X.T / 40
    assert th.reduced_loss(W1, W2, d1, d2, Sxx) == pytest.approx(rise, rel=1e-5)
    H = th.two_layer_hessian(W1, W2, Sxx)
    assert th.reduced_loss(W1, W2, d1, d2, Sxx) == pytest.approx(d @ H @ d / 2)


def test_moment_covariances_of_samples_are_those_of_all_minibatches():
    X, Y = task(2, 3, 4)
    xx, yx, cross = th.sample_moment_covariances(X, Y, 2)
    pairs = [(a, b) for a in range(4) for b in range(4)]
    batches = [X[:, list(p)] @ X[:, list(p)].T / 2 - X @ X.T / 4 for p in pairs]
    others = [Y[:, list(p)] @ X[:, list(p)].T / 2 - Y @ X.T / 4 for p in pairs]
    for found, left, right in ((xx, batches, batches), (yx, others, others)):
        brute = np.mean([np.multiply.outer(a, b) for a, b in zip(left, right, strict=True)], axis=0)
        np.testing.assert_allclose(found, brute, atol=1e-12)
    brute = np.mean([np.multiply.outer(a, b) for a, b in zip(batches, others, strict=True)], axis=0)
    np.testing.assert_allclose(cross, brute, atol=1e-12)
    distinct = [p for p in pairs if p[0] != p[1]]
    few = [X[:, list(p)] @ X[:, list(p)].T / 2 - X @ X.T / 4 for p in distinct]
    brute = np.mean([np.multiply.outer(a, a) for a in few], axis=0)
    found = th.sample_moment_covariances(X, Y, 2, replacement=False)[0]
    np.testing.assert_allclose(found, brute, atol=1e-12)


def test_gaussian_noise_is_the_limit_of_many_samples_at_any_weights():
    N_i, N_h, N_o, P = 3, 4, 2, 400_000
    X, Y = task(N_i, N_o, P, seed=5)
    W1, W2 = network(N_i, N_h, N_o, seed=3)
    moments = (X @ X.T / P, Y @ X.T / P, Y @ Y.T / P)
    found = th.gaussian_noise_covariances(W1, W2, *moments, 7)
    C = th.two_layer_noise(X, Y, W1, W2, 7)
    first = C[:12, :12].reshape(N_i, N_h, N_i, N_h).transpose(1, 0, 3, 2)
    second = C[12:, 12:].reshape(N_h, N_o, N_h, N_o).transpose(1, 0, 3, 2)
    cross = C[:12, 12:].reshape(N_i, N_h, N_h, N_o).transpose(1, 0, 3, 2)
    for ours, brute in zip(found, (first, second, cross), strict=True):
        np.testing.assert_allclose(ours, brute, atol=0.03 * abs(brute).max())


def test_gaussian_noise_at_a_white_solution_is_that_of_the_paper():
    W1, W2 = network(4, 3, 2)
    w, x2, y2 = W2 @ W1, 0.3, 5.0
    Syy = y2 * np.eye(2) + x2 * w @ w.T  # unexplained variance y2
    found = th.gaussian_noise_covariances(W1, W2, x2 * np.eye(4), x2 * w, Syy, 10)
    printed = th.layer_noise_covariances(W1, W2, th.noise_strength(0.1, 10, x2, y2))
    for ours, theirs in zip(found, printed, strict=True):
        np.testing.assert_allclose(0.1 * ours, theirs, atol=1e-12)


@pytest.mark.parametrize("widths", WIDTHS)
def test_closed_forms_hold_for_any_widths(widths):
    N_i, _, N_o = widths
    W1, W2 = network(*widths)
    modes = th.decompose(W1, W2)
    J = np.hstack([np.kron(np.eye(N_i), W2), np.kron(W1.T, np.eye(N_o))])
    values = np.linalg.eigvalsh(J.T @ J)[::-1]
    ours = th.drift_eigenvalues(modes)
    np.testing.assert_allclose(ours[: N_o * N_i], values[: N_o * N_i], rtol=1e-9)
    assert not ours[N_o * N_i :].any()
    np.testing.assert_allclose(np.linalg.eigvalsh(th.drift_matrix(modes))[::-1], ours, atol=1e-9)
    full = 0.1 / 20 * np.linalg.pinv(J) @ J
    M = th.layer_covariance(modes, 0.1, 10, 1.0)
    n = W1.size
    np.testing.assert_allclose(th.first_layer_covariance(modes, M), full[:n, :n], atol=1e-12)
    np.testing.assert_allclose(th.second_layer_covariance(modes, M), full[n:, n:], atol=1e-12)
    variances = th.second_layer_variances(modes.D1, modes.D2, 0.1, 10, 1.0)
    np.testing.assert_allclose(
        np.sort(variances.ravel()), np.linalg.eigvalsh(full[n:, n:]), atol=1e-12
    )


def test_covariance_does_not_depend_on_the_inputs_where_errors_do_not():
    N_i, N_h, N_o, P = 4, 3, 2, 64
    # Errors ±1 in all combinations with each sample: independent of x in these very samples.
    rng = np.random.default_rng(0)
    half = rng.normal(size=(N_i, N_i)) @ rng.normal(size=(N_i, P))
    X = np.hstack([half] * 4)
    W1, W2 = network(N_i, N_h, N_o)
    signs = np.repeat(np.array([[1, 1, -1, -1], [1, -1, 1, -1]]), P, axis=1)
    M = th.two_layer_covariance(X, W2 @ W1 @ X + 0.5 * signs, W1, W2, 0.1, 10)
    J = np.hstack([np.kron(np.eye(N_i), W2), np.kron(W1.T, np.eye(N_o))])
    np.testing.assert_allclose(M, 0.1 * 0.25 / 20 * np.linalg.pinv(J) @ J, atol=1e-10)


def test_weights_that_are_no_solution_are_refused():
    X, Y = task(4, 1, 30)
    W1, W2 = network(4, 3, 1)
    with pytest.raises(ArgumentError, match="no solution"):
        th.two_layer_covariance(X, Y, W1, W2, 0.1, 10)
    with pytest.raises(ArgumentError, match="cannot reach"):
        th.decompose(np.ones((2, 3)), np.ones((4, 2)))


@pytest.mark.parametrize("N_o", [1, 2])
@pytest.mark.parametrize("white", [True, False])
def test_a_balanced_start_ends_in_the_zero_balanced_solution(N_o, white):
    N_i, N_h, P = 4, 3, 50
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N_i, P))
    scale = np.linalg.cholesky(np.linalg.inv(X @ X.T / P)).T if white else np.diag([2, 1, 1, 0.5])
    X = 0.7 * scale @ X
    Y = rng.normal(size=(N_o, N_i)) @ X + rng.normal(size=(N_o, P))
    U, _, Vt = np.linalg.svd(rng.normal(size=(N_o, N_i)), full_matrices=False)
    R = np.linalg.qr(rng.normal(size=(N_h, N_h)))[0][:, :N_o]
    W1, W2 = 0.1 * R @ Vt, 0.1 * U @ R.T
    assert abs(th.imbalance(W1, W2)).max() < 1e-15
    W1, W2 = descend_two_layer(X, Y, W1, W2, lr=1e-3, tol=1e-9)
    first, second = th.balanced_products(Y @ np.linalg.pinv(X))
    np.testing.assert_allclose(W1.T @ W1, first, atol=5e-3 * abs(first).max())
    np.testing.assert_allclose(W2 @ W2.T, second, atol=5e-3 * abs(second).max())


def test_gradient_flow_conserves_the_imbalance():
    X, Y = task(4, 2, 30)
    start = network(4, 3, 2)
    before = th.imbalance(*start)

    def change(lr, time=0.5):
        W1, W2 = start
        for _ in range(round(time / lr)):
            rest = (Y - W2 @ W1 @ X) @ X.T / 30
            W1, W2 = W1 + lr * W2.T @ rest, W2 + lr * rest @ W1.T
        return abs(th.imbalance(W1, W2) - before).max()

    assert change(2e-4) < 0.02 * abs(before).max()
    assert change(2e-4) == pytest.approx(change(4e-4) / 2, rel=0.1)  # the rest is the step


def test_imbalance_drifts_by_the_mean_over_all_minibatches():
    X, Y = task(3, 2, 4)
    W1, W2 = network(3, 2, 2)
    lr, changes = 0.01, []
    for a in range(4):
        for b in range(4):
            x, y = X[:, [a, b]], Y[:, [a, b]]
            rest = (y - W2 @ W1 @ x) @ x.T / 2
            changes.append(th.imbalance(W1 + lr * W2.T @ rest, W2 + lr * rest @ W1.T))
    brute = np.mean(changes, axis=0) - th.imbalance(W1, W2)
    np.testing.assert_allclose(th.imbalance_drift(X, Y, W1, W2, lr, 2), brute, atol=1e-12)


def test_drift_is_that_of_white_inputs_and_stays_on_the_solutions():
    N_i, N_h, N_o, P = 6, 4, 2, 200_000
    X, Y, W1, W2 = solution(N_i, N_h, N_o, P)
    strength = th.noise_strength(0.1, 5, 1.0, 1.0)
    expected = 0.1 * strength * (N_o * W1 @ W1.T - N_i * W2.T @ W2)
    found = th.imbalance_drift(X, Y, W1, W2, 0.1, 5)
    np.testing.assert_allclose(found, expected, atol=0.03 * abs(expected).max())
    d1, d2 = th.mean_drift(X, Y, W1, W2, 0.1, 5)
    scale = abs(found).max()
    np.testing.assert_allclose(W2 @ d1 + d2 @ W1, 0, atol=1e-9 * scale)
    moved = W2.T @ d2 + d2.T @ W2 - d1 @ W1.T - W1 @ d1.T
    np.testing.assert_allclose(moved, found, atol=1e-9 * scale)


@pytest.mark.parametrize("widths", [(5, 3, 2), (3, 5, 1)])
def test_fluctuations_and_drift_are_those_of_sgd(widths):
    """Several outputs, correlated inputs, few samples, and a hidden layer wider than the input."""
    N_i, N_h, N_o = widths
    P, lr, S, chains, steps = 60, 0.05, 30, 3000, 400
    X, Y, W1, W2 = solution(N_i, N_h, N_o, P, seed=1)
    X, Y = np.diag(np.linspace(0.7, 1.4, N_i)) @ X, 0.3 * Y
    W2 = np.linalg.qr(W2.T)[0].T  # rows of one length, so that no mode is slow
    W1 = W1 + np.linalg.pinv(W2) @ (Y @ np.linalg.pinv(X) - W2 @ W1)
    run = simulate_two_layer(
        X, Y, W1, W2, lr=lr, batch_size=S, record=[0, steps], chains=chains, every=20, burn_in=200
    )
    M = th.two_layer_covariance(X, Y, W1, W2, lr, S, time="discrete")
    n = W1.size
    assert run.covariance is not None
    for block in (slice(n), slice(n, None)):
        assert np.trace(run.covariance[block, block]) == pytest.approx(
            np.trace(M[block, block]), rel=0.05
        )
    assert np.linalg.norm(run.covariance - M) < 0.12 * np.linalg.norm(M)
    drift = np.mean([th.imbalance(a, b) for a, b in zip(run.W1[1], run.W2[1], strict=True)], axis=0)
    drift = (drift - th.imbalance(W1, W2)) / steps
    expected = th.imbalance_drift(X, Y, W1, W2, lr, S)
    assert np.linalg.norm(drift - expected) < 0.15 * np.linalg.norm(expected)


def test_excess_variance_of_two_outputs_lies_along_the_solutions_and_grows():
    """Weights diffuse along W₂W₁ = w*, the modes that linear theory takes as still."""
    N_i, N_h, N_o, P, lr, S, chains = 6, 4, 2, 300, 0.1, 50, 2000
    X, Y, W1, W2 = solution(N_i, N_h, N_o, P, seed=2)
    W2 = np.linalg.qr(W2.T)[0].T
    W1 = W1 + np.linalg.pinv(W2) @ (Y @ np.linalg.pinv(X) - W2 @ W1)
    steps = [100, 200]
    run = simulate_two_layer(X, Y, W1, W2, lr=lr, batch_size=S, record=steps, chains=chains)
    J = np.hstack([np.kron(np.eye(N_i), W2), np.kron(W1.T, np.eye(N_o))])
    inside = np.linalg.pinv(J) @ J
    M = th.two_layer_covariance(X, Y, W1, W2, lr, S, time="discrete")
    still = []
    for first, second in zip(run.W1.astype(float), run.W2.astype(float), strict=True):
        rows = np.array([stack(a, b) for a, b in zip(first, second, strict=True)])
        covariance = np.cov(rows.T)
        assert np.trace(inside @ covariance) == pytest.approx(np.trace(M), rel=0.1)
        still.append(np.trace(covariance) - np.trace(inside @ covariance))
    assert still[0] > 0.01 * np.trace(M)
    assert still[1] == pytest.approx(2 * still[0], rel=0.35)

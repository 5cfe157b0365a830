import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory.ribbons import Ribbon, several_kernels, sgd

FIGURE_5 = {"sigma_star": 2**0.5, "sigma_w": 0.1**0.5, "steps": 50}


def by_powers(decay, spread, targets, steps, kicks=0.0):
    """P from Eq. (5) as it stands: a loop over t of matrix powers, any symmetric matrices."""
    size = len(targets)
    power, noise = np.eye(size), np.zeros((size, size))
    second, mean = np.zeros((size, size)), np.zeros(size)
    for _ in range(steps):
        second += power @ (spread + np.outer(targets, targets)) @ power + noise
        mean += power @ targets
        noise = decay @ noise @ decay + kicks
        power = power @ decay
    return second / steps - np.outer(mean, mean) / steps**2


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 25),
    slope=st.floats(0, 2),
    alpha=st.floats(0.05, 1.9),
    steps=st.integers(1, 120),
    ratio=st.floats(0.1, 30),
    decay=st.sampled_from([0.0, 0.03]),
    batch=st.sampled_from([None, 5]),
)
def test_closed_form_is_the_sum_over_steps(n, slope, alpha, steps, ratio, decay, batch):
    ribbon = Ribbon.exponential(
        n, slope, sigma_star=ratio, alpha=alpha, steps=steps, weight_decay=decay, batch_size=batch
    )
    K = np.diag(ribbon.eigenvalues)
    K_decayed = K + decay * np.eye(n)
    expected = by_powers(
        np.eye(n) - alpha * K_decayed,
        K,
        np.linalg.solve(K_decayed, K @ ribbon.targets),
        steps,
        0.0 if batch is None else alpha**2 / batch * K @ K,
    )
    np.testing.assert_allclose(ribbon.P, expected, atol=1e-10 * np.abs(ribbon.P1).max())


def test_figure_5_numbers():
    ribbon = Ribbon.exponential(50, 0.2, **FIGURE_5)
    at = [0, 1, 2, 4, 9]
    expected = [0.270137, 0.0543999, 0.0104106, 0.00174308, 0.00114990]
    np.testing.assert_allclose(ribbon.spectrum()[at], expected, rtol=1e-5)
    for part, values in {
        "P1": [0.422915, 0.145553, 0.0349079],
        "P1_y": [0.421859, 0.144408, 0.0337051],
        "P1_sigma": [0.002, 0.00169309, 0.00150412],
    }.items():
        np.testing.assert_allclose(ribbon.spectrum(part)[:3], values, rtol=1e-5)
    below = ribbon.spectrum("P1_y") < ribbon.spectrum("P1_sigma")
    assert below.argmax() == 4
    assert ribbon.dimensions() == 9


def test_tiny_rates_keep_their_digits():
    ribbon = Ribbon.exponential(40, 1.0, steps=10, batch_size=2)
    lam = ribbon.eigenvalues[-1]
    assert ribbon.P1_sigma[-1] == pytest.approx(lam, rel=1e-12)
    plain = Ribbon.exponential(40, 1.0, sigma_w=0.0, steps=10, batch_size=2)
    assert plain.P1_sigma[-1] == pytest.approx(lam**2 / 2 * 4.5, rel=1e-12)


def test_eigenvalue_zero_carries_no_variance():
    ribbon = Ribbon([1.0, 0.5, 0.0], [1.0, 1.0, 1.0], 1.0, 0.9, 20)
    smaller = Ribbon([1.0, 0.5], [1.0, 1.0], 1.0, 0.9, 20)
    np.testing.assert_allclose(ribbon.P[2], 0, atol=1e-15)
    np.testing.assert_allclose(ribbon.P[:2, :2], smaller.P, rtol=1e-12)


@pytest.mark.parametrize("shape", [(12, 30), (30, 12)])
def test_data_and_kernel_constructors_match_trajectories(shape):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal(shape), rng.standard_normal(shape[0])
    n = shape[0]
    K = X @ X.T / n
    alpha = 0.7 / np.linalg.eigvalsh(K)[-1]
    P = by_powers(np.eye(n) - alpha * K, 0.25 * K, y / np.sqrt(n), 15)
    expected = np.linalg.eigvalsh(P)[::-1]
    from_data = Ribbon.from_data(X, y, 0.5, alpha, 15).spectrum()
    from_kernel = Ribbon.from_kernel(X @ X.T, y, 0.5, alpha, 15).spectrum()
    np.testing.assert_allclose(from_data, expected[: min(shape)], atol=1e-12)
    np.testing.assert_allclose(from_kernel, expected[: min(shape)], atol=1e-12)


def test_several_outputs_are_the_covariance_in_n_times_c_dimensions():
    rng = np.random.default_rng(1)
    lam = np.sort(rng.random(6))[::-1]
    Y = rng.standard_normal((6, 3))
    ribbon = Ribbon(lam, Y, 0.5, 0.9, 12)
    K = np.kron(np.diag(lam), np.eye(3))
    expected = by_powers(np.eye(18) - 0.9 * K, 0.25 * K, Y.ravel(), 12)
    np.testing.assert_allclose(ribbon.P, expected, atol=1e-12)


def test_monte_carlo_converges_as_one_over_root_n():
    rng = np.random.default_rng(2)
    ribbon = Ribbon.exponential(12, 0.3, sigma_star=2.0, steps=20)
    powers = (1 - ribbon.eigenvalues[:, None]) ** np.arange(20)

    def error(starts):
        # For each initialisation the trajectory is exact; only the draws of r₀ are random.
        initial = rng.standard_normal((starts, 12)) * np.sqrt(ribbon.eigenvalues) - ribbon.targets
        points = (initial[:, :, None] * powers).transpose(0, 2, 1).reshape(-1, 12)
        centred = points - points.mean(axis=0)
        return np.linalg.norm(centred.T @ centred / len(points) - ribbon.P)

    counts = np.array([40, 160, 640, 2560])
    errors = [np.mean([error(count) for _ in range(12)]) for count in counts]
    rate = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    # Twelve repetitions give each mean error about 10%, hence the exponent about 0.03.
    assert rate == pytest.approx(-0.5, abs=0.1)


@pytest.mark.parametrize("noise", ["exact", "constant"])
def test_sgd_second_moments(noise):
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((8, 20)), rng.standard_normal(8)
    alpha = 0.4 / np.linalg.eigvalsh(X @ X.T / 8)[-1]
    found = sgd(X, y, 0.5, alpha, 10, 4, noise)
    if noise == "constant":
        closed = Ribbon.from_data(X, y, 0.5, alpha, 10, batch_size=4)
        np.testing.assert_allclose(found.spectrum(), closed.spectrum(), rtol=1e-9)
        assert found.dimensions() == closed.dimensions()
        return
    weights = 0.5 * rng.standard_normal((40_000, 20))
    total, mean = np.zeros((8, 8)), np.zeros(8)
    for _ in range(10):
        residuals = weights @ X.T - y
        total += residuals.T @ residuals / len(weights) / 8
        mean += residuals.mean(axis=0) / np.sqrt(8)
        batch = rng.integers(0, 8, (len(weights), 4))
        errors = np.take_along_axis(residuals, batch, axis=1)
        weights -= alpha / 4 * np.einsum("rb,rbd->rd", errors, X[batch])
    simulated = total / 10 - np.outer(mean, mean) / 100
    # Entries are means over 40,000 runs: about half a percent of the scale each.
    np.testing.assert_allclose(simulated, found.P, atol=0.02 * np.abs(found.P).max())


def test_sgd_that_diverges_says_so():
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((20, 40)), rng.standard_normal(20)
    alpha = 1.0 / np.linalg.eigvalsh(X @ X.T / 20)[-1]
    with pytest.raises(ArgumentError, match="diverges"):
        sgd(X, y, 1.0, alpha, 2000, 1)


def test_several_kernels_match_the_loop_and_one_kernel_is_a_ribbon():
    rng = np.random.default_rng(5)
    factors = rng.standard_normal((3, 10, 15))
    grams = [F @ F.T for F in factors]
    y = rng.standard_normal(10)
    alpha = 0.9 / max(np.linalg.eigvalsh(G / 10)[-1] for G in grams)
    found = several_kernels(grams, y, 0.3, alpha, 14)
    second, mean = np.zeros((10, 10)), np.zeros(10)
    for gram in grams:
        K = gram / 10
        for t in range(14):
            power = np.linalg.matrix_power(np.eye(10) - alpha * K, t)
            second += power @ (0.09 * K + np.outer(y, y) / 10) @ power / 42
            mean += power @ y / np.sqrt(10) / 42
    np.testing.assert_allclose(found.P, second - np.outer(mean, mean), atol=1e-12)
    single = Ribbon.from_kernel(grams[0], y, 0.3, alpha, 14)
    np.testing.assert_allclose(
        several_kernels(grams[:1], y, 0.3, alpha, 14).spectrum(), single.spectrum(), atol=1e-12
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"alpha": 2.1}, "diverges"),
        ({"steps": 0}, "whole number"),
        ({"eigenvalues": [0.5, 1.0]}, "descending"),
        ({"eigenvalues": [1.0, -0.1]}, "positive semi-definite"),
        ({"targets": [1.0]}, "eigenvalues"),
        ({"sigma_w": -1.0}, "sigma_w"),
    ],
)
def test_bad_arguments_are_named(change, match):
    good = {
        "eigenvalues": [1.0, 0.5],
        "targets": [1.0, 1.0],
        "sigma_w": 1.0,
        "alpha": 0.5,
        "steps": 3,
    }
    with pytest.raises(ArgumentError, match=match):
        Ribbon(**{**good, **change})

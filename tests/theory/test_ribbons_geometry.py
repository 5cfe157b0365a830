"""Equations beside the main one, each against a sum, a solver or a simulation."""

import numpy as np
import pytest

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory.ribbons import (
    Ribbon,
    gaussian_kernel_eigenvalues,
    lyapunov_form,
    target_norm,
    taylor_ribbon,
    trajectory_covariance,
)


@pytest.fixture
def rng():
    return np.random.default_rng(4)


def test_the_covariance_of_runs_is_that_of_all_their_points(rng):
    runs = [rng.standard_normal((length, 6)) for length in (3, 8, 1)]
    points = np.concatenate(runs)
    expected = np.cov(points.T, ddof=0) / 6
    np.testing.assert_allclose(trajectory_covariance(runs), expected, atol=1e-15)
    several = [run.reshape(len(run), 3, 2) for run in runs]
    np.testing.assert_allclose(trajectory_covariance(several), 2 * expected, atol=1e-15)
    shifted = [run - 5 * np.arange(6) for run in runs]
    np.testing.assert_allclose(trajectory_covariance(shifted), expected, atol=1e-14)


@pytest.mark.parametrize("runs", [[], [np.zeros((2, 3)), np.zeros((2, 4))]])
def test_runs_of_other_samples_are_refused(runs):
    with pytest.raises(ArgumentError, match="same samples"):
        trajectory_covariance(runs)


def test_trained_models_have_the_covariance_at_the_snapshots_taken(rng):
    X, y = rng.standard_normal((5, 8)), rng.standard_normal(5)
    alpha, times = 0.9 / np.linalg.eigvalsh(X @ X.T / 5)[-1], (0, 1, 4, 30, 100)
    w = 0.7 * rng.standard_normal((40_000, 8))
    runs = []
    for step in range(max(times) + 1):
        residuals = w @ X.T - y
        if step in times:
            runs.append(residuals)
        w = w - alpha * residuals @ X / 5
    measured = trajectory_covariance(np.swapaxes(np.array(runs), 0, 1))
    U = np.linalg.svd(X, full_matrices=False)[0]
    predicted = U @ Ribbon.from_data(X, y, 0.7, alpha, 1).at(times) @ U.T
    # The standard error of an entry over N runs is about √(2/N) = 0.7% of the largest.
    np.testing.assert_allclose(measured, predicted, atol=0.02 * np.abs(predicted).max())


@pytest.mark.parametrize("alpha", [1e-9, 0.7, 1.0, 1.8])
@pytest.mark.parametrize("outputs", [1, 2])
def test_snapshots_at_every_step_are_the_whole_ribbon(rng, alpha, outputs):
    eigenvalues = np.array([1.0, 0.6, 0.01, 0.0])
    Y = rng.standard_normal((4, outputs)) if outputs > 1 else rng.standard_normal(4)
    factor = rng.standard_normal((4, 4))
    for start in (None, factor @ factor.T):
        ribbon = Ribbon(eigenvalues, Y, 0.3, alpha, 9, start=start)
        every = ribbon.at(range(9))
        np.testing.assert_allclose(every, ribbon.P, atol=1e-14 * np.abs(ribbon.P).max())
        coupling = np.outer(Y.ravel(), Y.ravel())
        off = ~np.eye(len(every), dtype=bool) & (np.abs(ribbon.P) > 0) & (start is None)
        np.testing.assert_allclose((every / coupling)[off], (ribbon.P / coupling)[off], rtol=1e-6)


def test_times_that_cannot_be_are_refused():
    ribbon = Ribbon.exponential(5, 0.2)
    for times in ([], [-1], [0.5]):
        with pytest.raises(ArgumentError, match="times"):
            ribbon.at(times)
    with pytest.raises(ArgumentError, match="batch_size"):
        Ribbon.exponential(5, 0.2, batch_size=2).at([1])


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_the_lyapunov_equation_has_the_part_of_the_targets_as_its_solution(decay):
    ribbon = Ribbon.exponential(12, 0.4, alpha=0.8, steps=30, rng=2, weight_decay=decay)
    form = lyapunov_form(ribbon)
    np.testing.assert_allclose(form.gramian, 30 * ribbon.P1_y, rtol=1e-9, atol=1e-12)
    assert np.linalg.matrix_rank(form.Q) <= 2 and (form.A < 0).all()
    with pytest.raises(ArgumentError, match="one output"):
        lyapunov_form(Ribbon([1.0, 0.0], [1.0, 1.0], 1.0, 0.5, 4))


def test_the_norm_of_targets_has_the_moments_of_drawn_ones(rng):
    eigenvalues = np.exp(-0.2 * np.arange(50))
    norm = target_norm(eigenvalues, 1.5)
    drawn = 1.5**2 * (eigenvalues * rng.standard_normal((200_000, 50)) ** 2).sum(axis=1)
    assert norm.mean == pytest.approx(drawn.mean(), rel=5 * 0.45 / 200_000**0.5)
    assert norm.std == pytest.approx(drawn.std(), rel=0.02)
    assert norm.std / norm.mean == pytest.approx((2 * np.tanh(0.1)) ** 0.5, rel=1e-3)
    for t in np.array([0.5, 1, 2, 4, 8, 16]) * norm.std:
        assert (np.abs(drawn - norm.mean) > t).mean() <= norm.tail(t)
    assert norm.tail(1e-9) == 1.0 and norm.tail(30 * norm.std) < 1e-3


@pytest.mark.parametrize("n", [1, 5, 20])
@pytest.mark.parametrize("radius", [1.1, 2.0, 10.0])
def test_taylor_series_span_a_thin_ellipsoid(rng, n, radius):
    x = rng.uniform(-1, 1, n)
    ribbon = taylor_ribbon(x, radius)
    assert not ribbon.violations().any()
    u = rng.standard_normal((500, n))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    predictions = (u * radius ** -np.arange(float(n))) @ (x[:, None] ** np.arange(n)).T
    assert np.linalg.norm(predictions, axis=1).max() <= ribbon.truth[0] * (1 + 1e-12)
    if n == 20 and radius == 2.0:
        assert np.polyfit(range(12), np.log(ribbon.truth[:12]), 1)[0] < -np.log(2)


def test_taylor_ribbons_of_few_terms_have_few_widths():
    widths = taylor_ribbon(np.linspace(-1, 1, 6), 2.0, terms=2).truth
    assert (widths[:2] > 0).all() and (widths[2:] == 0).all()
    for points, radius in (([2.0], 3.0), ([0.5], 1.0)):
        with pytest.raises(ArgumentError):
            taylor_ribbon(points, radius)


def test_a_gaussian_kernel_of_gaussian_inputs_has_geometric_eigenvalues(rng):
    x = 1.3 * rng.standard_normal(3000)
    gram = np.exp(-((x[:, None] - x) ** 2) / (2 * 0.8**2)) / len(x)
    found = np.linalg.eigvalsh(gram)[::-1][:8]
    # Relative errors of eigenvalues of the Gram matrix are a few 1/√n = 2%.
    np.testing.assert_allclose(found, gaussian_kernel_eigenvalues(8, 0.8, 1.3), rtol=0.1)
    assert gaussian_kernel_eigenvalues(500, 0.8, 1.3).sum() == pytest.approx(1.0)

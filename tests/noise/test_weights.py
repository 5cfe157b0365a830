"""Weight covariance, stationarity and the variance–flatness relation on known processes."""

import warnings

import numpy as np
import pytest
import torch
from scipy.signal import lfilter
from torch import nn

import hyperribbon as hr
from hyperribbon import noise
from hyperribbon.core import ArgumentError
from hyperribbon.papers.simulation import trace_one_layer


def gaussian(n, variances, seed=0, rotation=None):
    draws = np.random.default_rng(seed).normal(size=(n, len(variances))) * np.sqrt(variances)
    return draws if rotation is None else draws @ rotation.T


@pytest.mark.parametrize(("n", "P"), [(200, 8), (30, 120)])
@pytest.mark.parametrize("memory", [2**29, 4000])
def test_modes_are_those_of_the_sample_covariance_on_both_routes(n, P, memory):
    weights = gaussian(n, np.linspace(4, 0.1, P)) + 7
    found = hr.weight_covariance(weights, k=6, memory=memory)
    covariance = np.cov(weights.T)
    expected = np.linalg.eigvalsh(covariance)[::-1][:6]
    np.testing.assert_allclose(found.eigenvalues, expected, rtol=1e-9)
    np.testing.assert_allclose(covariance @ found.modes, found.modes * expected, atol=1e-8)
    np.testing.assert_allclose(found.modes.T @ found.modes, np.eye(6), atol=1e-10)
    assert found.total == pytest.approx(np.trace(covariance))
    np.testing.assert_allclose(found.projections, (weights - weights.mean(0)) @ found.modes)


def test_trajectories_are_streamed_by_name(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 6))
    trajectory = hr.Trajectory.create(tmp_path / "run")
    for step, row in enumerate(torch.from_numpy(rows)):
        state = {"a.weight": row[:4].reshape(2, 2), "b.weight": row[4:], "b.count": torch.tensor(3)}
        trajectory.append(step, weights=state)
    for source in (trajectory, tmp_path / "run"):
        found = hr.weight_covariance(source, params="a.*")
        np.testing.assert_allclose(found.mean, rows[:, :4].mean(axis=0))
        expected = np.linalg.eigvalsh(np.cov(rows[:, :4].T))[::-1]
        np.testing.assert_allclose(found.eigenvalues, expected, rtol=1e-9)
    late = hr.weight_covariance(trajectory, start=5)
    assert late.samples == 15
    np.testing.assert_allclose(late.mean, rows[5:].mean(axis=0))
    with pytest.raises(ArgumentError, match="no recorded weight"):
        hr.weight_covariance(trajectory, params="c.*")


def test_too_few_moments_are_refused():
    with pytest.raises(ArgumentError, match="at least 12"):
        hr.weight_covariance(np.ones((5, 3)))
    with pytest.raises(ArgumentError, match="at least 12"):
        hr.weight_covariance(np.ones((30, 3)), window=31)
    with pytest.raises(ArgumentError, match="straight line"):
        hr.weight_covariance(np.ones((30, 3)), window=3)
    slow = np.cumsum(gaussian(30, np.ones(5)), axis=0)
    with pytest.raises(ArgumentError, match="too few to know its variance"):
        hr.variance_flatness(slow, np.diag(np.arange(1.0, 6.0)), warn=False)


@pytest.mark.parametrize("P", [4, 60])
def test_weights_that_never_move_have_no_variance(P):
    found = hr.weight_covariance(np.ones((20, P)))
    assert found.total == 0
    assert found.stationarity.stationary
    assert np.isfinite(found.effective_samples)


@pytest.mark.parametrize(("n", "P"), [(600, 5), (40, 90)])
@pytest.mark.parametrize("memory", [2**29, 12_000])
def test_windows_take_off_a_straight_line_each(n, P, memory):
    window = 20
    weights = gaussian(n + 7, np.linspace(3, 0.5, P)) + np.outer(
        np.arange(n + 7) ** 1.5, np.ones(P)
    )
    t = np.vander(np.arange(window), 2)
    pieces = weights[:n].reshape(-1, window, P)
    residuals = pieces - t @ (np.linalg.pinv(t) @ pieces)
    flat, freedom = residuals.reshape(-1, P), n - 2 * n // window
    found = hr.weight_covariance(weights, k=5, window=window, memory=memory, basis=np.eye(P))
    expected = flat.T @ flat / freedom
    np.testing.assert_allclose(found.projected, expected, atol=1e-6)
    np.testing.assert_allclose(found.eigenvalues, np.linalg.eigvalsh(expected)[::-1][:5], rtol=1e-6)
    np.testing.assert_allclose(found.mean, weights[:n].mean(axis=0))
    about_means = pieces - pieces.mean(axis=1, keepdims=True)
    trend = 1 - np.sum(residuals**2) / np.sum(about_means**2)
    assert found.trend == pytest.approx(trend, rel=1e-6)


def test_exponent_survives_drift_when_windows_remove_it(power_law):
    rotation, curvature, H = power_law
    weights = gaussian(3000, curvature**0.8, 2, rotation)
    drifting = weights + np.outer(np.linspace(0, 60, 3000), rotation[:, -1])
    plain = hr.variance_flatness(drifting, H, warn=False, strict=False)
    assert plain.unresolved == 1
    assert plain.corrected_exponent == pytest.approx(1.6, abs=0.1)
    still = hr.variance_flatness(drifting, H, window=50)
    assert still.corrected_exponent == pytest.approx(1.6, abs=0.1)


def test_width_is_infinite_where_the_loss_does_not_rise(power_law):
    rotation, curvature, H = power_law
    weights = gaussian(500, curvature**0.8, 0, rotation)
    mean = weights.mean(axis=0)

    def loss(w):
        return 1 + ((w - mean) @ rotation[:, 0]) ** 2 / (1 + ((w - mean) @ rotation[:, 0]) ** 2)

    result = hr.variance_flatness(weights, H, loss=loss, warn=False)
    assert np.isinf(result.widths).all()
    assert result.width_exponent is None


def test_autocorrelation_time_of_an_autoregressive_series():
    """A window of five times it leaves out e⁻¹⁰ of the sum; one of a single time a seventh."""
    noises = np.random.default_rng(0).standard_normal((100_000, 8))
    times = noise.autocorrelation_time(lfilter([1], [1, -0.9], noises, axis=0))
    # Eight of a relative error √(2(2·5·19 + 1)/n) = 6% each.
    assert times.mean() == pytest.approx((1 + 0.9) / (1 - 0.9), rel=0.065)
    assert noise.autocorrelation_time(noises) == pytest.approx(1, abs=0.1)


def test_stationary_series_pass_and_drifting_ones_fail():
    rng = np.random.default_rng(1)
    passed = [noise.stationarity(rng.normal(size=(400, 4))).stationary for _ in range(40)]
    assert np.mean(passed) >= 0.95
    drifting = rng.normal(size=(400, 4)) + np.linspace(0, 2, 400)[:, None]
    result = noise.stationarity(drifting)
    assert not result.stationary
    assert result.drift > 0.5
    walk = np.cumsum(rng.normal(size=(400, 4)), axis=0)
    assert not noise.stationarity(walk).stationary


def test_measured_sgd_agrees_with_the_prediction_from_curvature_and_noise():
    torch.manual_seed(0)
    inputs = torch.randn(80, 5, dtype=torch.float64)
    targets = inputs @ torch.randn(5, 1).double() + 0.5 * torch.randn(80, 1).double()
    X, Y = inputs.T.numpy(), targets[:, 0].numpy()
    model = nn.Linear(5, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(inputs, targets).solution.T)
    half = nn.MSELoss()
    H = hr.Hessian(model, half, (inputs, targets))
    C = hr.GradientCovariance(model, half, (inputs, targets), batch_size=10)
    # Steps of λ on half squares are steps of λ/2 on nn.MSELoss.
    predicted = hr.stationary_covariance(H, C, 0.1, "discrete", k=5)
    path = trace_one_layer(X, Y, lr=0.2, batch_size=10, record=np.arange(100, 20_000, 20))
    result = noise.compare_covariance(path[:, 0], predicted)
    assert result.discrepancy < 4 * result.sampling_error
    assert result.variance_ratio == pytest.approx(1, abs=0.15)
    wrong = hr.stationary_covariance(H, C, 0.2, "discrete", k=5)
    assert noise.compare_covariance(path[:, 0], wrong).discrepancy > 0.3


@pytest.fixture(scope="module")
def power_law():
    rng = np.random.default_rng(3)
    rotation = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    curvature = np.geomspace(3, 0.1, 12)
    return rotation, curvature, (rotation * curvature) @ rotation.T


def test_exponent_and_interval_recover_a_known_power_law(power_law):
    rotation, curvature, H = power_law
    covered = []
    for seed in range(10):
        weights = gaussian(3000, curvature**0.8, seed, rotation)
        result = hr.variance_flatness(weights, H)
        covered.append(result.interval[0] <= 1.6 <= result.interval[1])
        assert result.corrected_exponent == pytest.approx(1.6, abs=0.05)
    assert sum(covered) >= 7
    assert not result.too_few_samples
    assert result.stationarity.stationary


def test_few_samples_inflate_the_exponent_and_are_warned_about(power_law):
    rotation, curvature, H = power_law
    weights = gaussian(60, curvature**0.8, 1, rotation)
    with pytest.warns(noise.FewSamplesWarning, match="independent samples"):
        result = hr.variance_flatness(weights, H)
    assert result.exponent > 1.8
    assert result.bias > 0.15
    assert abs(result.corrected_exponent - 1.6) < abs(result.exponent - 1.6)


def test_drift_is_warned_about(power_law):
    rotation, curvature, H = power_law
    weights = gaussian(3000, curvature**0.8, 2, rotation)
    weights = weights + np.outer(np.linspace(0, 6, 3000), rotation[:, 3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = hr.variance_flatness(weights, H, strict=False)
    said = [str(w.message) for w in caught if issubclass(w.category, noise.DriftWarning)]
    assert len(said) == 1
    assert "window" in said[0]
    assert result.unresolved == 1
    assert not result.stationarity.stationary


def test_statistics_of_batch_norm_are_not_weights(tmp_path):
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(20, 3)))
    trajectory = hr.Trajectory.create(tmp_path / "run")
    for step, row in enumerate(rows):
        state = {"1.weight": row, "1.running_mean": 9 * row, "1.running_var": row.square()}
        trajectory.append(step, weights=state)
    with pytest.warns(UserWarning, match=r"1\.running_mean \(statistic"):
        assert trajectory.weight_names() == ["1.weight"]
    for params in (None, "1.*"):
        found = hr.weight_covariance(trajectory, params=params)
        np.testing.assert_allclose(found.mean, rows.mean(0))


def test_buffers_are_told_by_what_they_are(tmp_path):
    """Names say nothing: a buffer may be called anything, and so may a parameter."""

    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.my_running_mean = torch.nn.Parameter(torch.zeros(3))
            self.register_buffer("scale", torch.ones(5))

        def forward(self, x):
            return (x * self.my_running_mean).sum(1)

    model = Named()
    recorder = hr.Recorder(tmp_path, "1it")
    recorder.attach(model)
    for step in range(20):
        with torch.no_grad():
            model.my_running_mean += torch.randn(3, generator=torch.Generator().manual_seed(step))
            model.scale += 100.0
        recorder.step(0.0)
    recorder.close()
    found = hr.weight_covariance(tmp_path)
    assert len(found.mean) == 3
    assert found.total < 1000


def test_widths_of_a_parabola_follow_its_curvature(power_law):
    rotation, curvature, H = power_law
    weights = gaussian(4000, curvature**0.8, 0, rotation)
    base, mean = 0.3, weights.mean(axis=0)

    def loss(w):
        return base + 0.5 * (w - mean) @ H @ (w - mean)

    result = hr.variance_flatness(weights, torch.from_numpy(H), loss=loss)
    assert result.widths is not None
    expected = 2 * np.sqrt(2 * base * (np.e - 1) / result.curvatures)
    np.testing.assert_allclose(result.widths, expected, rtol=1e-4)
    assert result.width_exponent == pytest.approx(result.exponent, abs=1e-3)


def test_curvature_of_another_size_is_refused(power_law):
    with pytest.raises(ArgumentError, match="the trajectory has 12 weights"):
        hr.variance_flatness(gaussian(100, np.ones(12)), np.eye(5))

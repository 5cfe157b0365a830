"""ψ of modes with memory of any kind: intervals that cover, over the modes that were resolved."""

import numpy as np
import pytest
from scipy.signal import lfilter

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.noise.flatness import _mixing_bias
from hyperribbon.noise.memory import fit_memory, remove_lines
from hyperribbon.theory import fluctuations as theory

KINDS = [
    "relaxing",
    "oscillating",
    "heavy ball",
    "two times",
    "shuffled",
    "drifting",
    "heavy tails",
]
SLOWEST = 30.0  # relaxation time in moments


def filtered(denominators, noise, burn=600):
    """Return series of unit variance from AR filters, one column each."""
    columns = []
    for column, a in zip(noise.T, denominators, strict=True):
        response = lfilter([1.0], a, np.eye(1, 5000)[0])
        columns.append(lfilter([1.0], a, column)[burn:] / np.linalg.norm(response))
    return np.stack(columns, axis=1)


def record(kind, ratio, seed, modes=12, psi=2.0):
    """Return a rotated record with variance ∝ curvature^(ψ/2), its curvature, and a window.

    It spans `ratio` relaxation times of the slowest mode (of its envelope where it oscillates).
    """
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    h, n = np.geomspace(20, 1, modes), int(ratio * SLOWEST)
    rates, window, burn = np.exp(-h / SLOWEST), None, 600
    ones = np.ones(modes)
    if kind == "heavy ball":  # β = 0.9, recorded every step
        h = np.geomspace(0.2, 0.004, modes)
        denominators = np.stack([ones, h - 1.9, 0.9 * ones], axis=1)
    elif kind == "oscillating":  # period 20
        r = np.exp(-1 / SLOWEST)
        denominators = np.stack([ones, -2 * r * np.cos(np.pi / 10) * ones, r**2 * ones], axis=1)
    else:
        denominators = np.stack([ones, -rates], axis=1)
    noise = rng.normal(size=(n + burn, modes))
    if kind == "heavy tails":
        noise = rng.standard_t(5, size=(n + burn, modes)) * np.sqrt(3 / 5)
    x = filtered(denominators, noise, burn)
    if kind == "two times":
        quick = np.stack([ones, -(rates**10)], axis=1)
        x = (x + filtered(quick, rng.normal(size=(n + burn, modes)), burn)) / np.sqrt(2)
    if kind == "shuffled":  # epochs of 25 steps whose noise sums to zero
        epochs = rng.normal(size=((n + burn) // 25 + 1, 25, modes))
        steps = (epochs - epochs.mean(axis=1, keepdims=True)).reshape(-1, modes)[-n - burn :]
        rule = h / SLOWEST
        x = np.stack([lfilter([1.0], [1, e - 1], s) for e, s in zip(rule, steps.T, strict=True)], 1)
        state = theory.stationary_state(np.diag(rule), 24 / 25 * np.eye(modes), 1.0, batches=25)
        x = x[-n:] / np.sqrt(np.diag(state.covariance))
    x = x * h ** (psi / 4)
    if kind == "drifting":
        window = n // 2
        x = x + np.outer(np.linspace(0, 5 * np.linalg.norm(x[0]), n), rng.normal(size=modes))
    rotation = np.linalg.qr(rng.normal(size=(modes, modes)))[0]
    return x @ rotation.T, (rotation * h) @ rotation.T, window


def outcomes(kind, ratio, seeds, psi=2.0):
    """Return for each seed whether ψ was covered, and whether some modes were not resolved."""
    covered, partial = [], []
    for seed in seeds:
        weights, H, window = record(kind, ratio, seed, psi=psi)
        found = hr.variance_flatness(weights, H, window=window, warn=False)
        covered.append(found.interval[0] <= psi <= found.interval[1])
        partial.append(found.unresolved > 0)
    return covered, partial


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_whatever_the_memory(kind):
    """Of 20 at 0.95, more than four miss once in 400; AR(1) surrogates missed most of some."""
    covered, _ = outcomes(kind, 100, range(20))
    assert sum(covered) >= 16


@pytest.mark.slow
@pytest.mark.parametrize("psi", [1.2, 2.0])
@pytest.mark.parametrize("ratio", [40, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_coverage_and_resolution_over_200_seeds(kind, ratio, psi):
    covered, partial = outcomes(kind, ratio, range(200), psi)
    print(kind, ratio, psi, "covered", np.mean(covered), "partial", np.mean(partial))
    assert 0.9 <= np.mean(covered) <= 0.985
    if kind != "drifting":  # where a window, not the record, must span ten correlation times
        assert np.mean(partial) <= 0.02


@pytest.mark.parametrize("psi", [0.5, 1.2, 2.0, 3.0])
def test_the_bias_of_estimated_modes_is_that_of_simulations(psi):
    """Modes of 60 independent moments: v'Mv against v'Hv, over 2000 sampled covariances."""
    h, n, rng = np.geomspace(20, 1, 8), 60, np.random.default_rng(0)
    M = h ** (psi / 2)
    slopes = []
    for _ in range(2000):
        x = rng.normal(size=(n, 8)) * np.sqrt(M)
        shares = np.linalg.eigh(x.T @ x)[1] ** 2
        slopes.append(2 * np.polyfit(np.log(h @ shares), np.log(M @ shares), 1)[0])
    found = _mixing_bias(psi, h, np.full((8, 8), 1 / n))
    assert found == pytest.approx(np.mean(slopes) - psi, abs=0.02)
    assert _mixing_bias(psi, h, np.full((8, 8), 1e-6)) == pytest.approx(0, abs=1e-3)
    assert _mixing_bias(psi, h - 2, np.full((8, 8), 1 / n)) == 0.0


def test_fitted_memory_is_that_of_the_process():
    """Σρ and Σρ² of a relaxing, an oscillating and an anticorrelated mode."""
    rho, r = 0.9, 0.97
    filters = [[1, -rho], [1, -2 * r * np.cos(0.3), r**2], [1, 0.6]]
    rng = np.random.default_rng(0)
    x = filtered([np.array(f) for f in filters], rng.normal(size=(200_600, 3)))
    memory = fit_memory(x - x.mean(axis=0), len(x), lines=False)
    for mode, a in enumerate(filters):
        response = lfilter([1.0], a, np.eye(1, 4000)[0])
        correlation = np.correlate(response, response, "full") / (response @ response)
        assert memory.integrated[mode] == pytest.approx(correlation.sum(), rel=0.05, abs=0.02)
        assert memory.squared[mode] == pytest.approx(np.sum(correlation**2), rel=0.05)
    assert memory.times[1] > 10 * memory.integrated[1]  # an oscillation cancels Σρ


@pytest.mark.parametrize("window", [None, 100, 1000])
def test_the_share_that_is_kept_is_that_of_simulations(window):
    """Down to ten correlation times; 300 series know the variance of the slowest to 4%."""
    times = np.array([1.0, 0.02, 0.1]) * [1, window or 1000, window or 1000]
    rho = (times - 1) / (times + 1)
    rng = np.random.default_rng(1)
    left, expected = np.zeros(3), np.zeros(3)
    for _ in range(300):
        noise = rng.normal(size=(1600, 3))
        x = filtered(np.stack([np.ones(3), -rho], axis=1), noise)
        if window is None:
            x = x - x.mean(axis=0)
            left += np.sum(x**2, axis=0) / 999 / 300
        else:
            centered, slopes, line = remove_lines(x, window)
            x = (centered - slopes[:, None, :] * line[:, None]).reshape(x.shape)
            left += np.sum(x**2, axis=0) / (1000 - 2000 // window) / 300
        expected += fit_memory(x, window or 1000, lines=window is not None).kept / 300
    np.testing.assert_allclose(expected, left, rtol=0.1)
    np.testing.assert_allclose(expected[0], 1, rtol=0.01)


@pytest.mark.parametrize(("n", "window"), [(600, None), (6000, 300)])
def test_modes_that_are_too_slow_are_listed_and_the_others_used(n, window):
    """Such windows moved ψ from 2 to 3; one refusal of everything helped nobody."""
    rng = np.random.default_rng(0)
    h = np.geomspace(50, 1, 20)
    x = filtered(
        np.stack([np.ones(20), -np.exp(-h / 100)], axis=1), rng.normal(size=(n + 900, 20)), 900
    )
    found = hr.variance_flatness(x * np.sqrt(h), np.diag(h), window=window, warn=False)
    assert 3 <= found.resolved.sum() < 20
    assert found.times[found.resolved].max() <= (window or n) / 10
    assert found.interval[0] <= 2 <= found.interval[1]
    assert f"{found.unresolved} modes too slow" in repr(found)
    assert found.to_frame()["resolved"].sum() == found.resolved.sum()
    assert "not resolved" in found.plot().get_legend_handles_labels()[1]


def test_a_record_in_which_no_three_modes_are_resolved_is_refused():
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(size=(300, 6)), axis=0)
    H = np.diag(np.arange(1.0, 7.0))
    with pytest.raises(ArgumentError, match="decorrelates"):
        hr.variance_flatness(walk, H, warn=False)
    result = hr.variance_flatness(walk, H, warn=False, strict=False)
    assert np.isnan(result.interval).all()
    assert result.doubt


@pytest.mark.parametrize("scale", [1.0, 3e-7])
def test_equal_curvatures_are_refused(scale):
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    weights = rng.normal(size=(500, 5)) * np.arange(1.0, 6.0)
    with pytest.raises(ArgumentError, match="equal"):
        hr.variance_flatness(weights, scale * rotation @ rotation.T, warn=False)

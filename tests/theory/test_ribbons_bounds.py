from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigvalsh

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory.ribbons import (
    Ribbon,
    kernels_bound,
    mean_bound,
    several_kernels,
    sgd,
    spectrum_bound,
    target_decay_bound,
    target_norm_bound,
    weight_bound,
    weyl_bound,
)

settings_of_ribbons = {
    "n": st.integers(2, 60),
    "slope": st.floats(0.001, 3),
    "alpha": st.floats(0.01, 1.0),
    "steps": st.integers(1, 10**7),
    "ratio": st.floats(0.01, 100),
    "seed": st.integers(0, 10**6),
}


def ribbon_of(n, slope, alpha, steps, ratio, seed, **variant):
    rng = np.random.default_rng(seed)
    return Ribbon.exponential(
        n, slope, sigma_star=ratio, alpha=alpha, steps=steps, rng=rng, **variant
    )


@pytest.mark.parametrize(
    "bound",
    [weyl_bound, mean_bound, weight_bound, target_decay_bound, target_norm_bound, spectrum_bound],
)
@settings(max_examples=150, deadline=None)
@given(**settings_of_ribbons)
def test_bounds_are_never_violated(bound, n, slope, alpha, steps, ratio, seed):
    found = bound(ribbon_of(n, slope, alpha, steps, ratio, seed))
    assert not found.violations().any()
    assert np.isfinite(found.truth).all()


@settings(max_examples=100, deadline=None)
@given(
    **settings_of_ribbons,
    batch=st.sampled_from([None, 1, 16]),
    decay=st.sampled_from([0.0, 1e-4, 0.1]),
)
def test_lemma_3_holds_for_noise_and_weight_decay(
    n, slope, alpha, steps, ratio, seed, batch, decay
):
    ribbon = ribbon_of(
        n, slope, alpha / (1 + decay), steps, ratio, seed, batch_size=batch, weight_decay=decay
    )
    assert not spectrum_bound(ribbon).violations().any()


def test_the_printed_noise_term_is_violated():
    ribbon = Ribbon.exponential(50, 0.02, sigma_w=0.01, steps=1000, batch_size=1)
    printed, verified = spectrum_bound(ribbon, "printed"), spectrum_bound(ribbon)
    assert printed.violations().any() and not verified.violations().any()
    assert (printed.truth / printed.upper).max() > 10


def test_the_bound_of_lemma_3_does_not_rise_beyond_the_split():
    ribbon = Ribbon.exponential(50, 0.2, sigma_star=2**0.5, sigma_w=0.1**0.5, steps=50)
    assert (np.diff(spectrum_bound(ribbon, "printed").upper) > 0).any()
    assert (np.diff(spectrum_bound(ribbon).upper) <= 0).all()


def test_bounds_bite():
    """A bound that is always above one would prove nothing."""
    ribbon = Ribbon.exponential(50, 0.05, sigma_star=10.0, steps=1000)
    assert target_decay_bound(ribbon).upper[-1] < 0.01
    assert spectrum_bound(ribbon).upper[20] < 0.2
    assert weight_bound(ribbon).upper[0] == pytest.approx(weight_bound(ribbon).truth[0])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 4),
    steps=st.integers(1, 10**5),
    slope=st.floats(0.02, 1.5),
    sigma=st.floats(0.01, 3),
)
def test_kernel_bound_is_never_violated(seed, count, steps, slope, sigma):
    rng = np.random.default_rng(seed)
    n = 24
    grams = []
    for _ in range(count):
        basis = np.linalg.qr(rng.standard_normal((n, n)))[0]
        grams.append(n * (basis * np.exp(-slope * np.arange(n))) @ basis.T)
    y = np.sqrt(n) * rng.standard_normal(n)
    found = kernels_bound([(G + G.T) / 2 for G in grams], y, sigma, 1 - 1e-9, steps)
    assert not found.violations(1e-10).any()


def second_moments(kernel, targets, sigma, alpha, steps):
    """P₁^σ, P₁^y and P₂ by a loop over the steps of K⊗I, outputs of a sample adjacent."""
    outputs = targets.shape[1]
    K, y = np.kron(kernel, np.eye(outputs)), targets.ravel()
    step, power = np.eye(len(y)) - alpha * K, np.eye(len(y))
    parts, mean = [np.zeros_like(K), np.zeros_like(K)], np.zeros(len(y))
    for _ in range(steps):
        parts[0] += sigma**2 * power @ K @ power / steps
        parts[1] += power @ np.outer(y, y) @ power / steps
        mean += power @ y / steps
        power = power @ step
    return *parts, np.outer(mean, mean)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 7),
    outputs=st.integers(2, 4),
    slope=st.floats(0.01, 2),
    alpha=st.floats(0.05, 1.0),
    steps=st.integers(1, 60),
    sigma=st.floats(0.01, 3),
    seed=st.integers(0, 10**6),
)
def test_bounds_of_several_outputs_have_the_truth_of_a_loop(
    n, outputs, slope, alpha, steps, sigma, seed
):
    values = np.exp(-slope * np.arange(n))
    targets = np.random.default_rng(seed).standard_normal((n, outputs))
    ribbon = Ribbon(values, targets, sigma, alpha, steps)
    parts = second_moments(np.diag(values), targets, sigma, alpha, steps)
    weights, labels, second = (eigvalsh(part)[::-1] for part in (*parts[:2], parts[0] + parts[1]))
    whole = eigvalsh(parts[0] + parts[1] - parts[2])[::-1]
    norm, x = (targets**2).sum(), alpha * values[-1]
    longest = sum((1 - x) ** (2 * t) for t in range(steps))
    rho = np.exp(np.pi**2 / (2 * np.log(8 / values[-1] - 4)))
    truths = {
        weyl_bound: whole,
        weight_bound: steps * weights,
        target_decay_bound: labels[::2] / labels[0],
        target_norm_bound: steps * labels[:1],
        spectrum_bound: second / second[0],
    }
    for bound, truth in truths.items():
        found = bound(ribbon)
        np.testing.assert_allclose(np.sort(found.truth), np.sort(truth), atol=1e-11 * truth[0])
        assert not found.violations().any(), bound
    # The paper's formulas for n·C coordinates, written out.
    repeated = np.sort(np.repeat(values, outputs))[::-1]
    eq9 = sigma**2 / alpha * np.minimum(1, 2 * steps * alpha * repeated) / (2 - alpha * repeated)
    np.testing.assert_allclose(weight_bound(ribbon).upper, eq9)
    np.testing.assert_allclose(target_norm_bound(ribbon).upper, norm * longest)
    decay = rho ** (-2.0 * np.arange(len(labels[::2])))
    np.testing.assert_allclose(target_decay_bound(ribbon).upper, 4 * decay / (1 + decay**2) ** 2)
    first = min(1, 4 + sigma**2 / (alpha * norm))
    assert spectrum_bound(ribbon).upper[0] == pytest.approx(first)


@settings(max_examples=60, deadline=None)
@given(
    **settings_of_ribbons,
    outputs=st.integers(2, 10),
    batch=st.sampled_from([None, 1, 16]),
    decay=st.sampled_from([0.0, 0.1]),
)
def test_lemma_3_holds_for_several_outputs(
    n, slope, alpha, steps, ratio, seed, outputs, batch, decay
):
    values = np.exp(-slope * np.arange(n))
    targets = np.random.default_rng(seed).standard_normal((n, outputs))
    targets *= ratio * np.sqrt(values)[:, None]
    how = {"batch_size": batch, "weight_decay": decay}
    ribbon = Ribbon(values, targets, 1.0, alpha / (1 + decay), steps, **how)
    assert not spectrum_bound(ribbon).violations().any()


def test_several_kernels_of_several_outputs_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    n, outputs, sigma, alpha, steps = 5, 3, 0.7, 0.8, 9
    factors = [rng.standard_normal((n, n + 2)) for _ in range(2)]
    grams = [F @ F.T / np.linalg.norm(F @ F.T, 2) * n for F in factors]
    y = rng.standard_normal((n, outputs))
    found = several_kernels(grams, y, sigma, alpha, steps)
    parts = [second_moments(G / n, y / np.sqrt(n), sigma, alpha, steps) for G in grams]
    second = sum(p[0] + p[1] for p in parts) / 2
    np.testing.assert_allclose(found.P1, second, atol=1e-13)
    mean = 0
    for gram in grams:
        step = np.eye(n) - alpha * gram / n
        powers = [np.linalg.matrix_power(step, t) for t in range(steps)]
        mean = mean + np.mean(powers, axis=0) @ y / np.sqrt(n) / 2
    np.testing.assert_allclose(found.P2, np.outer(mean, mean), atol=1e-13)
    alone = several_kernels(grams, y[:, 0], sigma, alpha, steps)
    np.testing.assert_allclose(found.P1[::outputs, ::outputs], alone.P1, atol=1e-14)
    for many in (1, 10, 1000):
        assert not kernels_bound(grams, y, sigma, alpha, many).violations(1e-10).any()


def test_sgd_of_several_outputs_is_the_mean_over_all_batches():
    rng = np.random.default_rng(1)
    n, d, outputs, alpha, sigma, steps, batch = 3, 4, 2, 0.3, 0.5, 3, 2
    X, y = rng.standard_normal((n, d)), rng.standard_normal((n, outputs))
    found = sgd(X, y, sigma, alpha, steps, batch)
    # Of the initial weights only mean zero and covariance σ² matter: ±σ√(dC) along every axis.
    starts = np.concatenate([np.eye(d * outputs), -np.eye(d * outputs)]) * sigma
    starts = starts.reshape(-1, d, outputs) * np.sqrt(d * outputs)
    moments, means = [], []
    residuals = np.einsum("nd,wdc->wnc", X, starts) - y
    for t in range(steps):
        if t:
            drawn = []
            for picked in product(range(n), repeat=batch):
                rows = X[list(picked)]
                gradient = np.einsum("bd,wbc->wdc", rows, residuals[:, list(picked)]) / batch
                drawn.append(residuals - alpha * np.einsum("nd,wdc->wnc", X, gradient))
            residuals = np.concatenate(drawn)
        flat = residuals.reshape(len(residuals), -1) / np.sqrt(n)
        moments.append(flat.T @ flat / len(flat))
        means.append(flat.mean(axis=0))
    np.testing.assert_allclose(found.P1, np.mean(moments, axis=0), rtol=1e-10, atol=1e-12)
    mean = np.mean(means, axis=0)
    np.testing.assert_allclose(found.P2, np.outer(mean, mean), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.losses, [np.trace(M) / 2 for M in moments])


def test_bounds_refuse_other_initial_outputs():
    ribbon = Ribbon(np.array([1.0, 0.5]), np.ones(2), 1.0, 0.5, 10, start=np.eye(2))
    for bound in (weight_bound, spectrum_bound):
        with pytest.raises(ArgumentError, match="covariance"):
            bound(ribbon)
    assert not target_decay_bound(ribbon).violations().any()


def test_bounds_refuse_what_they_do_not_cover():
    with pytest.raises(ArgumentError, match="1/λ₁"):
        weight_bound(Ribbon.exponential(5, 0.1, alpha=1.5))
    with pytest.raises(ArgumentError, match="weight decay"):
        weyl = Ribbon.exponential(5, 0.1, alpha=0.5, weight_decay=0.1)
        target_decay_bound(weyl)

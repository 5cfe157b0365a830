"""Chains of SGD and of the Langevin limit against the exact discrete-time covariance."""

import itertools

import numpy as np
import pytest
import scipy.optimize

from hyperribbon.core import ArgumentError
from hyperribbon.papers.simulation import (
    RunningMoments,
    chain_batches,
    simulate_one_layer,
    trace_one_layer,
)
from hyperribbon.theory import fluctuations as th


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    N, P = 10, 20
    X = rng.normal(size=(N, P)) / np.sqrt(N)
    return X, rng.normal(size=N) @ X + 0.5 * rng.normal(size=P)


def first_batches(sampling, samples, size, chains, count):
    rng = np.random.default_rng(1)
    stream = chain_batches(samples, size, chains, sampling=sampling, rng=rng)
    return [batch.copy() for batch in itertools.islice(stream, count)]


def test_replacement_draws_each_sample_equally_often():
    counts = np.bincount(np.ravel(first_batches("replacement", 7, 3, 50, 200)), minlength=7)
    assert abs(counts / counts.sum() - 1 / 7).max() < 4 * np.sqrt(6 / 49 / counts.sum())


@pytest.mark.parametrize("small", [512, 0])
def test_subsets_are_distinct_uniform_and_fresh(monkeypatch, small):
    monkeypatch.setattr("hyperribbon.papers.simulation.fluctuations.batches._SMALL", small)
    batches = np.array(first_batches("without_replacement", 6, 3, 40, 500)).reshape(-1, 3)
    codes = np.sum(1 << np.sort(batches, axis=1), axis=1)
    subsets, counts = np.unique(codes, return_counts=True)
    assert [int(code).bit_count() for code in subsets] == [3] * 20
    shares = counts / len(batches)
    assert abs(shares - 1 / 20).max() < 4.5 * np.sqrt(0.05 * 0.95 / len(batches))
    successive = np.array(first_batches("without_replacement", 5, 4, 2000, 2))
    overlap = np.mean([len(np.intersect1d(a, b)) for a, b in successive.transpose(1, 0, 2)])
    assert overlap == pytest.approx(4 * 4 / 5, abs=0.05)
    everything = first_batches("without_replacement", 4, 4, 3, 2)
    assert (np.sort(everything, axis=2) == np.arange(4)).all()


def test_shuffle_shows_every_sample_once_an_epoch():
    batches = first_batches("shuffle", 7, 3, 4, 6)
    assert [b.shape[1] for b in batches] == [3, 3, 1, 3, 3, 1]
    for epoch in (batches[:3], batches[3:]):
        assert (np.sort(np.concatenate(epoch, axis=1)) == np.arange(7)).all()


@pytest.mark.parametrize("sampling", ["without_replacement", "shuffle"])
def test_more_distinct_samples_than_there_are_is_refused(task, sampling):
    with pytest.raises(ArgumentError, match="only 20 distinct"):
        simulate_one_layer(*task, lr=0.1, batch_size=21, steps=10, sampling=sampling)


@pytest.mark.parametrize(("lr", "sampling"), [(1.0, "replacement"), (5.0, "without_replacement")])
def test_sgd_obeys_the_discrete_time_covariance(task, lr, sampling):
    X, Y = task
    stats = simulate_one_layer(
        X, Y, lr=lr, batch_size=10, steps=4000, every=5, sampling=sampling, seed=3
    )
    exact = th.discrete_covariance(X, Y, lr, 10, replacement=sampling == "replacement")
    assert stats.variance == pytest.approx(np.trace(exact) / 10, abs=4 * stats.variance_error)
    assert stats.variance == pytest.approx(np.trace(exact) / 10, rel=0.02)
    error = np.linalg.norm(stats.covariance - exact) / np.linalg.norm(exact)
    assert error < 0.03


def test_at_a_large_learning_rate_the_continuum_form_is_off_by_more_than_its_own_size():
    # N = 10, P = 20, λ = 5: the setting where the fluctuations feed on themselves.
    rng = np.random.default_rng(11)
    X = rng.normal(size=(10, 20)) / np.sqrt(10)
    Y = rng.normal(size=10) @ X + 0.5 * rng.normal(size=20)
    exact = th.discrete_covariance(X, Y, 5.0, 10)
    continuum = th.lyapunov_covariance(th.hessian(X), th.noise_covariance(X, Y, 10), 5.0)
    stats = simulate_one_layer(X, Y, lr=5.0, batch_size=10, steps=4000, every=5)
    assert stats.variance == pytest.approx(np.trace(exact) / 10, rel=0.02)
    assert np.trace(continuum) < 0.6 * np.trace(exact)


def test_langevin_flow_with_small_steps_reaches_the_continuum_covariance(task):
    X, Y = task
    stats = simulate_one_layer(
        X, Y, lr=1.0, batch_size=10, steps=2500, dynamics="flow", substeps=3, every=5, seed=1
    )
    H, C = th.hessian(X), th.noise_covariance(X, Y, 10)
    additive = th.lyapunov_covariance(H, C, 1.0)
    # The flow keeps the multiplicative noise, so it lies between the additive continuum form and
    # the discrete one.
    exact = th.discrete_covariance(X, Y, 1.0, 10)
    assert np.trace(additive) < np.trace(stats.covariance) < np.trace(exact)


def test_noise_covariance_of_the_steps_is_the_closed_form(task):
    X, Y = task
    stats = simulate_one_layer(X, Y, lr=0.1, batch_size=5, steps=2000, every=1, measure_noise=True)
    C = th.noise_covariance(X, Y, 5)
    error = np.linalg.norm(stats.noise_covariance - C) / np.linalg.norm(C)
    assert error < 0.03


def test_a_start_elsewhere_is_burnt_in_for_the_computed_time(task):
    X, Y = task
    away = simulate_one_layer(X, Y, lr=1.0, batch_size=10, steps=2000, start=np.ones(10), seed=5)
    slowest = th.relaxation_steps(th.hessian(X), 1.0)
    assert away.relaxation_steps == pytest.approx(slowest)
    assert away.burn_in == int(np.ceil(7 * slowest))
    exact = th.discrete_covariance(X, Y, 1.0, 10)
    assert away.variance == pytest.approx(np.trace(exact) / 10, abs=5 * away.variance_error)


def test_interpolating_networks_do_not_fluctuate():
    rng = np.random.default_rng(2)
    X, Y = rng.normal(size=(30, 12)) / 5, rng.normal(size=12)
    stats = simulate_one_layer(X, Y, lr=0.1, batch_size=4, steps=50, chains=3, burn_in=0)
    assert stats.regime == "interpolating"
    assert not stats.covariance.any()


def test_unstable_learning_rates_are_named_not_nan(task):
    X, Y = task
    limit = 2 / np.linalg.eigvalsh(th.hessian(X))[-1]
    with pytest.raises(ArgumentError, match="diverges"):
        simulate_one_layer(X, Y, lr=1.01 * limit, batch_size=5, steps=10)
    shuffled = {"sampling": "shuffle", "steps": 4000, "burn_in": 0}
    with pytest.raises(ArgumentError, match="diverged"):
        simulate_one_layer(X, Y, lr=0.97 * limit, batch_size=1, **shuffled)


def second_moment_radius(X, lr, batch_size, dynamics, sampling):
    """Return the growth of second moments a step, from repeated dense steps over all batches."""
    N, P = X.shape
    H = X @ X.T / P
    if dynamics == "sgd" and sampling == "without_replacement":
        drawn = list(itertools.combinations(range(P), batch_size))
    else:
        drawn = list(itertools.product(range(P), repeat=batch_size))
    substeps = 3 if dynamics == "flow" else 1
    moments = np.zeros((N * N, N * N))
    for batch in drawn:
        noise = X[:, batch] @ X[:, batch].T / batch_size - H
        A = np.eye(N) - lr / substeps * H - lr / np.sqrt(substeps) * noise
        moments += np.kron(A, A) / len(drawn)
    growth, M = 1.0, np.eye(N).ravel()
    for _ in range(3000):  # it is self-adjoint, and its leading eigenvector a covariance
        following = moments @ M
        growth = np.linalg.norm(following) / np.linalg.norm(M)
        M = following / np.linalg.norm(following)
    return growth


LIMITS = [0.5, 0.8, 0.95, 0.99, 1.01, 1.05, 1.5]  # times the largest stable learning rate


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("batch_size", "dynamics", "sampling"),
    [
        (1, "sgd", "replacement"),
        (2, "sgd", "replacement"),
        (3, "sgd", "replacement"),
        (2, "sgd", "without_replacement"),
        (4, "sgd", "without_replacement"),
        (1, "flow", "replacement"),
        (3, "flow", "replacement"),
    ],
)
def test_refused_if_and_only_if_second_moments_grow(batch_size, dynamics, sampling, seed):
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(3, 6)) * [[1.0], [0.7], [0.5]], rng.normal(size=6)
    how = {"batch_size": batch_size, "dynamics": dynamics, "sampling": sampling}
    largest = scipy.optimize.brentq(
        lambda lr: second_moment_radius(X, lr, **how) - 1, 0.05, 20.0, xtol=1e-4
    )
    for part in LIMITS:
        grows = second_moment_radius(X, part * largest, **how) >= 1
        assert grows == (part > 1)
        options = how | {"steps": 2, "burn_in": 0, "chains": 2}
        if dynamics == "flow":
            options["substeps"] = 3
        try:
            simulate_one_layer(X, Y, lr=part * largest, **options)
        except ArgumentError as error:
            assert grows, part
            assert "diverge" in error.reason
        else:
            assert not grows, part


def test_traced_chains_that_diverge_are_named(task):
    limit = 2 / np.linalg.eigvalsh(th.hessian(task[0]))[-1]
    with pytest.raises(ArgumentError, match="diverged"):
        trace_one_layer(*task, lr=0.97 * limit, batch_size=1, record=[4000])


def test_unusable_tasks_are_refused(task):
    X, Y = task
    with pytest.raises(ArgumentError, match="there are 19 targets"):
        simulate_one_layer(X, Y[1:], lr=0.1, batch_size=5, steps=5)
    with pytest.raises(ArgumentError, match="nonzero"):
        simulate_one_layer(0 * X, Y, lr=0.1, batch_size=5, steps=5)
    single = simulate_one_layer(X, Y, lr=0.1, batch_size=5, steps=5, chains=1, burn_in=0)
    assert single.variance_error == np.inf


def test_directions_that_no_sample_sees_stay_where_they_began():
    rng = np.random.default_rng(4)
    X, Y, start = rng.normal(size=(6, 4)), rng.normal(size=4), 3 * rng.normal(size=6)
    stats = simulate_one_layer(
        X, Y, lr=0.2, batch_size=4, steps=200, chains=2, burn_in=20_000, start=start
    )
    assert stats.regime == "interpolating"
    assert np.trace(stats.covariance) < 1e-8


def test_chains_repeat_with_their_seed_and_leave_the_global_state_alone(task):
    before = np.random.get_state()[1].copy()
    runs = [
        simulate_one_layer(*task, lr=1.0, batch_size=5, steps=50, chains=4, burn_in=0, seed=s)
        for s in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].covariance, runs[1].covariance)
    assert not np.array_equal(runs[0].covariance, runs[2].covariance)
    np.testing.assert_array_equal(before, np.random.get_state()[1])


def test_running_moments_are_the_moments_of_all_rows():
    rows = np.random.default_rng(0).normal(size=(50, 4)) + 3
    moments = RunningMoments(4)
    for block in np.split(rows, [7, 20]):
        moments.add(block)
    np.testing.assert_allclose(moments.covariance(), np.cov(rows.T, bias=True), atol=1e-12)
    np.testing.assert_allclose(moments.covariance(about_zero=True), rows.T @ rows / 50)


def test_traced_chains_relax_as_the_modes_do(task):
    X, Y = task
    start, record = np.zeros(10), [0, 5, 40, 400]
    path = trace_one_layer(X, Y, lr=0.2, batch_size=10, record=record, chains=400, start=start)
    rates, V = np.linalg.eigh(th.hessian(X))
    solution = V.T @ th.minimum_norm_solution(X, Y)
    decay = (1 - 0.2 * rates) ** np.array(record)[:, None]
    expected = solution - decay * solution
    spread = (path @ V).std(axis=1) / np.sqrt(400)
    np.testing.assert_array_less(abs((path @ V).mean(axis=1) - expected), 5 * spread + 1e-6)
    continuum = th.mode_mean(0.2 * np.array(record), rates, V.T @ start, solution)
    np.testing.assert_allclose(continuum, expected, atol=0.1 * abs(solution).max())


def test_annealed_burn_in_is_shorter_and_reaches_the_same_state(task):
    X, Y = task
    options = {"lr": 0.05, "batch_size": 10, "steps": 5000, "chains": 64, "seed": 4}
    plain = simulate_one_layer(X, Y, **options)
    annealed = simulate_one_layer(X, Y, **options, anneal=10)
    assert annealed.burn_in < plain.burn_in / 3
    exact = np.trace(th.discrete_covariance(X, Y, 0.05, 10)) / 10
    for stats in (plain, annealed):
        assert stats.variance == pytest.approx(exact, abs=4 * stats.variance_error)
    with pytest.raises(ArgumentError, match="diverges"):
        simulate_one_layer(X, Y, **options, anneal=1000)


def test_chains_that_overflow_their_squares_have_diverged():
    """Weights of 1e25 are finite in single precision; their squares are not."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((3, 40)), rng.standard_normal(40)
    lr = 1.9 / np.linalg.eigvalsh(X @ X.T / 40)[-1]
    options = {"sampling": "shuffle", "chains": 4, "burn_in": 0, "every": 1}
    with pytest.raises(ArgumentError, match="diverged"):
        simulate_one_layer(X, Y, lr=lr, batch_size=1, steps=5, start=np.full(3, 1e20), **options)

"""Stationary fluctuations by optimiser and sampling, against chains of torch's own optimisers."""

import numpy as np
import pytest
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory import fluctuations as theory

RNG = np.random.default_rng(7)
BASIS = np.linalg.qr(RNG.standard_normal((3, 3)))[0]
H = (BASIS * np.array([0.4, 1.0, 2.5])) @ BASIS.T
FACTOR = RNG.standard_normal((3, 3))
C = FACTOR @ FACTOR.T  # does not commute with H
LR = 0.05


def run_optimizer(make, noise, steps, chains, *, curvature=H, discard=0.3):
    """Return the covariance of weights of many chains under one of torch's optimisers.

    Args:
        make: From a parameter (chains, 3) to an optimiser.
        noise: noise(step) -> (chains, 3).
        steps: Steps of each chain.
        chains: Number of chains.
        curvature: H.
        discard: Share of the steps before the state is stationary.
    """
    weights = torch.nn.Parameter(torch.zeros(chains, 3, dtype=torch.float64))
    optimizer = make(weights)
    curvature = torch.from_numpy(curvature)
    total, count = torch.zeros(3, 3, dtype=torch.float64), 0
    for step in range(steps):
        weights.grad = weights.detach() @ curvature + noise(step)
        optimizer.step()
        if step >= discard * steps:
            total += weights.detach().T @ weights.detach()
            count += chains
    return (total / count).numpy()


def independent(chains, seed=0):
    generator = torch.Generator("cpu").manual_seed(seed)
    factor = torch.from_numpy(FACTOR)
    return lambda _: torch.randn(chains, 3, generator=generator, dtype=torch.float64) @ factor.T


def shuffled(chains, batches, seed=0):
    """Noise that sums to zero over every epoch and has covariance C at each step."""
    generator = torch.Generator("cpu").manual_seed(seed)
    factor = torch.from_numpy(FACTOR)
    epoch = {}

    def noise(step):
        if step % batches == 0:
            drawn = torch.randn(chains, batches, 3, generator=generator, dtype=torch.float64)
            drawn -= drawn.mean(dim=1, keepdim=True)
            epoch["noise"] = drawn * np.sqrt(batches / (batches - 1)) @ factor.T
        return epoch["noise"][:, step % batches]

    return noise


def assert_same(found, expected):
    """Within 4% of the largest variance: 4,000 chains leave a standard error of 1%."""
    assert np.abs(found - expected).max() < 0.04 * np.abs(expected).max()


def sgd(**options):
    return lambda weights: torch.optim.SGD([weights], lr=LR, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.8, "dampening": 0.8},
        {"momentum": 0.5, "weight_decay": 0.7},
        {"weight_decay": 0.7},
    ],
    ids=str,
)
@pytest.mark.parametrize("batches", [None, 8])
def test_the_chain_of_torchs_sgd_has_the_covariance_of_the_closed_form(options, batches):
    chains, steps = 4000, 480
    noise = independent(chains) if batches is None else shuffled(chains, batches)
    found = run_optimizer(sgd(**options), noise, steps, chains)
    expected = theory.stationary_state(H, C, LR, batches=batches, **options).covariance
    if batches is not None:  # weights after steps 1 … B, and the closed form's before each of them
        assert np.trace(expected) < 0.5 * np.trace(
            theory.stationary_state(H, C, LR, **options).covariance
        )
    assert_same(found, expected)


def test_a_fixed_preconditioner_with_averaged_gradients_is_adam_near_rest():
    factors = np.array([0.5, 2.0, 1.2])
    chains = 4000
    noise = independent(chains, seed=1)
    scale = torch.from_numpy(factors)
    weights = torch.zeros(chains, 3, dtype=torch.float64)
    mean = torch.zeros_like(weights)
    total, kept = torch.zeros(3, 3, dtype=torch.float64), 0
    for step in range(600):
        gradient = weights @ torch.from_numpy(H) + noise(step)
        mean = 0.9 * mean + 0.1 * gradient
        weights = (1 - LR * 0.3) * weights - LR * scale * mean
        if step >= 200:
            total, kept = total + weights.T @ weights, kept + chains
    state = theory.stationary_state(
        H, C, LR, momentum=0.9, dampening=0.9, decoupled_decay=0.3, preconditioner=factors
    )
    assert_same((total / kept).numpy(), state.covariance)


def test_plain_sgd_is_the_discrete_lyapunov_covariance():
    state = theory.stationary_state(H, C, LR)
    expected = theory.lyapunov_covariance(H, C, LR, time="discrete")
    np.testing.assert_allclose(state.covariance, expected, rtol=1e-12)
    np.testing.assert_allclose(state.correlation_steps, -1 / np.log(1 - LR * state.curvatures))


def test_momentum_in_one_dimension_has_its_known_variance():
    """λ c (1+β)/(h (1−β)(2(1+β) − λh)), the stationary variance of heavy ball."""
    h, c, lr, beta = 1.7, 0.6, 0.3, 0.85
    state = theory.stationary_state([[h]], [[c]], lr, momentum=beta)
    known = lr * c * (1 + beta) / (h * (1 - beta) * (2 * (1 + beta) - lr * h))
    assert state.covariance[0, 0] == pytest.approx(known, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_refuses_exactly_where_the_update_diverges(momentum):
    for factor in np.linspace(0.9, 1.1, 21):
        lr = factor * 2 * (1 + momentum) / 2.5
        radius = max(
            np.abs(np.roots([1, -(1 + momentum - lr * h), momentum])).max() for h in (0.4, 1.0, 2.5)
        )
        if radius >= 1:
            with pytest.raises(ArgumentError, match="diverges"):
                theory.stationary_state(H, C, lr, momentum=momentum)
        else:
            assert np.isfinite(
                theory.stationary_state(H, C, lr, momentum=momentum).covariance
            ).all()


def test_directions_without_curvature_and_noise_stay_at_rest():
    flat, quiet = np.diag([0.0, 1.0]), np.diag([0.0, 2.0])
    state = theory.stationary_state(flat, quiet, 0.1, momentum=0.5)
    assert state.covariance[0, 0] == 0 and np.isinf(state.correlation_steps[0])
    with pytest.raises(ArgumentError, match="without curvature"):
        theory.stationary_state(flat, np.eye(2), 0.1)


def test_one_batch_per_epoch_has_no_noise():
    assert not theory.stationary_state(H, C, LR, batches=1).covariance.any()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"momentum": 1.0}, "below 1"),
        ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "no dampening"),
        ({"preconditioner": [1.0, 0.0, 1.0]}, "positive factors"),
        ({"batches": 0}, "batches"),
    ],
)
def test_what_no_optimiser_does_is_refused(options, match):
    with pytest.raises(ArgumentError, match=match):
        theory.stationary_state(H, C, LR, **options)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_curvature_that_is_rounding_does_not_diverge(momentum):
    for seed in range(10):
        X = np.random.default_rng(seed).normal(size=(6, 4))
        H = X @ X.T / 4  # two directions without curvature, whose eigenvalues come out at 1e-16
        found = theory.stationary_state(H, H, 0.05, momentum=momentum)
        V = np.linalg.svd(X)[0][:, :4]
        inside = theory.stationary_state(V.T @ H @ V, V.T @ H @ V, 0.05, momentum=momentum)
        np.testing.assert_allclose(found.covariance, V @ inside.covariance @ V.T, atol=1e-12)
        assert np.isinf(found.correlation_steps[:2]).all()

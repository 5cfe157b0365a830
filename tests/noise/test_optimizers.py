"""The stationary covariance under the optimiser and the sampling that are used."""

import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.noise import StabilityWarning
from hyperribbon.theory import fluctuations as theory

RNG = np.random.default_rng(0)
FACTOR, NOISE = RNG.standard_normal((2, 4, 4))
H, C = FACTOR @ FACTOR.T / 4 + 0.2 * np.eye(4), NOISE @ NOISE.T
WEIGHT = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))


def state(lr, **rule):
    return theory.stationary_state(H, C, lr, **rule).covariance


def after_steps(optimizer, steps=5):
    generator = torch.Generator("cpu").manual_seed(1)
    for _ in range(steps):
        WEIGHT.grad = torch.randn(4, generator=generator, dtype=torch.float64)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"momentum": 0.9}, {"momentum": 0.9}),
        ({"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "nesterov": True}),
        (
            {"momentum": 0.5, "dampening": 0.2, "weight_decay": 0.1},
            {"momentum": 0.5, "dampening": 0.2, "weight_decay": 0.1},
        ),
    ],
)
def test_sgd_is_read_with_its_settings(options, rule):
    optimizer = torch.optim.SGD([WEIGHT], lr=0.05, **options)
    found = hr.stationary_covariance(H, C, optimizer=optimizer)
    np.testing.assert_allclose(found, state(0.05, **rule))
    shuffled = hr.stationary_covariance(H, C, optimizer=optimizer, sampling="shuffled", batches=10)
    np.testing.assert_allclose(shuffled, state(0.05, batches=10, **rule))
    other = hr.stationary_covariance(H, C, 0.02, optimizer=optimizer)
    np.testing.assert_allclose(other, state(0.02, **rule))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_adaptive_optimisers_are_read_with_their_preconditioner(kind):
    optimizer = after_steps(kind([WEIGHT], lr=0.01, weight_decay=0.1))
    squares = optimizer.state[WEIGHT]
    if kind is torch.optim.RMSprop:
        v, momentum = squares["square_avg"], 0.0
    else:
        v, momentum = squares["exp_avg_sq"] / (1 - 0.999**5), 0.9
    rule = {"preconditioner": (1 / (v.sqrt() + 1e-8)).numpy(), "momentum": momentum}
    rule["dampening"] = momentum
    rule["decoupled_decay" if kind is torch.optim.AdamW else "weight_decay"] = 0.1
    found = hr.stationary_covariance(torch.from_numpy(H), torch.from_numpy(C), optimizer=optimizer)
    np.testing.assert_allclose(found.numpy(), state(0.01, **rule))


def test_operators_take_momentum_in_the_leading_subspace():
    generator = torch.Generator("cpu").manual_seed(0)
    X = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    data = (X, X[:, :1] + 0.1 * torch.randn(40, 1, generator=generator, dtype=torch.float64))
    model = torch.nn.Linear(3, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    curvature = hr.Hessian(model, torch.nn.MSELoss(), data)
    noise = hr.GradientCovariance(model, torch.nn.MSELoss(), data, batch_size=4)
    found = hr.stationary_covariance(curvature, noise, optimizer=optimizer, k=3)
    dense = theory.stationary_state(curvature.to_dense(), noise.to_dense(), 0.05, momentum=0.9)
    basis = found.basis.numpy()
    np.testing.assert_allclose(basis @ found.matrix @ basis.T, dense.covariance, rtol=1e-4)
    np.testing.assert_allclose(found.correlation_steps, dense.correlation_steps[::-1], rtol=1e-4)


def test_continuous_time_warns_beyond_stability_and_knows_plain_sgd_only():
    with pytest.warns(StabilityWarning, match="stability limit"):
        hr.stationary_covariance(np.eye(1), np.eye(1), 5.0)
    with pytest.warns(StabilityWarning):
        hr.stationary_covariance(np.diag([2.0, 1.0]), np.eye(2), 1.0)  # lr·h = 2 exactly
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hr.stationary_covariance(np.diag([2.0, 1.0]), np.eye(2), 0.999)
    with pytest.raises(ArgumentError, match="diverges"):
        hr.stationary_covariance(np.eye(1), np.eye(1), 5.0, time="discrete")
    momentum = torch.optim.SGD([WEIGHT], lr=0.1, momentum=0.9)
    with pytest.raises(ArgumentError, match="step by step"):
        hr.stationary_covariance(H, C, time="continuous", optimizer=momentum)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"optimizer": torch.optim.Adagrad([WEIGHT])}, "expected one of SGD"),
        ({"optimizer": torch.optim.Adam([WEIGHT])}, "taken no step"),
        ({"sampling": "shuffled"}, "number of batches"),
        ({"batches": 4}, "batches"),
        ({"sampling": "sorted"}, "sampling"),
        ({"lr": None}, "lr"),
    ],
)
def test_what_cannot_be_read_is_named(options, match):
    with pytest.raises(ArgumentError, match=match):
        hr.stationary_covariance(H, C, **{"lr": 0.1, **options})


def growth_of_second_moments(H, lr, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0):
    """Return how the covariance of (w, v) grows a step, by repeated steps of torch's update."""
    if not weight_decay:  # nothing moves where there is neither curvature nor noise
        V = scipy.linalg.orth(H)
        H = V.T @ H @ V
    one = np.eye(len(H))
    curvature = H + weight_decay * one
    v = np.hstack([(1 - dampening) * curvature, momentum * one])
    direction = np.hstack([curvature, 0 * one]) + momentum * v if nesterov else v
    A = np.vstack([np.hstack([one, 0 * one]) - lr * direction, v])
    M, growth = np.eye(len(A)), []
    for _ in range(2000):
        M = A @ M @ A.T
        growth.append(np.log(np.linalg.norm(M)))
        M /= np.linalg.norm(M)
    return np.exp(np.mean(growth[1000:]))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"momentum": 0.5},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.5, "nesterov": True},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.1},
    ],
)
def test_refused_if_and_only_if_second_moments_grow(rule, seed):
    X = np.random.default_rng(seed).normal(size=(5, 3))
    H = X @ X.T / 3  # two directions without curvature
    largest = scipy.optimize.brentq(
        lambda lr: growth_of_second_moments(H, lr, **rule) - 1, 0.02, 50.0, xtol=1e-3
    )
    for part in (0.5, 0.8, 0.95, 0.99, 1.01, 1.05, 1.5):
        grows = growth_of_second_moments(H, part * largest, **rule) >= 1
        assert grows == (part > 1)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(5))], part * largest, **rule)
        try:
            M = hr.stationary_covariance(H, H, optimizer=optimizer, time="discrete")
        except ArgumentError as error:
            assert grows, part
            assert "diverges" in error.reason
        else:
            assert not grows, part
            assert np.isfinite(M).all()

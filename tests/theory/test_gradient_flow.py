"""Descent follows the modified loss to second order; SGD has the stated stationary variance."""

import numpy as np
import pytest

from hyperribbon.core import ArgumentError
from hyperribbon.theory import gradient_flow

MATRIX = np.array([[1.3, 0.4], [0.4, 0.6]])


def _gradient(theta):
    return MATRIX @ theta + 0.4 * theta**3 - 0.3 * np.cos(theta)


def _hessian_product(theta, v):
    return MATRIX @ v + (1.2 * theta**2 + 0.3 * np.sin(theta)) * v


def _descend(step, momentum, time):
    theta = np.array([1.0, -0.7])
    velocity = -gradient_flow.effective_step(step, momentum) * _gradient(theta)
    for _ in range(round(time / gradient_flow.effective_step(step, momentum))):
        velocity = momentum * velocity - step * _gradient(theta)
        theta = theta + velocity
    return theta


def _slope(momentum, factor):
    """Slope of the global error in the step, against L + factor·c·‖∇L‖²."""
    effective = np.array([0.01, 0.005, 0.0025, 0.00125]) * (1 - momentum)
    steps = effective * (1 - momentum)
    errors = []
    for step in steps:
        coefficient = factor * gradient_flow.regularisation_coefficient(step, momentum)
        followed = gradient_flow.modified_gradient(_gradient, _hessian_product, coefficient)
        end = gradient_flow.flow(followed, np.array([1.0, -0.7]), 1.0)
        errors.append(np.linalg.norm(_descend(step, momentum, 1.0) - end))
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_only_the_stated_coefficient_gives_second_order(momentum):
    assert _slope(momentum, 1.0) == pytest.approx(2.0, abs=0.1)
    for other in (0.0, -1.0, 2.0):
        assert _slope(momentum, other) == pytest.approx(1.0, abs=0.1)


def test_the_quadratic_case_in_closed_form():
    step, curvature = 1e-3, 2.0
    modified = gradient_flow.modified_gradient(
        lambda x: curvature * x,
        lambda x, v: curvature * v,
        gradient_flow.regularisation_coefficient(step),
    )
    flowed = gradient_flow.flow(modified, np.array([1.0]), 1.0)[0]
    assert flowed == pytest.approx((1 - step * curvature) ** 1000, rel=2 * step**2 * curvature**3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_stationary_variance_solves_the_lyapunov_equation(momentum):
    curvature, step, batch, noise = 1.7, 0.2, 4, 3.0
    drift = np.array([[1 + momentum - step * curvature, -momentum], [1.0, 0.0]])  # (θ_k, θ_{k−1})
    covariance, source = np.zeros((2, 2)), np.diag([step**2 * noise / batch, 0.0])
    for _ in range(5000):
        covariance = drift @ covariance @ drift.T + source
    predicted = gradient_flow.stationary_variance(curvature, step, batch, noise, momentum)
    assert predicted == pytest.approx(covariance[0, 0], rel=1e-9)


def test_the_leading_order_is_the_gibbs_law():
    curvature, step, batch, noise = 1.7, 1e-5, 4, 3.0
    beta = gradient_flow.inverse_temperature(step, batch, noise)
    exact = gradient_flow.stationary_variance(curvature, step, batch, noise)
    assert exact == pytest.approx(1 / (beta * curvature), rel=1e-4)
    heavy = gradient_flow.stationary_variance(curvature, step, batch, noise, 0.5)
    assert heavy == pytest.approx(2 * exact, rel=1e-4)


def test_bad_arguments_are_explained():
    with pytest.raises(ArgumentError, match="below 1"):
        gradient_flow.effective_step(0.1, 1.0)
    with pytest.raises(ArgumentError, match="diverges"):
        gradient_flow.stationary_variance(1.0, 2.0, 1, 1.0)
    with pytest.raises(ArgumentError, match="could not be followed"):
        gradient_flow.flow(lambda x: -(x**2), np.array([1.0]), 2.0)

r"""Gradient descent and its noise as flows: the modified loss, and the stationary law of SGD.

Implements the optimisation theory of chapter 2 of [subnetworks].
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp

from hyperribbon.core.checks import (
    ArgumentError,
    count,
    function,
    number,
    positive,
    returned_array,
    row,
    validate,
    zero_or_more,
)

__all__ = [
    "effective_step",
    "flow",
    "inverse_temperature",
    "modified_gradient",
    "regularisation_coefficient",
    "stationary_variance",
]

Vector = np.ndarray
_MOST = 100_000


@validate(step=positive, momentum=zero_or_more)
def effective_step(step: float, momentum: float = 0.0) -> float:
    """Return by how much one step of heavy-ball descent advances the gradient flow, h / (1 − μ)."""
    return step / (1.0 - _checked_momentum(momentum))


@validate(step=positive, momentum=zero_or_more)
def regularisation_coefficient(step: float, momentum: float = 0.0) -> float:
    r"""Return c of L + c‖∇L‖², the loss whose gradient flow descent follows.

    $$\tilde L = L + c\,\lVert\nabla L\rVert^2,\qquad
      c = \frac{h_\text{eff}}{4}\,\frac{1+\mu}{1-\mu},\quad h_\text{eff} = \frac{h}{1-\mu}$$

    Implements Eq. (2.27) of [subnetworks], c = h/4, extended to momentum: there the flow runs in
    time h_eff a step, and the velocity lags the gradient.

    >>> regularisation_coefficient(0.1)
    0.025
    """
    mu = _checked_momentum(momentum)
    return effective_step(step, mu) * (1.0 + mu) / (4.0 * (1.0 - mu))


@validate(gradient=function, hessian_product=function, coefficient=number)
def modified_gradient(
    gradient: Callable[[Vector], Vector],
    hessian_product: Callable[[Vector, Vector], Vector],
    coefficient: float,
) -> Callable[[Vector], Vector]:
    r"""Return ∇L̃ = ∇L + 2c ∇²L ∇L of the modified loss whose gradient flow descent follows.

    Args:
        gradient: θ → ∇L(θ).
        hessian_product: (θ, v) → ∇²L(θ) v.
        coefficient: c, from `regularisation_coefficient`.
    """

    def modified(theta: Vector) -> Vector:
        g = gradient(theta)
        return g + 2.0 * coefficient * hessian_product(theta, g)

    return modified


@validate(gradient=function, start=row, time=zero_or_more)
def flow(gradient: Callable[[Vector], Vector], start: Vector, time: float) -> Vector:
    r"""Return θ(time) of the gradient flow dθ/dt = −∇L(θ).

    Integrated with an explicit Runge-Kutta method of order 8 to a relative accuracy of 10⁻¹¹, so
    that what remains of a comparison with descent is the error of descent.

    Args:
        gradient: θ → ∇L(θ).
        start: θ(0), one-dimensional.
        time: How far to go.

    Raises:
        ArgumentError: The flow could not be followed, or not within 100,000 gradients.
    """
    evaluations = itertools.count()

    def move(_: float, theta: Vector) -> Vector:
        if next(evaluations) >= _MOST:
            reason = f"the flow is not there after {_MOST} gradients"
            raise ArgumentError("time", time, reason, "Take a shorter time.")
        return -returned_array("gradient", gradient(theta), theta.shape)

    solution = solve_ivp(move, (0.0, time), start, method="DOP853", rtol=1e-11, atol=1e-13)
    if not solution.success:
        reason = f"it could not be followed ({solution.message})"
        raise ArgumentError("gradient", "the flow", reason, "Take a shorter time.")
    return solution.y[:, -1]


@validate(step=positive, batch=count, noise_variance=positive)
def inverse_temperature(step: float, batch: int, noise_variance: float) -> float:
    r"""Return β of P(θ) ∝ exp(−βL(θ)), the law of gradient flow with isotropic noise.

    $$\beta = \frac{2b}{\eta\sigma^2}$$

    to leading order in the step. With an averaged loss over n data, the Bayesian posterior has
    β = n, not 1. Implements Eq. (2.16) of [subnetworks].

    Args:
        step: Learning rate η.
        batch: Batch size b.
        noise_variance: σ², the variance of one sample's gradient in each direction.
    """
    return 2.0 * batch / (step * noise_variance)


@validate(
    curvature=positive, step=positive, batch=count, noise_variance=positive, momentum=zero_or_more
)
def stationary_variance(
    curvature: float, step: float, batch: int, noise_variance: float, momentum: float = 0.0
) -> float:
    r"""Return the exact variance of SGD on L = kθ²/2, beside that of gradient flow with noise.

    $$\operatorname{Var}\theta = \frac{\eta\sigma^2}{b}\,
      \frac{1+\mu}{k\,(1-\mu)\,[2(1+\mu) - \eta k]}$$

    For μ = 0 this is the variance 1/(βk) of Eq. (2.16) of [subnetworks] times 1/(1 − ηk/2); for
    small steps momentum multiplies it by 1/(1 − μ).

    Args:
        curvature: k.
        step: Learning rate η.
        batch: Batch size b.
        noise_variance: σ², the variance of one sample's gradient.
        momentum: μ of heavy-ball descent.

    Raises:
        ArgumentError: The step is so large that descent diverges, ηk ≥ 2(1 + μ).
    """
    mu = _checked_momentum(momentum)
    if step * curvature >= 2.0 * (1.0 + mu):
        remedy = f"Give less than {2.0 * (1.0 + mu) / curvature:g}."
        raise ArgumentError("step", step, f"descent diverges at curvature {curvature}", remedy)
    noise = step * noise_variance / batch
    return noise * (1.0 + mu) / (curvature * (1.0 - mu) * (2.0 * (1.0 + mu) - step * curvature))


def _checked_momentum(momentum: float) -> float:
    if momentum >= 1.0:
        raise ArgumentError("momentum", momentum, "it must be below 1", "Give for instance 0.9.")
    return momentum

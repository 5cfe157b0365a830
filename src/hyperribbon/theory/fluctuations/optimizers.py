"""Stationary weight fluctuations under the optimiser and the sampling that are used.

The closed forms of [fluctuations] are for plain SGD with independent batches. Momentum, weight
decay, a fixed preconditioner and epochs without replacement change the update, and near a minimum
the update stays linear: with weights w and momentum buffer v,

    v ← βv + (1−δ)(Hw + ξ),   w ← w − λ·v   (Nesterov: w ← w − λ·(Hw + ξ + βv)),

so that z = (w, v) is an autoregressive process whose covariance solves a Lyapunov equation.
"""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as Float

import numpy as np
from numpy.typing import ArrayLike

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, validate
from hyperribbon.core.result import Brief
from hyperribbon.theory.fluctuations.stationary import in_eigenbasis


@dataclass(frozen=True, eq=False)
class StationaryState(Brief):
    """Fluctuations of the weights under one optimiser.

    Attributes:
        covariance: (N, N), of the weights; over an epoch its mean.
        directions: (N, N), columns along which modes relax on their own: eigenvectors of H, or
            P^{1/2} times those of P^{1/2}HP^{1/2} with a preconditioner P.
        curvatures: (N,), ascending, of H (of P^{1/2}HP^{1/2} with a preconditioner).
        correlation_steps: (N,), steps in which each mode's memory falls by e; infinite where there
            is no curvature.
    """

    covariance: Float[np.ndarray, "N N"]
    directions: Float[np.ndarray, "N N"]
    curvatures: Float[np.ndarray, "N"]
    correlation_steps: Float[np.ndarray, "N"]


@validate(
    H=checks.symmetric,
    C=checks.covariance,
    lr=checks.positive,
    momentum=checks.zero_or_more,
    dampening=checks.zero_or_more,
    weight_decay=checks.zero_or_more,
    decoupled_decay=checks.zero_or_more,
    preconditioner=checks.row,
    batches=checks.count,
)
def stationary_state(
    H: ArrayLike,
    C: ArrayLike,
    lr: float,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    decoupled_decay: float = 0.0,
    preconditioner: ArrayLike | None = None,
    batches: int | None = None,
) -> StationaryState:
    r"""Return stationary fluctuations under an optimiser, for curvature H and gradient noise C.

    In the eigenbasis of H each mode has a 2×2 update $A_i$ of (w, v) that noise enters through
    $b_i$, and the covariance of modes i and j solves

    $$ M_{ij} = A_i M_{ij} A_j^\top + \tilde C_{ij}\, b_i b_j^\top. $$

    When every epoch goes once through B batches in a new order, the noise of its steps sums to
    zero: $\operatorname{Cov}(\xi_s, \xi_t) = -C/(B-1)$. The state then repeats every epoch, and its
    mean over the steps is returned. Noise that depends on w is omitted, as in
    `lyapunov_covariance`.

    Args:
        H: Curvature (N×N), symmetric, no negative eigenvalues.
        C: Covariance (N×N) of one step's gradient noise.
        lr: Learning rate λ.
        momentum: β of the buffer; β₁ of Adam.
        dampening: δ, as in torch's SGD; β₁ again for Adam, whose buffer is a mean.
        nesterov: Nesterov's form of momentum, as in torch's SGD.
        weight_decay: μ, added to the curvature.
        decoupled_decay: μ of w ← (1 − λμ)w, as in AdamW.
        preconditioner: (N,), fixed positive factors of the step; 1/(√v̂ + ε) for Adam and RMSprop.
        batches: B, steps of an epoch without replacement; None for independent batches.

    Returns:
        The covariance, and the modes with their correlation times.

    Raises:
        ArgumentError: The update diverges, H or C is not positive semidefinite, or noise acts where
            nothing pulls the weights back.

    >>> state = stationary_state([[2.0]], [[4.0]], 0.1, momentum=0.9)
    >>> state.covariance.round(4)  # plain SGD: 0.1111
    array([[1.0556]])
    """
    if momentum >= 1 or dampening >= 1:
        value = momentum if momentum >= 1 else dampening
        name = "momentum" if momentum >= 1 else "dampening"
        raise ArgumentError(
            name, value, "expected a number from 0 to below 1", "Give 0.9, for instance."
        )
    if nesterov and dampening:
        reason = "Nesterov's momentum has no dampening"
        raise ArgumentError("dampening", dampening, reason, "Set it to zero.")
    H, C = np.asarray(H, dtype=np.float64), np.asarray(C, dtype=np.float64)
    scale = np.ones(len(H))
    if preconditioner is not None:
        factors = np.asarray(preconditioner, dtype=np.float64)
        if factors.shape != scale.shape or (factors <= 0).any():
            reason = f"expected {len(H)} positive factors"
            raise ArgumentError("preconditioner", preconditioner, reason, "Give 1/(√v + ε).")
        scale = np.sqrt(factors)
    whitened = (scale[:, None] * (H + weight_decay * np.eye(len(H)))) * scale
    rates, V, noise, null = in_eigenbasis(whitened, (scale[:, None] * C) * scale)
    entering = 1 - dampening
    reach = 1 + momentum * entering if nesterov else entering
    memory = momentum**2 if nesterov else momentum
    A = np.zeros((len(rates), 2, 2))
    A[:, 0, 0] = 1 - lr * decoupled_decay - lr * reach * rates
    A[:, 0, 1] = -lr * memory
    A[:, 1, 0] = entering * rates
    A[:, 1, 1] = momentum
    b = np.array([-lr * reach, entering])
    radius = np.abs(np.linalg.eigvals(A)).max(axis=1)
    held = ~np.diag(null) | (decoupled_decay > 0)
    if (radius[held] >= 1).any():
        worst = int(np.argmax(np.where(held, radius, 0)))
        reason = (
            f"the update diverges along curvature {rates[worst]:.4g}: "
            f"a step multiplies it by {radius[worst]:.4g}"
        )
        raise ArgumentError("lr", lr, reason, "Use a smaller learning rate.")
    spread = _over_epoch(A, b, batches) if batches and batches > 1 else _solve(A, np.outer(b, b))
    if batches == 1:
        spread = np.zeros_like(spread)
    covariance = np.where(null, 0.0, noise * np.where(null, 0.0, spread[..., 0, 0]))
    with np.errstate(divide="ignore"):
        steps = np.where(held, -1 / np.log(np.where(held, radius, 0.5)), np.inf)
    directions = scale[:, None] * V
    whole = directions @ covariance @ directions.T
    return StationaryState((whole + whole.T) / 2, directions, rates, steps)


def _solve(A: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Solve X_ij = A_i X_ij A_jᵀ + S_ij of an optimiser, all pairs of modes: (N, N, 2, 2)."""
    N = len(A)
    system = np.eye(4) - np.einsum("iab,jcd->ijacbd", A, A).reshape(N, N, 4, 4)
    singular = np.abs(np.linalg.det(system)) < 1e-300
    system[singular] = np.eye(4)
    right = np.broadcast_to(source, (N, N, 2, 2)).reshape(N, N, 4, 1)
    return np.linalg.solve(system, right).reshape(N, N, 2, 2)


def _over_epoch(A: np.ndarray, b: np.ndarray, batches: int) -> np.ndarray:
    """Return an optimiser's mean covariance over an epoch from unit anticorrelated noise.

    With ρ = 1/(B−1), the noise of the first t steps adds
    Q_t = (1+ρ) Σ_{k<t} a_k a_kᵀ − ρ g_t g_tᵀ, a_k = Aᵏb, g_t = Σ_{k<t} a_k, and the state at the
    start of an epoch solves S = A^B S A^Bᵀ + Q_B.
    """
    rho, N = 1 / (batches - 1), len(A)
    powers = np.empty((batches, N, 2, 2))
    power = np.broadcast_to(np.eye(2), A.shape)
    for step in range(batches):
        powers[step] = power
        power = A @ power
    impulses = (powers @ b).reshape(batches, -1)
    sums = np.cumsum(impulses, axis=0)
    left = np.arange(batches)[::-1, None] / batches  # share of the epoch that is still to come

    def pairs(values: np.ndarray) -> np.ndarray:
        return values.reshape(N, 2, N, 2).transpose(0, 2, 1, 3)

    end = (1 + rho) * impulses.T @ impulses - rho * np.outer(sums[-1], sums[-1])
    added = (1 + rho) * (left * impulses).T @ impulses - rho / batches * sums[:-1].T @ sums[:-1]
    start = _solve(power, pairs(end))
    flat = powers.reshape(batches, -1)
    carried = (flat.T @ flat / batches).reshape(N, 2, 2, N, 2, 2)
    return np.einsum("iabjdc,ijbc->ijad", carried, start) + pairs(added)

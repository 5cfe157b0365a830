"""Gradient noise along modes from the steps themselves, and what theory predicts from it."""

from __future__ import annotations

from typing import Annotated as Float
from typing import Any

import numpy as np
import scipy.linalg

from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.noise.weights import WeightCovariance
from hyperribbon.theory import fluctuations as theory

_FORGOTTEN = 40  # steps after which nothing is left of an unknown buffer: (β/(1+β))^40 < 1e-12


def gradients_of_steps(
    covariances: dict[str, WeightCovariance], rule: dict[str, Any]
) -> Float[np.ndarray, "steps K"]:
    """Return the mini-batch gradients along modes that explain recorded steps, for predictions.

    A step is −λPb with a buffer b ← βb + (1−δ)g, so that the weights of successive steps give g,
    but for weight decay, which changes little from step to step.
    """
    path = np.concatenate([c.projections for c in covariances.values()], axis=1)
    steps = -np.diff(path, axis=0) / rule["lr"]
    if "preconditioner" in rule:
        steps = np.linalg.solve(rule["preconditioner"], steps.T).T
    momentum, entering = rule.get("momentum", 0.0), 1 - rule.get("dampening", 0.0)
    if not rule.get("nesterov"):
        return (steps[1:] - momentum * steps[:-1]) / entering
    found, buffer = [], np.zeros(steps.shape[1])
    for step in steps:  # −Δw/λ = g + β(βb + g); what b was at first is forgotten after a few
        found.append((step - momentum**2 * buffer) / (1 + momentum))
        buffer = momentum * buffer + found[-1]
    return np.array(found[_FORGOTTEN:])


def noise_of_steps(
    covariances: dict[str, WeightCovariance], rule: dict[str, Any]
) -> tuple[Float[np.ndarray, "K K"], Float[np.ndarray, "K 2"]]:
    """Return for predictions the gradient noise along all modes, and how it changes.

    Returns:
        The covariance C of a mini-batch's gradient, and C_ii in the first and in the last tenth of
        the steps, over that of all.
    """
    gradients, batches = gradients_of_steps(covariances, rule), rule.get("batches")
    C, tenth = noise_of_gradients(gradients, batches), max(len(gradients) // 10, 2)
    pieces = (gradients[:tenth], gradients[-tenth:])
    levels = np.array([np.diag(noise_of_gradients(piece, batches)) for piece in pieces]).T
    return C, levels / np.maximum(np.diag(C), 1e-300)[:, None]


def noise_of_gradients(gradients: np.ndarray, batches: int | None) -> np.ndarray:
    """Return for predictions the gradient noise (K×K) along modes, by differences of steps.

    Half of their mean square is C·B/(B−1) for shuffled epochs of B batches, and C otherwise.
    """
    change = np.diff(gradients, axis=0)
    share = 1.0 if batches is None else 1 - 1 / batches
    return share * change.T @ change / (2 * len(change))


def preconditioner_within(
    factors: dict[str, np.ndarray],
    covariances: dict[str, WeightCovariance],
    parts: dict[str, ParameterSpace],
) -> tuple[np.ndarray, dict[str, float]]:
    """Return VᵀPV of a preconditioner P over all modes, to predict variances, and its share.

    Where that share is large the preconditioner carries modes into other directions, and what is
    predicted within their span need not hold.
    """
    blocks, beside = [], {}
    for name, covariance in covariances.items():
        scaled = np.concatenate([factors[n] for n in parts[name].names])[:, None] * covariance.modes
        inside = covariance.modes.T @ scaled
        blocks.append((inside + inside.T) / 2)
        rest = np.linalg.norm(scaled - covariance.modes @ inside) / np.linalg.norm(scaled)
        beside[name] = float(rest)
    return scipy.linalg.block_diag(*blocks), beside


def predict_modes(H: np.ndarray, C: np.ndarray, rule: dict[str, Any], stride: float) -> np.ndarray:
    """Return predicted variances and correlation times (in records) along the modes, (2, K).

    Within the span of the modes of all layers, and of that in the directions of positive curvature
    only; NaN along modes that lie mostly elsewhere.
    """
    root = np.eye(len(H))
    if "preconditioner" in rule:  # w = P^{1/2}u, and u has the plain update
        factors, axes = np.linalg.eigh(rule.pop("preconditioner"))
        root = (axes * np.sqrt(np.maximum(factors, 0.0))) @ axes.T
        H = root @ (H + rule.pop("weight_decay", 0.0) * np.eye(len(H))) @ root
        C = root @ C @ root
    rates, vectors = np.linalg.eigh(H)
    V = vectors[:, rates > 1e-6 * max(rates[-1], 0.0)]
    if not V.shape[1]:
        return np.full((2, len(H)), np.nan)
    state = theory.stationary_state(V.T @ H @ V, V.T @ C @ V, rule.pop("lr"), **rule)
    along = (root @ V @ state.directions) ** 2 * np.diag(
        state.directions.T @ state.covariance @ state.directions
    )
    share = along / np.maximum(along.sum(axis=1, keepdims=True), 1e-300)
    decay = np.exp(-stride / np.maximum(state.correlation_steps, 1e-9))
    times = share @ ((1 + decay) / np.maximum(1 - decay, 1e-12))
    variances = np.einsum("ij,jk,ik->i", root @ V, state.covariance, root @ V)
    if "batches" in rule:  # anticorrelated noise shortens the memory of a step
        times[:] = np.nan
    inside = np.sum(V**2, axis=1) > 0.5
    return np.where(inside, [variances, times], np.nan)

"""Geometric sums of (1 − x)^t that keep their relative accuracy for every rate 0 ≤ x < 2.

With d = 1 − x and v = 1 − d^T, taken as −expm1(T·log1p(−x)), no sum needs a subtraction:

    Σ_{t<T} (dᵢdⱼ)^t = (vᵢ + vⱼ − vᵢvⱼ)/(xᵢ + xⱼ − xᵢxⱼ),   (1/T) Σ_{t<T} d^t = v/(xT).

Rates may carry leading batch axes, with one number of steps for each.
"""

from __future__ import annotations

import functools
from typing import Annotated as Bool
from typing import Annotated as Float

import numpy as np
from scipy.special import bernoulli, comb

_SLOW = 0.5  # rates x with xT below this have moved little, and their powers t ↦ d^t a series
_ORDER = 17  # terms of it: 0.7^17/17! is below rounding
_SUMMED = 1000  # steps up to which moments of the times are summed


def pair_sums(rates: np.ndarray, steps: int | np.ndarray) -> Float[np.ndarray, "... n n"]:
    """Return geometric sums Σ_{t<T} (dᵢdⱼ)^t of pairs: (..., n, n) from rates (..., n), steps."""
    T = np.asarray(steps, dtype=float)[..., None]
    return _divide(pairs(*complements(rates, T)), pairs(*complements(rates, 1.0)), T[..., None])


def pairs(moved: np.ndarray, flips: np.ndarray) -> Float[np.ndarray, "... n n"]:
    """Return 1 − (dᵢdⱼ)^power of geometric sums for all pairs: (..., n, n) from (..., n)."""
    union = (1 - moved)[..., :, None] * moved[..., None, :]
    union += moved[..., :, None]
    if flips.any():
        opposite = flips[..., :, None] ^ flips[..., None, :]
        np.subtract(2, union, out=union, where=opposite)
    return union


def square_sums(rates: np.ndarray, steps: int | np.ndarray) -> Float[np.ndarray, "... n"]:
    """Return Σ_{t<T} d^{2t}, the diagonal of `pair_sums`: (..., n)."""
    T = np.asarray(steps, dtype=float)[..., None]
    moved, _ = complements(rates, T)
    return _divide(moved * (2 - moved), rates * (2 - rates), T)


def mean_powers(rates: np.ndarray, steps: int | np.ndarray) -> Float[np.ndarray, "... n"]:
    """Return the mean (1/T) Σ_{t<T} d^t of a geometric sum: (..., n)."""
    T = np.asarray(steps, dtype=float)[..., None]
    moved, flips = complements(rates, T)
    return _divide(np.where(flips, 2 - moved, moved), rates, T) / T


def covariances(rates: np.ndarray, steps: int | np.ndarray) -> Float[np.ndarray, "... n n"]:
    r"""Return the covariance over t < T of powers d_i^t, d_j^t, from geometric sums: (..., n, n).

    It is the difference of `pair_sums`/T and the product of `mean_powers`, which cancels where
    rates are slow, xT ≪ 1. There, with uᵢ = 1 − dᵢ^t and aᵢ = log dᵢ,

    $$\operatorname{cov}(u_i, u_j) = \sum_{p,q\ge1} \frac{a_i^p a_j^q}{p!\,q!}
      \operatorname{cov}(t^p, t^q),\qquad
      \sum_t u_i d_j^t = \frac{x_i v_j d_j - x_j v_i d_j^T}{x_j(x_i + x_j - x_ix_j)}$$

    for two slow rates, and for a slow one (i) beside one that is not.
    """
    T = np.asarray(steps, dtype=float)[..., None]
    means = mean_powers(rates, steps)
    total = pair_sums(rates, steps) / T[..., None] - means[..., :, None] * means[..., None, :]
    slow = rates * T <= _SLOW
    if not slow.any():
        return total
    powers, drift, spread = _slow_series(np.where(slow, rates, 0.0), T[..., 0])
    x, y = np.where(slow, rates, 0.0)[..., :, None], np.where(slow, 1.0, rates)[..., None, :]
    left = (1 - y) ** T[..., None]
    v = -np.expm1(T[..., None] * np.log1p(-x))
    moved = (x * (1 - left) * (1 - y) - y * v * left) / (y * (x + y - x * y) * T[..., None])
    mixed = -(moved + drift[..., :, None] * means[..., None, :])
    rows, columns = slow[..., :, None], slow[..., None, :]
    total = np.where(rows & columns, powers @ spread @ np.swapaxes(powers, -1, -2), total)
    total = np.where(rows & ~columns, mixed, total)
    return np.where(~rows & columns, np.swapaxes(mixed, -1, -2), total)


def variances(rates: np.ndarray, steps: int | np.ndarray) -> Float[np.ndarray, "... n"]:
    """Return from geometric sums the variance over t < T of d^t, `covariances`' diagonal."""
    T = np.asarray(steps, dtype=float)[..., None]
    direct = square_sums(rates, steps) / T - mean_powers(rates, steps) ** 2
    slow = rates * T <= _SLOW
    if not slow.any():
        return direct
    powers, _, spread = _slow_series(np.where(slow, rates, 0.0), T[..., 0])
    return np.where(slow, ((powers @ spread) * powers).sum(axis=-1), direct)


def _slow_series(
    rates: np.ndarray, steps: np.ndarray
) -> tuple[Float[np.ndarray, "... n p"], Float[np.ndarray, "... n"], Float[np.ndarray, "... p p"]]:
    """Return geometric sums' series: (T log d)^p/p!, the mean of d^t − 1, cov((t/T)^p, (t/T)^q)."""
    factors = np.arange(1, _ORDER + 1)
    powers = np.cumprod((steps[..., None] * np.log1p(-rates))[..., None] / factors, axis=-1)
    times, where = np.unique(steps, return_inverse=True)
    moments = np.array([_time_moments(int(time)) for time in times])[where.reshape(steps.shape)]
    mean = moments[..., 1 : _ORDER + 1]
    spread = moments[..., np.add.outer(factors, factors)] - mean[..., :, None] * mean[..., None, :]
    return powers, (powers @ mean[..., None])[..., 0], spread


def noise_average(rates: np.ndarray, steps: int) -> Float[np.ndarray, "n"]:
    """Return the double geometric sum (1/T) Σ_{t<T} Σ_{u<t} d^{2u}: what unit kicks build up.

    It equals (1 − s/T)/(1 − d²) with s = Σ_{t<T} d^{2t}; for xT ≪ 1 the difference 1 − s/T cancels
    and its series in log d² is used instead.
    """
    gap = rates * (2 - rates)
    far = steps * gap >= 1e-2
    direct = (1 - square_sums(rates, steps) / steps) / np.where(far, gap, 1.0)
    u = np.log1p(-np.where(far, 0.0, gap))
    growth = 1 + u * _excess(u)
    series = (steps * _excess(steps * u) - _excess(u)) / growth**2
    return np.where(far, direct, series)


def complements(
    rates: np.ndarray, power: np.ndarray | float
) -> tuple[Float[np.ndarray, "*batch"], Bool[np.ndarray, "*batch"]]:
    """Return a geometric sum's 1 − |d|^power and whether d^power is negative."""
    with np.errstate(divide="ignore"):
        moved = -np.expm1(power * np.log1p(-np.minimum(rates, 2 - rates)))
    return moved, (rates > 1) & (np.mod(power, 2) == 1)


@functools.lru_cache(maxsize=1024)
def _time_moments(steps: int) -> np.ndarray:
    """Return (1/T) Σ_{t<T} (t/T)^k for series of geometric sums, by Faulhaber's formula."""
    orders = np.arange(2 * _ORDER + 1)
    if steps <= _SUMMED:
        return ((np.arange(steps) / steps)[:, None] ** orders).mean(axis=0)
    terms = np.arange(2 * _ORDER + 1)
    weights = comb(orders[:, None] + 1, terms) * bernoulli(2 * _ORDER) * float(steps) ** -terms
    return np.tril(weights).sum(axis=1) / (orders + 1)


def _divide(numerator: np.ndarray, denominator: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return a geometric sum's quotient, and its limit T where a zero rate makes it 0/0."""
    still = denominator <= 0
    if not still.any():
        return numerator / denominator
    return np.where(still, limit, numerator / np.where(still, 1.0, denominator))


def _excess(z: np.ndarray) -> np.ndarray:
    """Return (e^z − 1 − z)/z² of a geometric sum by its series, for |z| ≤ 0.1."""
    z = np.clip(z, -0.1, 0.1)
    total = np.zeros_like(z)
    for factor in range(11, 1, -1):
        total = (1 + z * total) / factor
    return total

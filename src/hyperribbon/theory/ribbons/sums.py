"""Geometric sums of (1 − x)^t that keep their relative accuracy for every rate 0 ≤ x < 2."""

from __future__ import annotations

import numpy as np

__all__ = ["noise_average", "power_sums"]


def power_sums(rates: np.ndarray, steps: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return s_ij = Σ_{t<T} (dᵢdⱼ)^t and g_i = (1/T) Σ_{t<T} dᵢ^t with d = 1 − x.

    With v = 1 − d^T, taken as −expm1(T·log1p(−x)), both follow without subtraction:

        s_ij = (vᵢ + vⱼ − vᵢvⱼ)/(xᵢ + xⱼ − xᵢxⱼ),   g = v/(xT).

    Args:
        rates: (n,), x = αλ.
        steps: T, or an array of B of them.

    Returns:
        s of shape (n, n) or (B, n, n) and g of shape (n,) or (B, n).
    """
    T = np.asarray(steps, dtype=float)[..., None]
    moved, flips = _complement(rates, T)
    gap, flip = _complement(rates, 1.0)
    numerator = _pair(moved, flips)
    denominator = _pair(gap, flip)
    with np.errstate(invalid="ignore", divide="ignore"):
        s = np.where(denominator > 0, numerator / denominator, T[..., None])
        single = np.where(flips, 2 - moved, moved)
        g = np.where(rates > 0, single / (rates * T), 1.0)
    return s, g


def _complement(rates: np.ndarray, power: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Return 1 − |d|^power and whether d^power is negative."""
    distance = np.minimum(rates, 2 - rates)
    with np.errstate(divide="ignore"):
        moved = -np.expm1(power * np.log1p(-distance))
    return moved, (rates > 1) & (np.mod(power, 2) == 1)


def _pair(moved: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Return 1 − (dᵢdⱼ)^power for all pairs from 1 − |d|^power and the signs."""
    row, column = moved[..., :, None], moved[..., None, :]
    union = row + column - row * column
    opposite = negative[..., :, None] != negative[..., None, :]
    return np.where(opposite, 2 - union, union)


def noise_average(rates: np.ndarray, steps: int) -> np.ndarray:
    """Return (1/T) Σ_{t<T} Σ_{u<t} d^{2u}: the mean variance that unit kicks have built up.

    It equals (1 − s/T)/(1 − d²) with s = Σ_{t<T} d^{2t}; for xT ≪ 1 the difference 1 − s/T cancels
    and its series in log d² is used instead.
    """
    q = (1 - rates) ** 2
    gap = rates * (2 - rates)
    with np.errstate(divide="ignore", invalid="ignore"):
        s = np.diagonal(power_sums(rates, steps)[0])
        direct = (1 - s / steps) / gap
    u = np.log1p(-np.minimum(gap, 0.5))
    series = _excess(u) - steps * _excess(steps * u)
    ratio = np.where(q < 1, np.expm1(u) / np.where(u == 0, 1, u), 1.0)
    small = np.where(u == 0, (steps - 1) / 2, -series / ratio**2)
    return np.where(steps * gap < 1e-2, small, direct)


def _excess(z: np.ndarray) -> np.ndarray:
    """Return (e^z − 1 − z)/z² by its series, for |z| ≤ 0.1."""
    z = np.clip(z, -0.1, 0.1)
    total = np.zeros_like(z)
    for factor in range(11, 1, -1):
        total = (1 + z * total) / factor
    return total

"""The paper's inequalities on the eigenvalues of the PCA matrix, each beside the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory.ribbons.model import Ribbon

__all__ = ["Bound", "weight_bound"]


@dataclass(frozen=True)
class Bound:
    """Numbers and the interval that theory gives for them.

    Attributes:
        truth: (k,), the exact values.
        upper: (k,), upper bounds; inf where there is none.
        lower: (k,), lower bounds; 0 where there is none.
    """

    truth: np.ndarray
    upper: np.ndarray
    lower: np.ndarray

    def violations(self, rtol: float = 1e-12) -> np.ndarray:
        """Return which entries leave their interval by more than `rtol` of the largest truth."""
        slack = rtol * np.abs(self.truth).max()
        return (self.truth > self.upper + slack) | (self.truth < self.lower - slack)


def weight_bound(ribbon: Ribbon) -> Bound:
    """Bound the eigenvalues of T·P₁^σ, the part due to the initial weights.

        λᵢ^σ = (σw²/α)(1 − (1 − αλᵢ)^{2T})/(2 − αλᵢ) ≤ (σw²/α)·min{1, 2Tαλᵢ}/(2 − αλᵢ).

    Implements Eq. (9) of [ribbons].

    >>> bound = weight_bound(Ribbon.exponential(50, 0.5, steps=100))
    >>> bound.truth[[0, 1, 10]].round(6)
    array([1.      , 0.717633, 0.371911])
    """
    _check_plain(ribbon)
    x = ribbon.alpha * ribbon.eigenvalues
    scale = ribbon.sigma_w**2 / ribbon.alpha
    upper = scale * np.minimum(1, 2 * ribbon.steps * x) / (2 - x)
    return Bound(ribbon.steps * ribbon.P1_sigma, upper, np.zeros_like(upper))


def _check_plain(ribbon: Ribbon) -> None:
    if ribbon.alpha * ribbon.eigenvalues[0] > 1:
        raise ArgumentError(
            "alpha",
            ribbon.alpha,
            "the bound assumes alpha at most 1/λ₁ (assumption iii of the paper)",
            f"Choose alpha up to {1 / ribbon.eigenvalues[0]:.4g}.",
        )
    if ribbon.weight_decay or ribbon.batch_size is not None or ribbon.targets.ndim > 1:
        raise ArgumentError(
            "ribbon",
            ribbon,
            "the bound is for full-batch gradient descent on one output without weight decay",
            "Give a plain ribbon.",
        )

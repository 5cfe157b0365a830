"""The phase diagram: how many dimensions a ribbon has, by slope, training time and ratio."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated as Float
from typing import Annotated as Int

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from hyperribbon.core.boundary import checked, count, positive
from hyperribbon.core.boundary import fraction as share
from hyperribbon.core.checks import ArgumentError, check_array
from hyperribbon.theory.ribbons.geometric_sums import complements, mean_powers, pairs, square_sums
from hyperribbon.theory.ribbons.truncation import Count, count_dimensions

__all__ = ["PhaseDiagram", "phase_diagram", "smallest_model"]

_LARGEST = 1e150  # ratios whose squares are finite


@dataclass(frozen=True, eq=False)
class PhaseDiagram:
    """Dimensions of the ribbon on a grid of ratios R × slopes C × steps T.

    Attributes:
        dimensions: (R, C, T) for several ratios, (C, T) for one; certified whole numbers.
        interpolated: The same shape: where the partial sums, joined by straight lines, reach the
            fraction. Smooth, for contours; `dimensions` is its ceiling.
        steps: (T,), training times.
        slopes: (C,), slopes of the data's spectrum.
        ratios: (R,), σ*/σw.
        fraction: Share of the variance that the dimensions carry.
        kept: The same shape as `dimensions`: size of the block that was diagonalised.
    """

    dimensions: Int[np.ndarray, "*R C T"]
    interpolated: Float[np.ndarray, "*R C T"]
    steps: Float[np.ndarray, "T"]
    slopes: Float[np.ndarray, "C"]
    ratios: Float[np.ndarray, "ratios"]
    fraction: float
    kept: Int[np.ndarray, "*R C T"]

    def boundary(self, dimension: float) -> Float[np.ndarray, "C T"]:
        """Return the ratio above which the ribbon has at most `dimension` dimensions: (C, T).

        Drawn as contours over (slope, steps) this is Fig. 8 (e–f) of [ribbons]. Between the ratios
        of the grid it is interpolated in the logarithm; NaN where even the largest ratio leaves
        more dimensions, 0 where every ratio of the grid gives fewer.

        Raises:
            ArgumentError: The diagram has one ratio only.
        """
        if self.dimensions.ndim < 3 or len(self.ratios) < 2:
            raise ArgumentError(
                "ratio", self.ratios, "a boundary needs several ratios", "Give ratio=[1, 2, 4, 8]."
            )
        above = self.interpolated > dimension
        last = len(self.ratios) - 1 - np.argmax(above[::-1], axis=0)
        here = np.minimum(last, len(self.ratios) - 2)[None]
        low = np.take_along_axis(self.interpolated, here, axis=0)[0]
        high = np.take_along_axis(self.interpolated, here + 1, axis=0)[0]
        share = (low - dimension) / np.where(low == high, 1.0, low - high)
        logs = np.log(self.ratios)
        crossing = np.exp(
            logs[here[0]] + np.clip(share, 0, 1) * (logs[here[0] + 1] - logs[here[0]])
        )
        return np.where(above[-1], np.nan, np.where(above.any(axis=0), crossing, 0.0))


@checked(n=count, fraction=share, alpha=positive)
def phase_diagram(
    n: int,
    steps: Sequence[int] | np.ndarray,
    slopes: Sequence[float] | np.ndarray,
    ratio: float | Sequence[float] | np.ndarray,
    *,
    fraction: float = 0.95,
    alpha: float = 1.0,
) -> PhaseDiagram:
    """Return how many principal components carry `fraction` of the variance of the trajectories.

    Data with eigenvalues exp(−c(i−1)), targets yᵢ = σ*√λᵢ, learning rate α. Every grid point takes
    its block of P from the closed form of Eq. (5) of [ribbons] and only as much of it as the answer
    needs (`count_dimensions`), so the cost hardly grows with n. Computes Fig. 8 of [ribbons].

    Args:
        n: Number of samples.
        steps: Training times T.
        slopes: Slopes c.
        ratio: σ*/σw: one number, or several for the three-dimensional diagram.
        fraction: Share of the variance.
        alpha: Learning rate, below 2.

    Raises:
        ArgumentError: Training diverges, or an axis holds values that cannot be.

    >>> phase_diagram(50, [1, 10_000], [0.05, 0.5], 3.0).dimensions
    array([[42, 22],
           [ 6, 13]])
    """
    if alpha >= 2:
        raise ArgumentError("alpha", alpha, "training diverges from 2 on", "Choose alpha below 2.")
    T = _axis("steps", steps)
    if (T < 1).any() or (T % 1 != 0).any():
        raise ArgumentError("steps", steps, "expected integers, 1 or more", "Round them.")
    c, ratios = _axis("slopes", slopes), _axis("ratio", ratio)
    for name, values in (("slopes", c), ("ratio", ratios)):
        if (values < 0).any() or (values > _LARGEST).any():
            reason = f"expected numbers from 0 to {_LARGEST:g}"
            raise ArgumentError(name, values, reason, "Give values in that range.")
    if not ratios.all():
        raise ArgumentError("ratio", ratio, "a ratio σ*/σw is positive", "Give ratios above 0.")

    def column(slope: float) -> Count:
        return _count(np.exp(-slope * np.arange(n)), T, ratios, alpha, fraction)

    with (
        threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(torch.get_num_threads()) as pool,
    ):
        found = list(pool.map(column, c))

    def grid(columns: list[np.ndarray]) -> np.ndarray:
        planes = [one.reshape(len(ratios), len(T)) for one in columns]
        return np.stack(planes, axis=1) if np.ndim(ratio) else np.concatenate(planes)

    dimensions, kept = grid([one.dimensions for one in found]), grid([one.kept for one in found])
    interpolated = grid([one.interpolated for one in found])
    return PhaseDiagram(dimensions, interpolated, T, c, ratios, fraction, kept)


def _count(
    eigenvalues: np.ndarray, T: np.ndarray, ratios: np.ndarray, alpha: float, fraction: float
) -> Count:
    """Count the dimensions for all ratios and steps, with σw = 1 and yᵢ = ratio·√λᵢ."""
    rates = alpha * eigenvalues
    squares = square_sums(rates, T) / T[:, None]
    means = mean_powers(rates, T)
    spread = eigenvalues * squares
    pull = np.maximum(eigenvalues * (squares - means**2), 0)
    diagonal = (spread + ratios[:, None, None] ** 2 * pull).reshape(-1, len(eigenvalues))
    roots = np.sqrt(eigenvalues)
    moved, flips = complements(rates, T[:, None])
    gaps = pairs(*complements(rates, 1.0))
    weights = np.divide(np.outer(roots, roots), gaps, out=np.zeros_like(gaps), where=gaps > 0)

    def block(rows: np.ndarray, at: np.ndarray) -> np.ndarray:
        which, when = np.divmod(rows, len(T))
        size: int = at.shape[1]
        here = when[:, None], at
        mean = means[here] * roots[at]
        matrix = pairs(moved[here], flips[here])
        matrix *= weights if size == len(roots) else weights[at[:, :, None], at[:, None, :]]
        matrix /= T[when][:, None, None]
        matrix -= mean[:, :, None] * mean[:, None, :]
        matrix *= ratios[which][:, None, None] ** 2
        line = np.arange(size)
        matrix[:, line, line] += spread[here]
        return matrix

    return count_dimensions(diagonal, block, fraction)


@checked(c=positive, ratio=positive, T=count, n=count, fraction=share, alpha=positive)
def smallest_model(
    c: float,
    ratio: float,
    T: int,
    *,
    n: int | None = None,
    fraction: float = 0.95,
    alpha: float = 1.0,
) -> int:
    """Return how many parameters a model needs to follow the training manifold.

    The paper's rule of thumb: the slope c of the data, the ratio σ*/σw of the recipe and the budget
    of T steps fix the dimension of the manifold that carries `fraction` of the variance, and a
    model with fewer parameters cannot follow it. Sec. II and Fig. 8 (d–f) of [ribbons].

    Args:
        c: Slope of the data's eigenvalues, from `slope`.
        ratio: σ*/σw.
        T: Number of weight updates.
        n: Number of samples; None for the limit of many samples, n ≫ ln(T)/c.
        fraction: Share of the variance.
        alpha: Learning rate times the largest eigenvalue.

    >>> smallest_model(0.5, 3.0, 562, n=50), smallest_model(0.5, 10.0, 562)
    (10, 3)
    """
    if n is None:
        tail = 1e-12 * min(1.0, ratio**-2)
        n = int(np.ceil((np.log(max(alpha * T, 1.0)) - np.log(tail)) / c))
    return int(phase_diagram(n, [T], [c], ratio, fraction=fraction, alpha=alpha).dimensions[0, 0])


def _axis(name: str, values: float | Sequence[float] | np.ndarray) -> np.ndarray:
    return np.atleast_1d(check_array(name, values, ndim=(0, 1)))

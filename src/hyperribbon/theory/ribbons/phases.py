"""The phase diagram: how many dimensions a ribbon has, by slope, training time and ratio."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Any, Literal

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from hyperribbon.core.checks import (
    ArgumentError,
    check_array,
    check_positive_int,
    count,
    positive,
    validate,
)
from hyperribbon.core.checks import fraction as share
from hyperribbon.core.result import Brief
from hyperribbon.theory.ribbons.geometric_sums import square_sums
from hyperribbon.theory.ribbons.ribbon import Ribbon, count_points, dense_gram
from hyperribbon.theory.ribbons.truncation import Count

_LARGEST = 1e150  # ratios whose squares are finite


@dataclass(frozen=True, eq=False)
class PhaseDiagram(Brief):
    """Dimensions of the ribbon on a grid of ratios R × slopes C × steps T.

    Attributes:
        dimensions: (R, C, T) for several ratios, (C, T) for one; certified whole numbers.
        interpolated: The same shape: where the partial sums, joined by straight lines, reach the
            fraction. Smooth, for contours; `dimensions` is its ceiling.
        steps: (T,), training times.
        values: (C,), slopes of the data's spectrum; learning rates or numbers of samples of a
            given spectrum.
        ratios: (R,), σ*/σw.
        fraction: Share of the variance that the dimensions carry.
        kept: The same shape as `dimensions`: size of the block that was diagonalised.
        axis: What `values` are.
    """

    dimensions: Int[np.ndarray, "*R C T"]
    interpolated: Float[np.ndarray, "*R C T"]
    steps: Float[np.ndarray, "T"]
    values: Float[np.ndarray, "C"]
    ratios: Float[np.ndarray, "ratios"]
    fraction: float
    kept: Int[np.ndarray, "*R C T"]
    axis: Literal["slopes", "alpha", "samples"] = "slopes"

    @property
    def slopes(self) -> Float[np.ndarray, "C"]:
        """Slopes of the data's spectrum in the phase diagram: (C,)."""
        return self.values

    def boundary(self, dimension: float) -> Float[np.ndarray, "C T"]:
        """Return the phase boundary: the ratio above which dimensions are at most so many, (C, T).

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


@validate(n=count, fraction=share)
def phase_diagram(
    n: int | None = None,
    steps: Sequence[int] | np.ndarray = (1, 10, 100, 1000, 10_000),
    slopes: Sequence[float] | np.ndarray | None = None,
    ratio: float | Sequence[float] | np.ndarray = 1.0,
    *,
    spectrum: np.ndarray | None = None,
    data: np.ndarray | tuple[np.ndarray, np.ndarray] | None = None,
    kernel: Any = None,
    targets: np.ndarray | None = None,
    samples: Sequence[int] | np.ndarray | None = None,
    fraction: float = 0.95,
    alpha: float | Sequence[float] | np.ndarray | None = None,
) -> PhaseDiagram:
    """Return the phase diagram: how many components carry `fraction` of the variance.

    Sloppy data have eigenvalues exp(−c(i−1)) and targets yᵢ = σ*√λᵢ; a spectrum, data or a kernel
    of your own replace them. Every grid point takes its block of P from the closed form of Eq. (5)
    of [ribbons] and only as much of it as the answer needs (`count_dimensions`), so the cost hardly
    grows with n. Computes Fig. 8 of [ribbons].

    Args:
        n: Number of samples of sloppy data, with `slopes`.
        steps: Training times T.
        slopes: Slopes c of sloppy data.
        ratio: σ*/σw: one number, or several for the three-dimensional diagram. For given targets
            σ*² is ‖y‖²/(n tr K), the variance of the true weights that such targets come from;
            of targets that no weights give, y is the part in the span of the data.
        spectrum: (n,), eigenvalues of K instead of sloppy data.
        data: (n, d), inputs X, or the pair of X and targets, instead of sloppy data.
        kernel: (n, n), Gram matrix, or an operator such as `NTK`, instead of sloppy data.
        targets: (n,), targets that go with `spectrum` (in its eigenbasis, divided by √n) or with
            `kernel`; None for yᵢ = σ*√λᵢ.
        samples: Numbers of samples: the first so many rows of `data` or `kernel`. They take the
            place of the slopes in the diagram.
        fraction: Share of the variance.
        alpha: Learning rate, below 2/λ₁; for a given spectrum also several, which take the place
            of the slopes in the diagram. None for 1/λ₁.

    Raises:
        ArgumentError: Training diverges, an axis holds values that cannot be, or not exactly one of
            slopes, spectrum, data and kernel is given.

    >>> phase_diagram(50, [1, 10_000], [0.05, 0.5], 3.0).dimensions
    array([[42, 22],
           [ 6, 13]])
    >>> phase_diagram(spectrum=[1.0, 0.5, 0.1], steps=[1, 100], ratio=3.0).dimensions
    array([[3, 3]])
    """
    T = _axis("steps", steps)
    if (T < 1).any() or (T % 1 != 0).any():
        raise ArgumentError("steps", steps, "expected integers, 1 or more", "Round them.")
    ratios = _axis("ratio", ratio)
    if (ratios <= 0).any() or (ratios > _LARGEST).any():
        reason = f"a ratio σ*/σw is positive and at most {_LARGEST:g}"
        raise ArgumentError("ratio", ratio, reason, "Give values in that range.")
    sources = {"slopes": slopes, "spectrum": spectrum, "data": data, "kernel": kernel}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        reason = f"expected exactly one of slopes, spectrum, data and kernel; got {len(given)}"
        raise ArgumentError("spectrum", spectrum, reason, "Give the one that you have.")
    problems: list[tuple[np.ndarray, np.ndarray]]
    axis: Literal["slopes", "alpha", "samples"] = "alpha"
    values = np.zeros(0)
    if slopes is not None:
        axis, values = "slopes", _axis("slopes", slopes)
        problems = [_sloppy(n, c) for c in values]
    elif samples is not None:
        axis, values = "samples", _axis("samples", samples)
        if (values < 1).any() or (values % 1 != 0).any():
            reason = "expected integers, 1 or more"
            raise ArgumentError("samples", samples, reason, "Round them.")
        problems = [_read_problem(data, kernel, targets, int(m)) for m in values]
    else:
        problems = [_read_problem(data, kernel, targets, None, spectrum)]
    given_rates = None if alpha is None else check_array("alpha", alpha, ndim=(0, 1))
    if axis != "alpha" and given_rates is not None and given_rates.ndim:
        reason = f"the diagram has {axis} on that axis already"
        raise ArgumentError("alpha", alpha, reason, "Give one learning rate.")
    if given_rates is None:
        rates = np.array([1 / eigenvalues[0] for eigenvalues, _ in problems])
    else:
        rates = np.atleast_1d(given_rates)
    if axis == "alpha":
        problems, values = problems * len(rates), rates
    rates = np.broadcast_to(rates, len(problems))
    for rate, (eigenvalues, _) in zip(rates, problems, strict=True):
        if rate <= 0 or rate * eigenvalues[0] >= 2:
            reason = f"training needs a learning rate between 0 and 2/λ₁ = {2 / eigenvalues[0]:.4g}"
            raise ArgumentError("alpha", alpha, reason, "Choose it in that range.")

    def column(problem: tuple[float, tuple[np.ndarray, np.ndarray]]) -> Count:
        rate, (eigenvalues, y) = problem
        decay = rate * eigenvalues
        every = np.broadcast_to(decay, (len(T), len(decay)))
        spread = eigenvalues * square_sums(every, T) / T[:, None]
        return count_points(decay, y, spread, T, ratios, fraction)

    with (
        threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(torch.get_num_threads()) as pool,
    ):
        found = list(pool.map(column, zip(rates, problems, strict=True)))

    def grid(columns: list[np.ndarray]) -> np.ndarray:
        planes = [one.reshape(len(ratios), len(T)) for one in columns]
        return np.stack(planes, axis=1) if np.ndim(ratio) else np.concatenate(planes)

    dimensions, kept = grid([one.dimensions for one in found]), grid([one.kept for one in found])
    interpolated = grid([one.interpolated for one in found])
    return PhaseDiagram(dimensions, interpolated, T, values, ratios, fraction, kept, axis)


def _sloppy(n: int | None, slope: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a sloppy phase's eigenvalues exp(−c(i−1)) and the targets √λ."""
    if n is None:
        raise ArgumentError("n", n, "sloppy data need a number of samples", "Give n.")
    if not 0 <= slope <= _LARGEST:
        reason = f"expected numbers from 0 to {_LARGEST:g}"
        raise ArgumentError("slopes", slope, reason, "Give values in that range.")
    eigenvalues = np.exp(-slope * np.arange(n))
    return eigenvalues, np.sqrt(eigenvalues)


_OWN_NAMES = {"gram": "kernel", "X": "data", "y": "targets", "eigenvalues": "spectrum"}


def _read_problem(
    data: Any, kernel: Any, targets: Any, samples: int | None, spectrum: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues and targets of the problem in a phase diagram, scaled to σ* = 1."""
    if isinstance(data, tuple | list) and len(data) == 2 and targets is None:
        data, targets = data
    if targets is not None:
        targets = check_array("targets", targets, ndim=1)
    try:
        if spectrum is not None:
            eigenvalues = check_array("spectrum", spectrum, ndim=1)
            y = np.sqrt(np.maximum(eigenvalues, 0)) if targets is None else targets
            ribbon = Ribbon(eigenvalues, y, 0.0, np.finfo(float).tiny, 1)
        elif kernel is not None:
            gram, _ = dense_gram(kernel)
            whole = check_array("kernel", gram, ndim=2)
            rows = check_positive_int("samples", samples or len(whole), maximum=len(whole))
            y = np.zeros(rows) if targets is None else targets[:rows]
            ribbon = Ribbon.from_kernel(gram[:rows, :rows], y, 0.0, np.finfo(float).tiny, 1)
        else:
            X = check_array("data", data, ndim=2)
            rows = check_positive_int("samples", samples or len(X), maximum=len(X))
            y = np.zeros(rows) if targets is None else targets[:rows]
            ribbon = Ribbon.from_data(X[:rows], y, 0.0, np.finfo(float).tiny, 1)
    except ArgumentError as error:
        error.rename(_OWN_NAMES.get(error.argument, error.argument))
        raise
    if not ribbon.eigenvalues.any():
        raise ArgumentError("spectrum", spectrum, "it has no positive eigenvalue", "Check it.")
    eigenvalues = ribbon.eigenvalues
    if targets is None:
        return eigenvalues, np.sqrt(eigenvalues)
    scale = np.sqrt((ribbon.targets**2).sum() / eigenvalues.sum())
    if scale == 0:
        raise ArgumentError("targets", targets, "they are all zero", "Give targets to learn.")
    return eigenvalues, ribbon.targets / scale


@validate(c=positive, ratio=positive, T=count, n=count, fraction=share, alpha=positive)
def smallest_model(
    c: float,
    ratio: float,
    T: int,
    *,
    n: int | None = None,
    fraction: float = 0.95,
    alpha: float = 1.0,
) -> int:
    """Return from the phase diagram how many parameters follow the training manifold.

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

"""The PCA matrix of the training trajectories of linear regression, in closed form."""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated as Float
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import scipy.linalg

from hyperribbon.core.checks import (
    ArgumentError,
    check_array,
    check_choice,
    check_fraction,
    check_positive,
    check_positive_int,
    seed_number,
    zero_or_more,
)
from hyperribbon.theory.ribbons.geometric_sums import (
    covariances,
    mean_powers,
    noise_average,
    pair_sums,
    square_sums,
    variances,
)
from hyperribbon.theory.ribbons.truncation import Count, count_dimensions, dimensions_of

Part = Literal["P", "P1", "P1_sigma", "P1_y", "P2"]
_PARTS = ("P", "P1", "P1_sigma", "P1_y", "P2")


_MOST_COORDINATES = 30_000  # of a dense covariance: 7 GB
_RESOLUTION = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-10}


class _Variant(TypedDict, total=False):
    weight_decay: float
    batch_size: int | None
    start: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Ribbon:
    """Covariance of the points on all training trajectories of a linear model.

    Gradient descent on ‖Xw − y‖²/(2n) from w₀ ~ N(0, σw² I) moves the residuals by
    r_{t+1} = (I − αK) r_t with K = XXᵀ/n. Over infinitely many initialisations and the first T
    points of each trajectory, their covariance is

        P = P₁^σ + P₁^y − P₂,
        P₁^σ = σw²/T Σ_t K_d^{2t} K,   P₁^y = 1/T Σ_t K_d^t yyᵀ K_d^t,   P₂ = K_T yyᵀ K_T.

    In the eigenbasis of K every sum over t is a geometric series, so nothing is looped over T.
    Implements Eq. (5) of [ribbons], with these conventions: residuals and targets are divided by
    √n (so that the initial covariance of a residual is σw²K, as printed), and vectors are written
    in the eigenbasis of K. Weight decay μ replaces K_d by I − α(K + μI) and y by K(K + μI)⁻¹y and
    leaves the initial covariance alone, which is exact. A batch size b adds the constant-noise
    model of SGD, Eq. (11).

    A network is not linear regression: with tangent kernel K its outputs follow the same dynamics,
    but its initial outputs have a covariance C₀ of their own. `start` replaces K in the initial
    covariance, P₁^σ = σw²/T Σ_t K_d^t C₀ K_d^t. An initial mean belongs into the targets: give
    y − E f₀.

    Args:
        eigenvalues: (n,), eigenvalues of K in descending order, zero or more.
        targets: (n,), the targets in K's eigenbasis divided by √n; or (n, C) for C outputs, in
            which case the points live in n·C dimensions and every eigenvalue counts C times.
        sigma_w: Standard deviation of the initial weights.
        alpha: Learning rate; α(λ₁ + weight_decay) must stay below 2.
        steps: T, the number of points of each trajectory, starting with the initial one.
        weight_decay: Coefficient μ of ‖w‖²/2 in the objective.
        batch_size: b of the constant-noise model of SGD; None for full-batch gradient descent.
        start: Covariance of the initial outputs over σw², in K's eigenbasis and divided by n: (n,)
            its diagonal, (n, n) shared by all outputs, or (nC, nC) with the outputs of one
            direction next to each other. None for K, as in linear regression.

    >>> ribbon = Ribbon.exponential(50, 0.2, sigma_star=2**0.5, sigma_w=0.1**0.5, steps=50)
    >>> ribbon.spectrum()[:2].round(6)
    array([0.270137, 0.0544  ])
    >>> ribbon.dimensions(0.95)
    9
    """

    eigenvalues: np.ndarray
    targets: np.ndarray
    sigma_w: float
    alpha: float
    steps: int
    weight_decay: float = field(default=0.0, kw_only=True)
    batch_size: int | None = field(default=None, kw_only=True)
    start: np.ndarray | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        eigenvalues = check_array("eigenvalues", self.eigenvalues, ndim=1)
        targets = check_array("targets", self.targets, ndim=(1, 2))
        if (np.diff(eigenvalues) > 0).any():
            raise ArgumentError(
                "eigenvalues", eigenvalues, "they are not one descending row", "Sort them first."
            )
        if eigenvalues[-1] < 0:
            reason = f"the smallest is {eigenvalues[-1]:.3g}, and K is positive semi-definite"
            raise ArgumentError("eigenvalues", eigenvalues, reason, "Clip rounding errors to zero.")
        if len(targets) != len(eigenvalues):
            reason = f"there are {len(eigenvalues)} eigenvalues"
            remedy = "Give an array of shape (n,) or (n, outputs) in the same eigenbasis."
            raise ArgumentError("targets", targets, reason, remedy)
        check_positive("sigma_w", self.sigma_w, zero=True)
        check_positive("weight_decay", self.weight_decay, zero=True)
        check_positive("alpha", self.alpha)
        fastest = self.alpha * (eigenvalues[0] + self.weight_decay)
        if fastest >= 2:
            reason = f"alpha times the largest eigenvalue is {fastest:.3g}, so training diverges"
            remedy = f"Choose alpha below {2 / (eigenvalues[0] + self.weight_decay):.4g}."
            raise ArgumentError("alpha", self.alpha, reason, remedy)
        if self.batch_size is not None:
            check_positive_int("batch_size", self.batch_size)
        if self.start is not None:
            object.__setattr__(self, "start", _check_start(self.start, targets))
        object.__setattr__(self, "eigenvalues", eigenvalues)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "steps", check_positive_int("steps", self.steps))

    @classmethod
    def exponential(
        cls,
        n: int,
        slope: float,
        *,
        sigma_star: float = 1.0,
        sigma_w: float = 1.0,
        alpha: float = 1.0,
        steps: int = 50,
        rng: np.random.Generator | int | None = None,
        weight_decay: float = 0.0,
        batch_size: int | None = None,
    ) -> Ribbon:
        """Return the ribbon of sloppy data, λᵢ = exp(−c(i−1)).

        Targets come from true weights w* ~ N(0, σ*² I), so yᵢ ~ N(0, σ*²λᵢ). Their norm hardly
        concentrates (relative spread 0.45 at c = 0.2), so by default they are fixed at the typical
        value yᵢ = σ*√λᵢ; pass `rng` to draw them.

        Args:
            n: Number of samples.
            slope: c, the logarithm of the ratio of successive eigenvalues.
            sigma_star: σ*, standard deviation of the true weights.
            sigma_w: σw, standard deviation of the initial weights.
            alpha: Learning rate.
            steps: T, points of each trajectory.
            rng: Generator or seed that draws the targets.
            weight_decay: See the class.
            batch_size: See the class.
        """
        slope = check_positive("slope", slope, zero=True)
        n = check_positive_int("n", n, maximum=10**6)
        eigenvalues = np.exp(-slope * np.arange(n))
        if rng is not None and not isinstance(rng, np.random.Generator):
            rng = np.random.default_rng(seed_number("rng", rng))
        signs = np.ones(n) if rng is None else rng.standard_normal(n)
        targets = zero_or_more("sigma_star", sigma_star) * np.sqrt(eigenvalues) * signs
        extra = _Variant(weight_decay=weight_decay, batch_size=batch_size)
        return cls(eigenvalues, targets, sigma_w, alpha, steps, **extra)

    @classmethod
    def from_data(
        cls,
        X: np.ndarray,
        y: np.ndarray,
        sigma_w: float,
        alpha: float,
        steps: int,
        **variant: Unpack[_Variant],
    ) -> Ribbon:
        """Return the ribbon of linear regression on a data matrix X (n, d) and targets y (n,).

        Directions of the residual that K does not move are omitted unless `start` is given; they
        carry no variance. Append a column of ones to X for a bias. `variant` takes weight_decay,
        batch_size and start, here the covariance (n, n) of the initial outputs over the samples
        (or (nC, nC) over samples and outputs) for σw = 1.

        Raises:
            ArgumentError: X is zero, or its rows are not as many as the targets.
        """
        X, y = _matching("X", X, y)
        if not X.any():
            raise ArgumentError("X", X, "every entry is zero", "Check the data.")
        every = variant.get("start") is not None
        U, singular, _ = scipy.linalg.svd(X, full_matrices=every)
        singular[singular <= singular[0] * max(X.shape) * np.finfo(float).eps] = 0.0
        eigenvalues = np.zeros(U.shape[1])
        eigenvalues[: len(singular)] = singular**2 / len(X)
        return cls._from_basis(eigenvalues, U, y, len(X), (sigma_w, alpha, steps), variant)

    @classmethod
    def _from_basis(
        cls,
        eigenvalues: np.ndarray,
        U: np.ndarray,
        y: np.ndarray,
        samples: int,
        setting: tuple[float, float, int],
        variant: _Variant,
    ) -> Ribbon:
        """Return the ribbon of a kernel with eigenvectors U and targets y over the samples."""
        start = variant.get("start")
        if start is None:
            moving = eigenvalues > 0
            eigenvalues, U = eigenvalues[moving], U[:, moving]
        else:
            start = check_array("start", start, ndim=2)
            outputs = len(start) // len(U)
            if start.shape != (len(U) * outputs, len(U) * outputs) or outputs < 1:
                reason = f"there are {len(U)} initial outputs"
                remedy = "Give the covariance of the initial outputs over the samples."
                raise ArgumentError("start", start, reason, remedy)
            basis = np.kron(U, np.eye(outputs)) if outputs > 1 else U
            variant = {**variant, "start": basis.T @ start @ basis / samples}
        return cls(eigenvalues, U.T @ y / np.sqrt(samples), *setting, **variant)

    @classmethod
    def from_kernel(
        cls,
        gram: np.ndarray,
        y: np.ndarray,
        sigma_w: float,
        alpha: float,
        steps: int,
        **variant: Unpack[_Variant],
    ) -> Ribbon:
        """Return the ribbon of a kernel machine with Gram matrix k(xᵢ, xⱼ); K is gram/n.

        The initial functions are draws of the Gaussian process σw·GP(0, k). Targets (n, C) of C
        outputs go with a Gram matrix (n, n) that all outputs share, or with one of (nC, nC), whose
        rows run over the outputs of the first sample, then of the second (as those of `NTK` do); n
        is the number of samples in both cases. Eigenvalues below the rounding error of the Gram
        matrix in the precision it comes in are zero. `variant` as in `from_data`.

        Args:
            gram: Array, tensor, or operator with `to_dense`, such as `NTK`.
            y: (n,) or (n, C), targets.
            sigma_w: Standard deviation of the initial functions.
            alpha: Learning rate.
            steps: T, points of each trajectory.
            **variant: See the class.

        Raises:
            ArgumentError: The Gram matrix is not symmetric and positive semi-definite, is zero, or
                does not fit the targets.
        """
        y = check_array("y", y, ndim=(1, 2))
        samples, outputs = len(y), y.shape[1] if y.ndim == 2 else 1
        gram, resolution = dense_gram(gram)
        if outputs > 1 and np.shape(gram) == (samples * outputs, samples * outputs):
            y = y.ravel()
        gram, y = _matching("gram", gram, y)
        floor = len(gram) * resolution * np.abs(gram).max()
        if gram.shape[0] != gram.shape[1] or np.abs(gram - gram.T).max() > 100 * floor:
            raise ArgumentError("gram", gram, "a Gram matrix is symmetric", "Give k(xᵢ, xⱼ).")
        eigenvalues, U = scipy.linalg.eigh((gram + gram.T) / 2)
        floor = len(gram) * resolution * eigenvalues[-1]
        if eigenvalues[0] < -100 * floor:
            reason = f"its smallest eigenvalue, {eigenvalues[0]:.3g}, is negative"
            raise ArgumentError("gram", gram, reason, "Use a positive semi-definite kernel.")
        if eigenvalues[-1] <= 0:
            raise ArgumentError("gram", gram, "it has no positive eigenvalue", "Check the kernel.")
        eigenvalues = np.where(eigenvalues > floor, eigenvalues, 0.0)[::-1] / samples
        setting = sigma_w, alpha, steps
        return cls._from_basis(eigenvalues, U[:, ::-1], y, samples, setting, variant)

    def __repr__(self) -> str:
        moving = int((self.eigenvalues > 0).sum())
        return (
            f"Ribbon({moving} of {len(self.eigenvalues)} directions move, {self._outputs} outputs, "
            f"alpha={self.alpha:g}, steps={self.steps})"
        )

    @property
    def _outputs(self) -> int:
        return 1 if self.targets.ndim == 1 else self.targets.shape[1]

    @cached_property
    def _coordinates(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rates αλ, initial covariance (or diagonal) and target of a ribbon's every coordinate."""
        outputs = self._outputs
        decayed = self.eigenvalues + self.weight_decay
        shrink = np.ones_like(decayed)
        if self.weight_decay:
            shrink = self.eigenvalues / decayed
        targets = (shrink[:, None] * self.targets.reshape(len(shrink), outputs)).ravel()
        start = self.eigenvalues if self.start is None else self.start
        if start.ndim == 1:
            start = np.repeat(start, outputs)
        elif len(start) < len(targets):
            start = np.kron(start, np.eye(outputs))
        return np.repeat(self.alpha * decayed, outputs), self.sigma_w**2 * start, targets

    @property
    def P1_sigma(self) -> Float[np.ndarray, "n ..."]:
        """Part of the ribbon due to the initial weights (and to SGD's noise, if any).

        A diagonal (n,), or a matrix (n, n) if `start` is one.
        """
        rates, start, _ = self._coordinates
        if start.ndim == 2:
            return start * pair_sums(rates, self.steps) / self.steps + np.diag(self._noise)
        return start * square_sums(rates, self.steps) / self.steps + self._noise

    @property
    def _noise(self) -> np.ndarray:
        """Variance that SGD's constant noise adds to every coordinate of the ribbon."""
        rates = self._coordinates[0]
        if self.batch_size is None:
            return np.zeros(len(rates))
        kicks = self.alpha**2 / self.batch_size * np.repeat(self.eigenvalues, self._outputs) ** 2
        return kicks * noise_average(rates, self.steps)

    @property
    def P1_y(self) -> Float[np.ndarray, "n n"]:
        """Part of the ribbon due to the targets: (n, n)."""
        rates, _, targets = self._coordinates
        return targets[:, None] * targets * pair_sums(rates, self.steps) / self.steps

    @property
    def P1(self) -> Float[np.ndarray, "n n"]:
        """Second moment of the ribbon's points, P₁^σ + P₁^y: (n, n)."""
        return self._add_start(self.P1_y)

    @property
    def mean(self) -> Float[np.ndarray, "n"]:
        """Mean residual of a ribbon, K_T y up to its sign: (n,)."""
        rates, _, targets = self._coordinates
        return mean_powers(rates, self.steps) * targets

    @property
    def P2(self) -> Float[np.ndarray, "n n"]:
        """Outer product of the ribbon's mean residual: (n, n), rank one."""
        return np.outer(self.mean, self.mean)

    @property
    def P(self) -> Float[np.ndarray, "n n"]:
        """Covariance of a ribbon's points: (n, n), without the cancellation in P₁ − P₂."""
        rates, _, targets = self._coordinates
        return self._add_start(targets[:, None] * targets * covariances(rates, self.steps))

    def at(self, times: Sequence[int] | np.ndarray) -> Float[np.ndarray, "n n"]:
        """Return the covariance of the ribbon's points at given steps: (n, n).

        `P` has all steps 0, 1, …, T − 1; snapshots may be taken at any others, in any order, such
        as evenly in the logarithm. Repeated times count as often as they occur.

        Raises:
            ArgumentError: A time is not a whole number, 0 or more, or SGD has noise.
        """
        t = check_array("times", times, ndim=1)
        if not t.size or (t < 0).any() or (t % 1 != 0).any():
            raise ArgumentError("times", times, "expected integers, 0 or more", "Round them.")
        if self.batch_size is not None:
            reason = "the noise of SGD is averaged over all steps"
            raise ArgumentError("batch_size", self.batch_size, reason, "Use P.")
        rates, start, targets = self._coordinates
        with np.errstate(divide="ignore", invalid="ignore"):
            slow = np.expm1(t[:, None] * np.log1p(-np.minimum(rates, 1.0)))
        moved = np.where((rates < 1) & (t[:, None] > 0), slow, (1 - rates) ** t[:, None] - 1)
        centred, powers = moved - moved.mean(axis=0), moved + 1
        P = np.outer(targets, targets) * (centred.T @ centred) / len(t)
        if start.ndim == 2:
            return P + start * (powers.T @ powers) / len(t)
        return P + np.diag(start * (powers**2).mean(axis=0))

    def _add_start(self, part: np.ndarray) -> np.ndarray:
        spread = self.P1_sigma
        return part + (spread if spread.ndim == 2 else np.diag(spread))

    def _align(self) -> tuple[Ribbon, np.ndarray]:
        """Return the ribbon along the targets of every direction, and the variances across them.

        Where all outputs of a direction start with one variance, its axes may be turned until the
        first one points along its targets; the others see no target, and are eigenvectors of P.
        """
        if self._outputs == 1:
            return self, np.zeros(0)
        along = replace(self, targets=np.linalg.norm(self.targets, axis=1))
        return along, np.repeat(along.P1_sigma, self._outputs - 1)

    def spectrum(self, part: Part = "P") -> Float[np.ndarray, "n"]:
        """Return the eigenvalues of a part of the ribbon, descending: (n,)."""
        check_choice("part", part, _PARTS)
        if part == "P2":
            only = np.zeros(len(self.mean))
            only[0] = self.mean @ self.mean
            return only
        if self.start is not None and self.start.ndim == 2:
            return scipy.linalg.eigvalsh(getattr(self, part))[::-1]
        along, across = self._align()
        if part == "P1_y":
            across = np.zeros_like(across)
        inside = along.P1_sigma
        if part != "P1_sigma":
            inside = scipy.linalg.eigvalsh(getattr(along, part))
        return -np.sort(-np.concatenate([inside, across]))

    def dimensions(self, fraction: float = 0.95) -> int:
        """Return how many principal components carry `fraction` of the ribbon's variance."""
        check_fraction("fraction", fraction)
        if self.start is not None and self.start.ndim == 2:
            return dimensions_of(self.spectrum(), fraction)
        along, across = self._align()
        rates, _, targets = along._coordinates
        idle = np.zeros(len(across))
        spread = np.concatenate([along.P1_sigma, across])[None]
        rates, targets = np.concatenate([rates, idle]), np.concatenate([targets, idle])
        steps = np.array([self.steps])
        return int(count_points(rates, targets, spread, steps, np.ones(1), fraction).dimensions[0])


def count_points(
    rates: np.ndarray,
    targets: np.ndarray,
    spread: np.ndarray,
    steps: np.ndarray,
    ratios: np.ndarray,
    fraction: float,
) -> Count:
    """Count the dimensions of P = ratio²·yyᵀ∘cov(d^t, d^t) + diag(spread) for all ratios and steps.

    Args:
        rates: (n,), αλ.
        targets: (n,), y.
        spread: (T, n), the part of P that does not depend on the targets.
        steps: (T,), training times.
        ratios: (R,), factors of the targets.
        fraction: Share of the variance.

    Returns:
        The counts of R·T points, steps varying fastest.
    """
    coupled = (ratios[:, None, None] * targets) ** 2 * variances(
        np.broadcast_to(rates, spread.shape), steps
    )
    n = len(rates)

    def block(rows: np.ndarray, at: np.ndarray) -> np.ndarray:
        which, when = np.divmod(rows, len(steps))
        y = ratios[which][:, None] * targets[at]
        found = y[:, :, None] * y[:, None, :] * covariances(rates[at], steps[when])
        line = np.arange(at.shape[1])
        found[:, line, line] += spread[when[:, None], at]
        return found

    diagonal = (spread + coupled).reshape(-1, n)
    return count_dimensions(diagonal, block, fraction, coupled=coupled.reshape(-1, n))


def dense_gram(gram: Any) -> tuple[Any, float]:
    """Return a ribbon's Gram matrix as an array or tensor, and its entries' relative rounding."""
    if hasattr(gram, "to_dense"):
        gram = gram.to_dense()
    elif isinstance(gram, list | tuple):
        gram = check_array("gram", gram, ndim=2)
    name = str(getattr(gram, "dtype", "")).removeprefix("torch.")
    return gram, _RESOLUTION.get(name, np.finfo(float).eps)


def _check_start(start: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the initial covariance of a ribbon, of one of three shapes and semi-definite."""
    start = check_array("start", start, ndim=(1, 2))
    n, coordinates = len(targets), targets.size
    shapes = {(n,), (n, n), (coordinates, coordinates)}
    if start.shape not in shapes:
        reason = f"there are {n} directions and {coordinates} coordinates"
        raise ArgumentError("start", start, reason, "Give (n,), (n, n) or (nC, nC).")
    if start.ndim == 2 and coordinates > _MOST_COORDINATES:
        reason = f"a dense covariance of {coordinates} coordinates does not fit in memory"
        raise ArgumentError("start", start, reason, "Give its diagonal, or fewer samples.")
    lowest = start.min() if start.ndim == 1 else _lowest(start)
    scale = np.abs(start).max()
    if lowest < -1e-6 * len(start) * scale:
        reason = f"its smallest eigenvalue is {lowest:.3g}: not a covariance"
        raise ArgumentError("start", start, reason, "Give a positive semi-definite matrix.")
    return start


def _lowest(start: np.ndarray) -> float:
    if np.abs(start - start.T).max() > 1e-6 * np.abs(start).max():
        raise ArgumentError("start", start, "a covariance is symmetric", "Check it.")
    return float(scipy.linalg.eigvalsh(start)[0])


def _matching(name: str, matrix: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    matrix = check_array(name, matrix, ndim=2)
    y = check_array("y", y, ndim=(1, 2))
    if len(matrix) != len(y):
        raise ArgumentError(
            name, matrix, f"there are {len(y)} targets", "Give one row for each target."
        )
    return matrix, y

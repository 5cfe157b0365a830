"""Many chains of SGD (or of its Langevin limit) at once on linear regression.

The covariance of the weights is accumulated on the way, so no path is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_limits

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_absent, check_shape, validate
from hyperribbon.core.generators import numpy_generator
from hyperribbon.core.result import Result, frame
from hyperribbon.papers.simulation.fluctuations.batches import chain_batches, check_dynamics
from hyperribbon.recording.cadence import steps_between
from hyperribbon.theory.fluctuations.one_layer import batch_factor
from hyperribbon.theory.fluctuations.stationary import check_second_moments, check_stable

if TYPE_CHECKING:
    import pandas as pd

_FROM_ELSEWHERE, _AFTER_ANNEALING = 7.0, 0.5
FROM_SOLUTION = 3.5
_BUFFERED_ROWS = 4096
_MOST_STEPS = 1e12


class RunningMoments:
    """Mean and second moment of vectors that come in blocks, in double precision.

    Args:
        dimension: Length of a vector.
    """

    @validate(dimension=checks.count)
    def __init__(self, dimension: int) -> None:
        self.count = 0
        self._sum = np.zeros(dimension)
        self._products = np.zeros((dimension, dimension))

    def add(self, rows: np.ndarray) -> None:
        """Add a block (n, dimension) of a one-layer chain to the running moments."""
        self.count += len(rows)
        self._sum += rows.sum(axis=0, dtype=np.float64)
        self._products += rows.T @ rows

    @property
    def mean(self) -> np.ndarray:
        """Mean vector of a one-layer chain."""
        return self._sum / max(self.count, 1)

    def covariance(self, *, about_zero: bool = False) -> np.ndarray:
        """Return a one-layer chain's covariance, or the second moment about a known mean zero."""
        second = self._products / max(self.count, 1)
        return second if about_zero else second - np.outer(self.mean, self.mean)


@dataclass(frozen=True)
class ChainStatistics(Result):
    """What many chains did in the stationary state.

    Attributes:
        mean: (N,), mean of w − w*.
        covariance: (N, N), second moment of w − w*; the mean of w is exactly w*, the solution
            that gradient descent reaches from the start.
        noise_covariance: (N, N), covariance of the minibatch gradient's noise, if asked for.
        chain_variances: (chains,), mean square of a weight's deviation in each chain.
        regime: "fluctuating", or "interpolating" when the solution has no residual and the
            stationary fluctuations vanish.
        chains: Number of chains.
        steps: Measured steps of each chain.
        burn_in: Steps of each chain before measuring.
        relaxation_steps: 1/(λω₀): steps in which the slowest mode falls by e.
        samples: Weight vectors that entered the covariance.
    """

    mean: np.ndarray
    covariance: np.ndarray
    noise_covariance: np.ndarray | None
    chain_variances: np.ndarray
    regime: str
    chains: int
    steps: int
    burn_in: int
    relaxation_steps: float
    samples: int

    def to_frame(self) -> pd.DataFrame:
        """Return the mean and the second moment of every weight of the one-layer chains."""
        moments = {"second_moment": self.covariance.diagonal(), "mean": self.mean}
        return frame({"weight": np.arange(1, len(self.mean) + 1), **moments})

    @property
    def variance(self) -> float:
        """Variance over time averaged over the weights of one-layer chains, tr M/N."""
        return float(self.chain_variances.mean())

    @property
    def variance_error(self) -> float:
        """Standard error of `variance` from the spread over one-layer chains; infinite for one."""
        if self.chains == 1:
            return math.inf
        return float(self.chain_variances.std(ddof=1) / math.sqrt(self.chains))


@validate(
    X=checks.design,
    Y=checks.row,
    lr=checks.positive,
    batch_size=checks.count,
    steps=checks.count,
    chains=checks.count,
    start=checks.array,
    burn_in=checks.whole,
    anneal=checks.positive,
    substeps=checks.count,
)
def simulate_one_layer(
    X: np.ndarray,
    Y: np.ndarray,
    *,
    lr: float,
    batch_size: int,
    steps: int,
    chains: int = 128,
    dynamics: str = "sgd",
    sampling: str = "replacement",
    start: np.ndarray | None = None,
    burn_in: int | None = None,
    anneal: float = 1.0,
    every: int | str | None = None,
    measure_noise: bool = False,
    substeps: int | None = None,
    seed: int = 0,
) -> ChainStatistics:
    """Return the statistics of simulated one-layer chains w ← w − λ∇L_B(w), L = ‖wᵀX − Y‖²/(2P).

    `dynamics="flow"` integrates the Langevin equation dw = −∇L dt + √λ ξ dt, ⟨ξξᵀ⟩ = C(w)δ(t−t'),
    by Euler–Maruyama steps of dt = λ/substeps, with the full noise covariance C(w) of sampling with
    replacement: a Gaussian weight on every sample has exactly that covariance. Implements
    Eqs. (2.11) and (2.13) of [fluctuations].

    Args:
        X: Design matrix (N×P), samples as columns.
        Y: Targets (P,).
        lr: Learning rate λ.
        batch_size: Minibatch size S.
        steps: Steps measured in each chain.
        chains: Independent chains.
        dynamics: "sgd" or "flow".
        sampling: "replacement", "without_replacement" or "shuffle"; for SGD.
        start: Weights (N,) all chains begin with; the least-squares solution by default.
        burn_in: Steps before measuring; by default 3.5 relaxation times of the slowest mode from
            the solution (its variance is then within e⁻⁷), 7 from elsewhere.
        anneal: Burn in with the learning rate anneal·λ, in as many times fewer steps, then divide
            the deviations by √anneal (their size goes with √λ) and go on for half a relaxation time
            with λ itself.
        every: Steps between measurements, or "20it" or "1ep"; by default a tenth of the fastest
            mode's relaxation time.
        measure_noise: Accumulate the covariance of the minibatch gradient's noise as well.
        substeps: Integration steps of the flow for one step of SGD; by default 1.
        seed: Seed of all chains.

    Raises:
        ArgumentError: There is no stationary state, as the second moments of the weights grow
            without bound (for "shuffle", the chains diverge); or a batch of distinct samples is
            larger than the set.
    """
    check_dynamics(dynamics, sampling)
    if dynamics == "sgd":
        check_absent("substeps", substeps, "steps of SGD are whole", "Use dynamics='flow'.")
    substeps = 1 if substeps is None else substeps
    task = _Regression(X, Y, start)
    rates, N = task.rates, len(task.solution)
    slowest = 1 / (lr * rates[0])
    needed = math.ceil((FROM_SOLUTION if start is None else _FROM_ELSEWHERE) * slowest)
    waited = needed if burn_in is None else burn_in
    hot = 0
    if anneal != 1:
        if waited > _MOST_STEPS * anneal:
            raise ArgumentError("anneal", anneal, "burn-in would never end", "Give more than 1.")
        hot = math.ceil(waited / anneal)
        waited = hot + math.ceil(_AFTER_ANNEALING * slowest)
    spacing = max(1, int(0.1 / (lr * rates[-1])))
    length = len(Y) / batch_size
    every = min(spacing if every is None else steps_between(every, length), steps)

    deviation = task.begin(chains)
    gradient = task.gradient(batch_size, chains, dynamics, sampling, substeps, seed)
    highest = lr * max(1.0, anneal)
    if sampling == "shuffle" and batch_size < len(Y):  # an epoch's operator has no short form
        check_stable(highest, float(rates[-1]))
    else:
        factor = batch_factor(len(Y), batch_size, sampling == "replacement")
        check_second_moments(X, highest, factor, substeps=substeps)
    weights, noise = RunningMoments(N), RunningMoments(N) if measure_noise else None
    squares, measured, rows = np.zeros(chains), 0, []
    dt = np.float32(lr / substeps)
    # The products are small: more threads would only spin. Overflow is caught in `_add_rows`.
    with threadpool_limits(1, "blas"), np.errstate(over="ignore", invalid="ignore"):
        for step in range(1, waited + steps + 1):
            measuring = step > waited and (step - waited) % every == 0
            rate = np.float32(anneal) * dt if step <= hot else dt
            before = deviation.copy() if measuring and noise is not None else None
            for _ in range(substeps):
                kick = gradient(deviation)
                deviation -= rate * kick
            if step == hot:
                deviation /= np.float32(math.sqrt(anneal))
            if not measuring:
                continue
            squares += np.einsum("rn,rn->r", deviation, deviation)
            measured += 1
            rows.append(deviation.copy())
            if noise is not None and before is not None:
                noise.add(kick - before @ task.H)
            if len(rows) * chains >= _BUFFERED_ROWS:
                _add_rows(weights, rows, lr)
        _add_rows(weights, rows, lr)
    _check_finite(squares, lr)
    return ChainStatistics(
        mean=weights.mean,
        covariance=weights.covariance(about_zero=True),
        noise_covariance=None if noise is None else noise.covariance(about_zero=True),
        chain_variances=squares / (measured * N),
        regime="interpolating" if task.interpolating else "fluctuating",
        chains=chains,
        steps=steps,
        burn_in=waited,
        relaxation_steps=float(slowest),
        samples=weights.count,
    )


@validate(
    X=checks.design,
    Y=checks.row,
    lr=checks.positive,
    batch_size=checks.count,
    record=checks.wholes,
    chains=checks.count,
    start=checks.array,
)
def trace_one_layer(
    X: np.ndarray,
    Y: np.ndarray,
    *,
    lr: float,
    batch_size: int,
    record: Sequence[int] | np.ndarray,
    chains: int = 1,
    sampling: str = "replacement",
    start: np.ndarray | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Return the weights (T, chains, N) of simulated one-layer chains at the steps of `record`.

    For relaxation, where the path itself matters; other arguments as in `simulate_one_layer`.

    Raises an ArgumentError as that does.
    """
    task = _Regression(X, Y, start)
    check_stable(lr, float(task.rates[-1]))
    deviation = task.begin(chains)
    gradient = task.gradient(batch_size, chains, "sgd", sampling, 1, seed)
    kept = np.unique(np.asarray(record, dtype=int))
    path = np.empty((len(kept), chains, len(task.solution)))
    rate, at = np.float32(lr), 0
    with threadpool_limits(1, "blas"), np.errstate(over="ignore", invalid="ignore"):
        for place, step in enumerate(kept):
            for _ in range(step - at):
                deviation -= rate * gradient(deviation)
            _check_finite(deviation, lr)
            path[place], at = task.solution + deviation, step
    return path


class _Regression:
    """A regression task around its solution, in single precision where the chains run."""

    def __init__(self, X: np.ndarray, Y: np.ndarray, start: np.ndarray | None) -> None:
        if X.shape[1] != len(Y) or not X.any():
            reason = f"there are {len(Y)} targets"
            raise ArgumentError("X", X, reason, "Give a nonzero N×P matrix, P targets.")
        inverse = np.linalg.pinv(X.T, rcond=max(X.shape) * np.finfo(float).eps)
        self.solution = inverse @ Y
        self.start = self.solution
        if start is not None:
            # What no sample sees, gradient descent leaves as it was.
            self.start = check_shape("start", start, (len(X),), f"X has {len(X)} inputs (rows)")
            self.solution = self.start - inverse @ (X.T @ self.start - Y)
        residuals = self.solution @ X - Y
        self.interpolating = bool(
            np.linalg.norm(residuals) <= 1e-10 * max(np.linalg.norm(Y), 1e-300)
        )
        hessian = X @ X.T / X.shape[1]
        rates = np.linalg.eigvalsh(hessian)
        self.rates = rates[rates > 1e-12 * rates[-1]]
        self.H = hessian.astype(np.float32)
        self.data = np.ascontiguousarray(X.T, dtype=np.float32)
        self.residual = np.where(self.interpolating, 0.0, residuals).astype(np.float32)

    def begin(self, chains: int) -> np.ndarray:
        """Return w − w* of all simulated one-layer chains at the beginning."""
        return np.tile((self.start - self.solution).astype(np.float32), (chains, 1))

    def gradient(
        self, batch_size: int, chains: int, dynamics: str, sampling: str, substeps: int, seed: int
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return δw ↦ the next stochastic gradient of every one-layer chain."""
        rng = numpy_generator(seed, "chains", dynamics, sampling)
        if dynamics == "sgd":
            samples = len(self.data)
            batches = chain_batches(samples, batch_size, chains, sampling=sampling, rng=rng)
            return _minibatch_gradient(self.data, self.residual, batches)
        return _langevin_gradient(self.data, self.residual, self.H, batch_size, substeps, rng)


def _minibatch_gradient(data, residual, batches) -> Callable[[np.ndarray], np.ndarray]:
    """Return δw ↦ the minibatch gradient of each one-layer chain; `data` is (P, N)."""
    buffers: dict[tuple[int, int], np.ndarray] = {}

    def gradient(deviation: np.ndarray) -> np.ndarray:
        indices = next(batches)
        if indices.shape not in buffers:
            buffers[indices.shape] = np.empty((*indices.shape, data.shape[1]), dtype=data.dtype)
        drawn = buffers[indices.shape]
        np.take(data, indices, axis=0, out=drawn, mode="clip")
        errors = np.matmul(drawn, deviation[:, :, None])[:, :, 0]
        errors += residual.take(indices)
        errors /= indices.shape[1]
        return np.matmul(errors[:, None, :], drawn)[:, 0, :]

    return gradient


def _langevin_gradient(
    data, residual, H, batch_size: int, substeps: int, rng: np.random.Generator
) -> Callable[[np.ndarray], np.ndarray]:
    """Return one-layer δw ↦ ∇L + √(λ/dt)·ξ with ⟨ξξᵀ⟩ = C(w), for dt = λ/substeps."""
    scale = np.float32(math.sqrt(substeps / (batch_size * len(data))))

    def gradient(deviation: np.ndarray) -> np.ndarray:
        mean = deviation @ H
        draws = rng.standard_normal((len(deviation), len(data)), dtype=np.float32)
        errors = deviation @ data.T + residual
        noise = (draws * errors) @ data - draws.sum(axis=1, keepdims=True) * mean
        return mean + scale * noise

    return gradient


def _add_rows(moments: RunningMoments, rows: list[np.ndarray], lr: float) -> None:
    if not rows:
        return
    block = np.concatenate(rows)
    rows.clear()
    _check_finite(block, lr)
    moments.add(block)
    _check_finite(moments.covariance(about_zero=True), lr)


def _check_finite(block: np.ndarray, lr: float) -> None:
    if not np.isfinite(block).all():
        reason = "the chains diverged"
        raise ArgumentError("lr", lr, reason, "Use a smaller learning rate or a larger batch.")

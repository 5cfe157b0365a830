"""Many chains of SGD (or of its Langevin limit) at once on two-layer linear networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_shape, validate
from hyperribbon.core.generators import numpy_generator
from hyperribbon.core.result import Result, frame
from hyperribbon.papers.simulation.fluctuations.batches import chain_batches, check_dynamics
from hyperribbon.papers.simulation.fluctuations.one_layer import FROM_SOLUTION, RunningMoments
from hyperribbon.recording.cadence import steps_between

if TYPE_CHECKING:
    import pandas as pd

_Gradient = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class TwoLayerEnsemble(Result):
    """Weights of all chains at the recorded steps, and their covariance on the way.

    Attributes:
        steps: (T,), recorded steps.
        W1: (T, chains, N_h, N_i), first layers.
        W2: (T, chains, N_o, N_h), second layers.
        relaxation_steps: 1/(λω₀) at the start: steps in which the slowest mode that relaxes falls
            by e.
        burn_in: Steps before the covariance was measured.
        samples: Pairs of layers that entered it.
        mean: Mean of (vec W₁, vec W₂), columns stacked, over chains and time, if asked for.
        covariance: Covariance of that vector over chains, averaged over time, if asked for. A drift
            that all chains share does not enter.
    """

    steps: np.ndarray
    W1: np.ndarray
    W2: np.ndarray
    relaxation_steps: float
    burn_in: int
    samples: int
    mean: np.ndarray | None
    covariance: np.ndarray | None

    def to_frame(self) -> pd.DataFrame:
        """Return the mean square of the entries of W₁ and W₂ over two-layer chains, by step."""
        squares = {name: getattr(self, name) ** 2 for name in ("W1", "W2")}
        means = {f"mean_square_{n}": s.mean(axis=(1, 2, 3)) for n, s in squares.items()}
        return frame({"step": self.steps, **means})


@validate(
    X=checks.design,
    Y=checks.matrix,
    W1=checks.matrix,
    W2=checks.matrix,
    lr=checks.positive,
    tol=checks.positive,
    max_steps=checks.count,
)
def descend_two_layer(
    X: np.ndarray,
    Y: np.ndarray,
    W1: np.ndarray,
    W2: np.ndarray,
    *,
    lr: float,
    tol: float = 1e-10,
    max_steps: int = 1_000_000,
) -> tuple[np.ndarray, np.ndarray]:
    """Return two-layer weights (W1, W2) where simulated full-batch gradient descent ends.

    Args:
        X: Inputs (N_i×P), samples as columns.
        Y: Targets (N_o×P).
        W1: First layer (N_h×N_i).
        W2: Second layer (N_o×N_h).
        lr: Step size; small enough to follow the gradient flow of Eq. (3.17) of [fluctuations].
        tol: Largest entry of Σyx − W₂W₁Σxx at the end, relative to that of Σyx.
        max_steps: Steps after which it gives up.

    Raises:
        ArgumentError: It diverged or did not get there.
    """
    _check_shapes(X, Y, W1, W2)
    P = X.shape[1]
    Sxx, Syx = X @ X.T / P, Y @ X.T / P
    W1, W2 = W1.copy(), W2.copy()
    target = tol * np.abs(Syx).max()
    with threadpool_limits(1, "blas"):
        for step in range(max_steps):
            rest = Syx - W2 @ (W1 @ Sxx)
            if step % 100 == 0 and not np.abs(rest).max() > target:
                break
            W1, W2 = W1 + lr * W2.T @ rest, W2 + lr * rest @ W1.T
    if not np.abs(rest).max() <= target:
        reason = (
            f"gradient descent left Σyx − W₂W₁Σxx at {np.abs(rest).max():.3g}, not {target:.3g}"
        )
        remedy = "Use a smaller step if it diverged, or more steps if it was slow."
        raise ArgumentError("lr", lr, reason, remedy)
    return W1, W2


def _check_shapes(X: np.ndarray, Y: np.ndarray, W1: np.ndarray, W2: np.ndarray) -> None:
    check_shape("Y", Y, (len(Y), X.shape[1]), f"X has {X.shape[1]} samples (columns)")
    check_shape("W1", W1, (len(W1), len(X)), f"X has {len(X)} inputs (rows)")
    check_shape("W2", W2, (len(Y), len(W1)), f"Y has shape {Y.shape}, W1 {W1.shape}")


@validate(
    X=checks.design,
    Y=checks.matrix,
    W1=checks.matrix,
    W2=checks.matrix,
    lr=checks.positive,
    batch_size=checks.count,
    record=checks.wholes,
    chains=checks.count,
    burn_in=checks.whole,
)
def simulate_two_layer(
    X: np.ndarray,
    Y: np.ndarray,
    W1: np.ndarray,
    W2: np.ndarray,
    *,
    lr: float,
    batch_size: int,
    record: Sequence[int] | np.ndarray,
    chains: int = 128,
    dynamics: str = "sgd",
    sampling: str = "replacement",
    every: int | str | None = None,
    burn_in: int | None = None,
    seed: int = 0,
) -> TwoLayerEnsemble:
    """Return the weights of simulated two-layer chains of SGD on ‖Y − W₂W₁X‖²/(2P).

    `dynamics="flow"` integrates the nonlinear stochastic gradient flow instead, Euler–Maruyama with
    dt = λ, its noise Gaussian with the exact covariance of a minibatch at the current weights.
    Implements Eqs. (3.5), (3.15) and (3.16) of [fluctuations].

    Args:
        X: Inputs (N_i×P), samples as columns.
        Y: Targets (N_o×P).
        W1: First layer (N_h×N_i).
        W2: Second layer (N_o×N_h).
        lr: Learning rate λ.
        batch_size: Minibatch size S.
        record: Steps at which the weights are kept; the last one ends the run.
        chains: Independent chains.
        dynamics: "sgd" or "flow".
        sampling: "replacement", "without_replacement" or "shuffle"; for SGD.
        every: Steps between measurements of the covariance of all weights, or "20it" or "1ep"; None
            for no covariance.
        burn_in: Steps before it is measured; by default 3.5 relaxation times of the slowest mode.
        seed: Seed of all chains.

    Raises:
        ArgumentError: The chains diverge, a batch of distinct samples is larger than the set,
            shapes do not fit, or the run ends before the covariance is measured.
    """
    check_dynamics(dynamics, sampling)
    _check_shapes(X, Y, W1, W2)
    inputs, targets = np.ascontiguousarray(X.T, dtype=np.float32), Y.T.astype(np.float32)
    kept = np.unique(np.asarray(record, dtype=int))
    wanted = set(kept.tolist())
    slowest = _relaxation_steps(X, W1, W2, lr)
    waited = math.ceil(FROM_SOLUTION * slowest) if burn_in is None else burn_in
    every = None if every is None else steps_between(every, X.shape[1] / batch_size)
    if every is not None and waited + every > kept[-1]:
        reason = f"the run ends before its first measurement, at step {waited + every}"
        raise ArgumentError("record", int(kept[-1]), reason, "Record a later step, or set burn_in.")
    if every is not None and chains < 2:
        raise ArgumentError("chains", chains, "a covariance over chains needs two", "Use more.")
    moments = RunningMoments(W1.size + W2.size) if every is not None else None
    means: list[np.ndarray] = []
    first = np.tile(np.asarray(W1, dtype=np.float32), (chains, 1, 1))
    second = np.tile(np.asarray(W2, dtype=np.float32), (chains, 1, 1))
    rng = numpy_generator(seed, "chains", dynamics, sampling)
    if dynamics == "sgd":
        batches = chain_batches(len(inputs), batch_size, chains, sampling=sampling, rng=rng)
        gradient = _minibatch_gradient(inputs, targets, batches)
    else:
        gradient = _langevin_gradient(inputs, targets, batch_size, rng)
    rate = np.float32(lr)
    history = ([], [])
    with threadpool_limits(1, "blas"), np.errstate(over="ignore", invalid="ignore"):
        for step in range(kept[-1] + 1):
            if step in wanted:
                history[0].append(first.copy())
                history[1].append(second.copy())
            if step % 1000 == 0 and not np.isfinite(second).all():
                break
            if moments is not None and step > waited and (step - waited) % (every or 1) == 0:
                rows = _stack(first, W1, second, W2)
                means.append(rows.mean(axis=0))
                moments.add(rows - means[-1])
            rest = gradient(second @ first)
            change = second.transpose(0, 2, 1) @ rest
            second = second + rate * (rest @ first.transpose(0, 2, 1))
            first += rate * change
    if len(history[0]) < len(kept) or not np.isfinite(history[1][-1]).all():
        raise ArgumentError(
            "lr", lr, "the chains diverged", "Use a smaller learning rate or a larger batch."
        )
    samples, mean, covariance = 0, None, None
    if moments is not None:
        samples, start = moments.count, _stack(W1[None], 0.0, W2[None], 0.0)[0]
        mean = np.mean(means, axis=0) + start
        covariance = moments.covariance(about_zero=True) * (chains / (chains - 1))
    layers = (np.stack(history[0]), np.stack(history[1]))
    return TwoLayerEnsemble(kept, *layers, float(slowest), waited, samples, mean, covariance)


def _relaxation_steps(X: np.ndarray, W1: np.ndarray, W2: np.ndarray, lr: float) -> float:
    """Return 1/(λω₀) of two-layer descent: Ė = −W₂W₂ᵀEΣ − EΣW₁ᵀW₁ decays slowest with ω₀."""
    left, spread, _ = np.linalg.svd(X / math.sqrt(X.shape[1]), full_matrices=False)
    root = left * spread
    slowest = math.inf
    for D2 in np.linalg.eigvalsh(W2 @ W2.T):
        rates = np.linalg.eigvalsh(root.T @ (W1.T @ W1 + max(D2, 0.0) * np.eye(len(X))) @ root)
        positive = rates[rates > 1e-9 * rates[-1]]
        slowest = min([slowest, *positive])
    return 1 / (lr * slowest)  # 0 when nothing relaxes: no weight and no gradient


def _stack(first: np.ndarray, W1: Any, second: np.ndarray, W2: Any) -> np.ndarray:
    """Return (vec(first − W1), vec(second − W2)) of simulated two-layer chains."""
    parts = [first - W1, second - W2]
    return np.hstack([part.transpose(0, 2, 1).reshape(len(part), -1) for part in parts])


def _minibatch_gradient(inputs: np.ndarray, targets: np.ndarray, batches) -> _Gradient:
    """Return w = W₂W₁ ↦ Σyx − wΣxx of two-layer chains' minibatches, (chains, N_o, N_i)."""

    def gradient(product: np.ndarray) -> np.ndarray:
        indices = next(batches)
        x = inputs.take(indices, axis=0, mode="clip")
        errors = targets.take(indices, axis=0, mode="clip") - x @ product.transpose(0, 2, 1)
        return errors.transpose(0, 2, 1) @ x / np.float32(indices.shape[1])

    return gradient


def _langevin_gradient(
    inputs: np.ndarray, targets: np.ndarray, batch_size: int, rng: np.random.Generator
) -> _Gradient:
    """Return w = W₂W₁ ↦ Σyx − wΣxx plus Gaussian noise like a minibatch's, for two-layer chains."""
    samples = len(inputs)
    scale = np.float32(1 / math.sqrt(batch_size * samples))
    Sxx, Syx = inputs.T @ inputs / samples, targets.T @ inputs / samples

    def gradient(product: np.ndarray) -> np.ndarray:
        chains, outputs, width = product.shape
        mean = Syx - product @ Sxx
        draws = rng.standard_normal((chains, 1, samples), dtype=np.float32)
        flat = product.reshape(chains * outputs, width)
        errors = targets.T - (flat @ inputs.T).reshape(chains, outputs, samples)
        noise = (errors * draws).reshape(chains * outputs, samples) @ inputs
        return mean + scale * (
            noise.reshape(product.shape) - draws.sum(axis=2, keepdims=True) * mean
        )

    return gradient

"""Minibatches for many chains at once, by sampling scheme."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hyperribbon.core.checks import ArgumentError, check_choice, count, instance, validate
from hyperribbon.papers.training.sampling import SAMPLING_SCHEMES

_BLOCK, _CACHED = 1 << 20, 1 << 17
_SMALL = 512


def check_dynamics(dynamics: str, sampling: str) -> None:
    """Check the dynamics of a simulation, and that its minibatches can be drawn as asked."""
    check_choice("dynamics", dynamics, ("sgd", "flow"))
    if dynamics == "flow" and check_choice("sampling", sampling, SAMPLING_SCHEMES) != "replacement":
        reason = "the noise of the flow is that of minibatches with replacement"
        raise ArgumentError("sampling", sampling, reason, "Omit it, or use dynamics='sgd'.")


@validate(
    samples=count,
    batch_size=count,
    chains=count,
    rng=instance(np.random.Generator, "Give np.random.default_rng(seed)."),
)
def chain_batches(
    samples: int, batch_size: int, chains: int, *, sampling: str, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield for ever the sample indices (chains, S) of the next minibatch of every simulated chain.

    Args:
        samples: Size P of the training set.
        batch_size: Minibatch size S.
        chains: Number of independent chains.
        sampling: "replacement", "without_replacement" (a fresh subset each step) or "shuffle" (a
            new order each epoch, cut into minibatches, the last of which may be short).
        rng: Source of randomness.

    Returns:
        What yields them.

    Raises:
        ArgumentError: Unknown scheme, or a batch of distinct samples larger than the set.
    """
    check_choice("sampling", sampling, SAMPLING_SCHEMES)
    if sampling != "replacement" and batch_size > samples:
        reason = f"only {samples} distinct samples can be drawn with sampling={sampling!r}"
        remedy = f"Use at most {samples}, or sampling='replacement'."
        raise ArgumentError("batch_size", batch_size, reason, remedy)
    if sampling == "replacement":
        return _with_replacement(samples, batch_size, chains, rng)
    if sampling == "shuffle":
        return _shuffle(samples, batch_size, chains, rng)
    draw = _small_subsets if batch_size <= _SMALL else _large_subsets
    return draw(samples, batch_size, chains, rng)


def _with_replacement(
    samples: int, size: int, chains: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    steps = max(1, _BLOCK // (chains * size))
    while True:
        yield from rng.integers(samples, size=(steps, chains, size), dtype=np.intp)


def _shuffle(
    samples: int, size: int, chains: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    order = np.tile(np.arange(samples), (chains, 1))
    while True:
        order = rng.permuted(order, axis=1)
        for start in range(0, samples, size):
            yield order[:, start : start + size]


def _small_subsets(
    samples: int, size: int, chains: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Draw small batches by Floyd's subsets: S draws, a repeated one replaced by the newcomer.

    Round i draws from the first P−S+i+1 samples; a sample that the batch already has gives way to
    number P−S+i, which no earlier round could draw. Every subset is equally likely.

    Yields:
        Indices (chains, S) of the next minibatch of every chain.
    """
    steps = max(1, _CACHED // (chains * size))
    chosen = np.empty((size, steps * chains), dtype=np.int32)
    while True:
        for place, newcomer in enumerate(range(samples - size, samples)):
            drawn = rng.integers(newcomer + 1, size=steps * chains, dtype=np.int32)
            repeated = (chosen[:place] == drawn).any(axis=0)
            chosen[place] = np.where(repeated, newcomer, drawn)
        yield from chosen.T.astype(np.intp, order="C").reshape(steps, chains, size)


def _large_subsets(
    samples: int, size: int, chains: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Draw large batches by partial Fisher–Yates: from any order, S swaps give a uniform subset."""
    order = np.tile(np.arange(samples), (chains, 1))
    rows = np.arange(chains)
    while True:
        for place in range(size):
            pick = rng.integers(place, samples, size=chains)
            order[rows, place], order[rows, pick] = order[rows, pick], order[rows, place]
        yield order[:, :size].copy()

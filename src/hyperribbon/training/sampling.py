"""Which samples make up each minibatch: three schemes, told apart because their noise differs."""

from __future__ import annotations

import torch

from hyperribbon.core.boundary import checked, count, whole
from hyperribbon.core.checks import check_choice
from hyperribbon.core.generators import numpy_generator

__all__ = ["SAMPLING_SCHEMES", "epoch_batches", "steps_per_epoch"]

SAMPLING_SCHEMES = ("shuffle", "replacement", "without_replacement")


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Return the number of minibatches of one pass, the last of which may be short."""
    return -(-samples // batch_size)


@checked(samples=count, batch_size=count, epoch=whole)
def epoch_batches(
    samples: int, batch_size: int, *, scheme: str, seed: int, epoch: int
) -> tuple[torch.Tensor, ...]:
    """Return the sample indices of every minibatch of one epoch.

    They depend on (seed, epoch) alone, so training may stop and go on anywhere.

    Args:
        samples: Size P of the training set.
        batch_size: Minibatch size S.
        scheme: "shuffle": a new order each epoch, cut into minibatches (what a DataLoader does;
            the last may be short); "replacement": independent draws, gradient noise (1/S)·C;
            "without_replacement": each minibatch is a fresh subset, noise (P−S)/(P−1)·(1/S)·C.
        seed: Seed of the run.
        epoch: Epochs completed before this one.

    >>> [len(batch) for batch in epoch_batches(5, 2, scheme="shuffle", seed=0, epoch=0)]
    [2, 2, 1]
    """
    check_choice("sampling", scheme, SAMPLING_SCHEMES)
    rng = numpy_generator(seed, "batches", epoch)
    if scheme == "shuffle":
        return torch.from_numpy(rng.permutation(samples)).split(batch_size)
    steps, size = steps_per_epoch(samples, batch_size), min(batch_size, samples)
    if scheme == "replacement":
        return torch.from_numpy(rng.integers(samples, size=(steps, batch_size))).unbind()
    return tuple(
        torch.from_numpy(rng.choice(samples, size, replace=False, shuffle=False))
        for _ in range(steps)
    )

"""Mini-batch sampling: three schemes that differ in their gradient noise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError, check_choice, count, validate, whole
from hyperribbon.core.generators import numpy_generator
from hyperribbon.operators.risk.batches import pick
from hyperribbon.operators.risk.data import Source

SAMPLING_SCHEMES = ("shuffle", "replacement", "without_replacement")
_SIZE = 128  # default mini-batch size


def size_of_batches(argument: str, value: Any) -> int | str | None:
    """Check the mini-batch size to sample: a number, None for all samples, or "auto"."""
    is_auto = isinstance(value, str) and value == "auto"
    return value if value is None or is_auto else count(argument, value)


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Return the number of mini-batches that sampling makes of an epoch; the last may be short."""
    return -(-samples // batch_size)


class Minibatches:
    """The mini-batches of every epoch of a training run.

    Samples in memory, or read by index, are drawn by `epoch_batches`. Streams, and batches whose
    samples differ in shape, are used unchanged and in order in every epoch.

    Args:
        source: The data.
        batch_size: Samples per minibatch; None for all, "auto" for those of a loader, else 128.
        scheme: As for `epoch_batches`.

    Attributes:
        length: Mini-batches per epoch; the last may be short.
        whole: All samples as one batch, if they are in memory and have equal shapes.
        size: Samples per mini-batch; 0 where the data come in fixed batches.

    Raises:
        ArgumentError: A batch size or scheme is given for fixed batches.
    """

    def __init__(self, source: Source, batch_size: int | str | None, scheme: str) -> None:
        self._source, self._scheme = source, check_choice("sampling", scheme, SAMPLING_SCHEMES)
        kept = list(source.batches()) if source.is_kept else []
        self.whole = kept[0] if len(kept) == 1 else None
        self._samples = None if len(kept) > 1 else source.total
        if self._samples is None:
            given = {"batch_size": batch_size} if batch_size != "auto" else {}
            given |= {"sampling": scheme} if scheme != "shuffle" else {}
            for name, value in given.items():
                reason = "the data come in fixed batches that cannot be joined"
                raise ArgumentError(name, value, reason, "Omit it.")
            self.length, self.size = sum(1 for _ in source.batches()), 0
        else:
            size = source.batch_size or _SIZE if batch_size == "auto" else batch_size
            self.size = int(size or self._samples)
            self.length = steps_per_epoch(self._samples, self.size)

    def indices(self, epoch: int, seed: int) -> tuple[torch.Tensor, ...]:
        """Return the sample indices of every mini-batch that sampling draws for an epoch."""
        assert self._samples is not None
        how = {"scheme": self._scheme, "seed": seed, "epoch": epoch}
        return epoch_batches(self._samples, self.size, **how)

    def of_epoch(self, epoch: int, seed: int, start: int) -> Iterator[Any]:
        """Yield the mini-batches of an epoch as sampling draws them.

        Args:
            epoch: Epochs completed before this one.
            seed: Seed of the run.
            start: Mini-batches of the epoch to skip.
        """
        if self._samples is None:
            yield from islice(self._source.batches(), start, None)
            return
        for places in self.indices(epoch, seed)[start:]:
            if self.whole is not None:
                yield pick(self.whole, places)
            else:
                yield self._source.take(np.sort(places.numpy())).some(len(places))


@validate(samples=count, batch_size=count, epoch=whole)
def epoch_batches(
    samples: int, batch_size: int, *, scheme: str, seed: int, epoch: int
) -> tuple[torch.Tensor, ...]:
    """Return the sample indices of every mini-batch that sampling gives for an epoch.

    They depend only on (seed, epoch), so training can resume at any step.

    Args:
        samples: Size P of the training set.
        batch_size: Mini-batch size S.
        scheme: "shuffle": a new order each epoch, cut into minibatches (what a DataLoader does;
            the last may be short); "replacement": independent draws, gradient noise (1/S)·C;
            "without_replacement": each minibatch is a fresh subset, noise (P−S)/(P−1)·(1/S)·C.
        seed: Seed of the run.
        epoch: Epochs completed before this one.

    >>> [len(batch) for batch in epoch_batches(5, 2, scheme="shuffle", seed=0, epoch=0)]
    [2, 2, 1]
    """
    check_choice("scheme", scheme, SAMPLING_SCHEMES)
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

"""How many samples data hold, and fewer of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import numpy_generator

__all__ = ["count_samples", "few_samples", "groups_of_samples"]


def count_samples(data: Any) -> int | None:
    """Return the number of samples, or None for a stream of unknown length.

    Args:
        data: A tensor, a tuple or dict of tensors, a Dataset or a DataLoader.
    """
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, IterableDataset):
        return None
    if isinstance(data, Mapping):
        data = next(iter(data.values()))
    elif isinstance(data, tuple | list):
        data = data[0]
    try:
        return len(data)
    except TypeError:
        raise ArgumentError(
            "data", data, "it has no samples", "Give (inputs, targets), a Dataset or a DataLoader."
        ) from None


def few_samples(data: Any, number: int, seed: int) -> Any:
    """Return the same kind of data with `number` samples drawn at random, in their order.

    A stream gives its first batches instead.

    Args:
        data: As for `count_samples`.
        number: Samples to keep.
        seed: Seed of the draw.
    """
    total = count_samples(data)
    if total is None:
        return _first_batches(data, number)
    if number >= total:
        return data
    return _take(data, np.sort(numpy_generator(seed, "samples").permutation(total)[:number]))


def groups_of_samples(data: Any, groups: int, seed: int) -> list[Any]:
    """Return disjoint groups of equally many samples, drawn at random; none for a stream.

    Args:
        data: As for `count_samples`.
        groups: How many.
        seed: Seed of the draw.
    """
    total = count_samples(data)
    if total is None or total < 2 * groups:
        return []
    order = numpy_generator(seed, "groups").permutation(total)[: total // groups * groups]
    return [_take(data, np.sort(rows)) for rows in order.reshape(groups, -1)]


def _take(data: Any, chosen: np.ndarray) -> Any:
    if isinstance(data, DataLoader):
        return DataLoader(
            Subset(data.dataset, chosen.tolist()),
            batch_size=data.batch_size or 1,
            collate_fn=data.collate_fn,
        )
    if isinstance(data, Dataset):
        return Subset(data, chosen.tolist())
    rows = torch.from_numpy(chosen)
    if isinstance(data, Mapping):
        return {name: value[rows] for name, value in data.items()}
    if isinstance(data, torch.Tensor):
        return data[rows]
    return tuple(value[rows] for value in data)


class _Batches(Dataset):
    """Batches that were read from a stream, one an item."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


def _first_batches(data: Any, number: int) -> DataLoader:
    loader = data if isinstance(data, DataLoader) else DataLoader(data, batch_size=64)
    needed = max(1, -(-number // (loader.batch_size or 1)))
    batches = list(islice(iter(loader), needed))
    return DataLoader(_Batches(batches), batch_size=None)

"""How many samples data hold, and fewer of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.processes import Processes
from hyperribbon.core.devices.torch_inside import tree_leaves
from hyperribbon.core.generators import numpy_generator
from hyperribbon.operators.risk.batches import batch_size, joined, pick, plain
from hyperribbon.operators.risk.data import is_batch
from hyperribbon.operators.risk.loaders import undisturbed

__all__ = [
    "check_same_samples",
    "count_samples",
    "few_samples",
    "gathered",
    "groups_of_samples",
    "share_of_samples",
]


def gathered(data: Any) -> Any:
    """Return data of any kind that operators take as a batch, batches, or what samples come from.

    Batches in a list or from an iterator, which is read once, become one batch where their samples
    have the same shapes.

    Raises:
        ArgumentError: There are no samples, or the items of a list are no batches.
    """
    if is_batch(data, has_targets=True):
        return plain(tuple(data) if isinstance(data, list) else data)
    if not isinstance(data, list | Iterator):
        return data
    batches = [plain(batch) for batch in data]
    if not sum(map(batch_size, batches)):
        raise ArgumentError("data", batches, "it holds no samples", "Give some samples.")
    whole = joined(batches)
    return whole[0] if len(whole) == 1 else batches


def count_samples(data: Any) -> int | None:
    """Return the number of samples, or None for a stream of unknown length."""
    if isinstance(data, DataLoader):
        if data.batch_sampler is None and not isinstance(data.dataset, _Batches):
            return None  # its items are batches
        data = data.dataset
    if isinstance(data, list):
        return sum(map(batch_size, data))
    if is_batch(data, has_targets=True):
        return batch_size(data)
    if isinstance(data, IterableDataset):
        return None
    if hasattr(data, "__len__") and not isinstance(data, str):
        return len(data)
    if isinstance(data, Iterable) and not isinstance(data, str):
        return None
    remedy = "Give (inputs, targets), a Dataset, a DataLoader or a list of batches."
    raise ArgumentError("data", data, "it has no samples", remedy)


def few_samples(data: Any, number: int, seed: int) -> Any:
    """Return the same kind of data with `number` samples drawn at random, in their order.

    A stream gives its first batches instead.
    """
    total = count_samples(data)
    if total is None:
        return _first_batches(data, number)
    if number >= total:
        return data
    return _take(data, np.sort(numpy_generator(seed, "samples").permutation(total)[:number]))


def groups_of_samples(data: Any, groups: int, seed: int) -> list[Any]:
    """Return disjoint groups of equally many samples, drawn at random; none for a stream."""
    total = count_samples(data)
    if total is None or total < 2 * groups:
        return []
    order = numpy_generator(seed, "groups").permutation(total)[: total // groups * groups]
    return [_take(data, np.sort(rows)) for rows in order.reshape(groups, -1)]


def check_same_samples(data: Any, processes: Processes) -> None:
    """Raise when the processes have made different data, as far as the first sample shows."""
    if not processes.is_parallel:
        return
    total = count_samples(data)
    first = _take(data, np.arange(1)) if total else ()
    leaves = tree_leaves(next(iter(first)) if isinstance(first, DataLoader | Dataset) else first)
    sums = [float(leaf.double().sum()) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    found = processes.gather((total, sums))
    if any(other != found[0] for other in found):
        reason = "the processes have made different data"
        remedy = "Draw them with a fixed seed, so that every process makes the same."
        raise ArgumentError("data", f"{total} samples", reason, remedy)


def share_of_samples(data: Any, rank: int, size: int) -> Any:
    """Return the samples of one of several processes: consecutive ones, nearly equally many.

    Raises:
        ArgumentError: The data are a stream.
    """
    if size == 1:
        return data
    total = count_samples(data)
    if total is None:
        reason = "a stream cannot be divided among processes"
        raise ArgumentError("data", data, reason, "Give a data set.")
    return _take(data, np.array_split(np.arange(total), size)[rank])


def _take(data: Any, chosen: np.ndarray) -> Any:
    if isinstance(data, DataLoader) and isinstance(data.dataset, _Batches):
        batches = [data.dataset.batches[index] for index in chosen]
        return DataLoader(_Batches(batches), batch_size=None)
    if isinstance(data, DataLoader):
        return DataLoader(
            Subset(data.dataset, chosen.tolist()),
            batch_size=data.batch_size or 1,
            collate_fn=data.collate_fn,
        )
    if not isinstance(data, list) and not is_batch(data, has_targets=True):
        return Subset(data, chosen.tolist())
    if isinstance(data, list):
        return list(_rows_of(data, torch.from_numpy(chosen)))
    return pick(data, torch.from_numpy(chosen))


def _rows_of(batches: list[Any], rows: torch.Tensor) -> Iterator[Any]:
    """Yield what batches hold of some of all their samples."""
    start = 0
    for batch in batches:
        stop = start + batch_size(batch)
        own = rows[(rows >= start) & (rows < stop)] - start
        if len(own):
            yield pick(batch, own)
        start = stop


class _Batches(Dataset):
    """Batches that were read from a stream, one as each item."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


def _first_batches(data: Any, number: int) -> DataLoader:
    """Return the first batches of a stream, enough for a number of samples."""
    loader = DataLoader(data, batch_size=64) if isinstance(data, IterableDataset) else data
    batches: list[Any] = []
    found = 0
    with undisturbed(loader):
        for batch in loader:
            batches.append(plain(batch))
            found += batch_size(batches[-1])
            if found >= number:
                break
    return DataLoader(_Batches(batches), batch_size=None)

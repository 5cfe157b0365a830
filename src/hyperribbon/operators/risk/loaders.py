"""Loaders that read every sample once, in the same order on every pass."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.ambient import preserved_random_state
from hyperribbon.core.devices.tensors import tensor_of
from hyperribbon.core.devices.torch_inside import tree_leaves
from hyperribbon.operators.risk.batches import plain, tensors

__all__ = [
    "again",
    "augmented",
    "check_repeats",
    "fingerprint",
    "in_order",
    "length_of",
    "loader_of",
    "read_samples",
    "undisturbed",
]

_READ = 256  # samples read at once from a Dataset
_PROBES = 8  # samples of a Dataset that are read twice to see whether it augments
_ENTRIES = 64  # entries of a tensor by which it is known again


def loader_of(dataset: Any, batch_size: int | None = None) -> DataLoader[Any]:
    """Return a loader that reads a data set of samples (anything with a length and an index)."""
    return DataLoader(dataset, batch_size=batch_size or _READ)


def in_order(loader: DataLoader[Any], drops_last: bool = False) -> DataLoader[Any]:
    """Return a loader that reads every sample once and in order, whatever the given one does.

    A sum over samples does not depend on their order, so a shuffling loader is read in order; then
    every pass sees the same batches and no random number is used. The samples that `drop_last`
    omits from an epoch belong to the data and are read too, unless `drops_last` obeys it. A random
    subset is read in the order of its indices. Other samplers, and loaders of other classes, are
    read as they come.
    """
    sampler: Any = loader.sampler
    dataset: Any = loader.dataset
    grouped: Any = loader.batch_sampler
    in_batches = type(loader) is DataLoader and loader.batch_size is None
    is_plain = in_batches and type(grouped) is BatchSampler
    if is_plain and type(grouped.sampler) in (SequentialSampler, RandomSampler):
        return again(loader, dataset, grouped.batch_size)
    if type(loader) is not DataLoader or loader.batch_size is None:
        return loader
    if isinstance(dataset, IterableDataset):
        return again(loader, dataset) if loader.drop_last else loader
    count = len(dataset)
    if drops_last and loader.drop_last and count > loader.batch_size:
        count -= count % loader.batch_size
        dataset = Subset(dataset, range(count)) if count < len(dataset) else dataset
    if type(sampler) is DistributedSampler:
        # without the samples that are repeated to give every rank as many
        return again(loader, Subset(dataset, range(sampler.rank, count, sampler.num_replicas)))
    if type(sampler) is SubsetRandomSampler:
        return again(loader, Subset(dataset, list(sampler.indices)))
    shuffles = type(sampler) is RandomSampler and not sampler.replacement
    if (shuffles and sampler.num_samples == len(sampler.data_source)) or (
        type(sampler) is SequentialSampler and loader.drop_last
    ):
        return again(loader, dataset)
    return loader


def length_of(loader: Any) -> int | None:
    """Return the number of samples of a loader that reads data by index in order, else None."""
    indexed = (
        type(loader) is DataLoader
        and loader.batch_size is not None
        and type(loader.sampler) is SequentialSampler
        and type(loader.batch_sampler) is BatchSampler
        and not isinstance(loader.dataset, IterableDataset)
    )
    return len(loader.dataset) if indexed else None  # type: ignore[arg-type]


def read_samples(loader: DataLoader[Any], places: Iterable[int]) -> Any:
    """Return the batch of some samples, read by index."""
    dataset: Any = loader.dataset
    indices = [int(place) for place in places]
    with preserved_random_state():
        if callable(getattr(dataset, "__getitems__", None)):
            return loader.collate_fn(dataset.__getitems__(indices))
        return loader.collate_fn([dataset[index] for index in indices])


@contextmanager
def undisturbed(loader: Any) -> Generator[None]:
    """Give back the global random state and that of a loader's own generator as they were."""
    generator = getattr(loader, "generator", None)
    state = generator.get_state() if isinstance(generator, torch.Generator) else None
    try:
        with preserved_random_state():
            yield
    finally:
        if isinstance(generator, torch.Generator) and state is not None:
            generator.set_state(state)


def check_repeats(loader: Iterable[Any]) -> None:
    """Read some samples twice; raise when they differ (random augmentation)."""
    with undisturbed(loader):
        dataset = getattr(loader, "dataset", None)
        if (
            dataset is None
            or isinstance(dataset, IterableDataset)
            or not hasattr(dataset, "__len__")
        ):
            first, second = (next(iter(loader), None) for _ in range(2))
        else:
            count = len(dataset)
            probes = min(count, _PROBES)
            first, second = (
                [dataset[count * i // probes] for i in range(probes)] for _ in range(2)
            )
    ours, theirs = tree_leaves(plain(first)), tree_leaves(plain(second))
    if len(ours) != len(theirs) or not all(map(_same, ours, theirs)):
        raise augmented(loader)


def augmented(loader: Any) -> ArgumentError:
    """Return the error of data that are not the same when they are read again."""
    reason = "the same sample read twice differs, so its transform is random (augmentation)"
    remedy = "Give the data without random transforms; the risk is then one fixed function."
    return ArgumentError("data", loader, reason, remedy)


def fingerprint(batch: Any) -> int:
    """Return a number by which a batch is known again: of its shapes and of some entries."""
    parts: list[tuple[tuple[int, ...], bytes]] = []
    for leaf in tensors(batch):
        flat = leaf.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // _ENTRIES)].cpu().contiguous()
        parts.append((tuple(leaf.shape), some.view(torch.uint8).numpy().tobytes()))
    return hash(tuple(parts))


def again(loader: DataLoader[Any], dataset: Any, batch_size: int | None = None) -> DataLoader[Any]:
    """Return a loader of a data set that reads in order and is else like the given one."""
    workers = loader.num_workers
    return DataLoader(
        dataset,
        batch_size=batch_size or loader.batch_size,
        collate_fn=loader.collate_fn,
        num_workers=workers,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if workers else None,
    )


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, str):
        return first == second
    try:
        a, b = tensor_of(first), tensor_of(second)
    except (TypeError, ValueError, RuntimeError):
        return type(first) is type(second)
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())

"""Data of an empirical risk: a pair of tensors, a Dataset or a DataLoader, read in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.derivatives.purity import preserved_random_state

__all__ = ["Data", "Order", "Source"]

Data = Any
"""What operators take: (inputs, targets), a Dataset, a DataLoader, or inputs alone."""

_READ = 256  # samples read at once from a Dataset
_PROBES = 8  # samples of a Dataset that are read twice to see whether it augments
_RARE = 0.01  # part of the samples in which a feature is not zero, when it is called rare
_MANY = 0.1  # part of the features that must be rare for an order by them to pay
_ROWS = 256  # samples looked at together for that


@dataclass
class Order:
    """Orders of the samples and of their features: positions, (n,) and (d,)."""

    samples: torch.Tensor
    features: torch.Tensor


class Source:
    """Batches of a data set, always the same ones, in the precision and place of the model.

    Data that take less than `memory` bytes are read once and kept; others are read on every pass.
    Batches are trees of tensors whose first axis counts samples.

    Args:
        data: Pair of tensors, tensor, Dataset or DataLoader.
        dtype: Precision that floating-point tensors are brought to.
        device: Where the model is.
        memory: Bytes that may be kept.
        may_be_empty: Whether there may be no sample at all: when other ranks have some.

    Raises:
        ArgumentError: The data are empty, on another device, ragged, or change between readings.
    """

    def __init__(
        self,
        data: Data,
        *,
        dtype: torch.dtype,
        device: torch.device,
        memory: float,
        may_be_empty: bool = False,
    ) -> None:
        self._dtype, self._device, self._may_be_empty = dtype, device, may_be_empty
        self._loader: DataLoader | None = None
        self._kept: list[Any] = []
        if isinstance(data, TensorDataset):
            tensors: Any = data.tensors
            data = tensors if len(tensors) != 1 else tensors[0]
        if isinstance(data, DataLoader | Dataset):
            self._loader = _in_order(data)
            _check_repeats(self._loader)
            self._keep_if_small(memory)
        else:
            tree = tuple(data) if isinstance(data, Sequence) else data
            self._check_tensors(tree)
            self._kept = [tree_map(self._convert, tree)]

    @property
    def is_kept(self) -> bool:
        """Whether the data stay in memory."""
        return bool(self._kept)

    def batches(self) -> Iterator[Any]:
        """Yield the batches: the kept ones, or the loader's, read anew."""
        if self._kept:
            yield from self._kept
        else:
            yield from self._read()

    def chunks(self, size: int, order: Order | None = None) -> Iterator[tuple[int, Any]]:
        """Yield (position of the first sample, batch) with at most `size` samples each.

        Args:
            size: Samples at most.
            order: From `by_rarity`, to yield the samples in.
        """
        if order is not None:
            for position, chosen in enumerate(order.samples.split(size)):
                yield position * size, pick(self._kept[0], chosen)
            return
        position = 0
        for batch in self.batches():
            count = batch_size(batch)
            for start in range(0, count, size):
                stop = min(start + size, count)
                yield position + start, cut(batch, start, stop)
            position += count

    def by_rarity(self, size: int) -> Order | None:
        """Return orders in which chunks use only the first few features; None if it does not pay.

        Features go by the number of samples that have them, and samples by their rarest feature.
        Those with features that few others have, such as bright pixels at the border, then stand
        together at the end, and in the chunks before all rarer features are zero throughout.

        Args:
            size: Samples of a chunk.
        """
        leaves = _tensors(self._kept[0]) if len(self._kept) == 1 else []
        if not leaves or not leaves[0].is_floating_point() or leaves[0].ndim < 2:
            return None
        inputs = leaves[0].flatten(1)
        if len(inputs) <= size:
            return None
        counts = torch.zeros(inputs.shape[1], device=inputs.device)
        for part in inputs.split(_ROWS):
            counts += torch.count_nonzero(part, dim=0)
        if (counts < _RARE * len(inputs)).double().mean() < _MANY:
            return None
        features = counts.argsort(descending=True, stable=True)
        ranks = features.argsort()
        rarest = ranks.new_empty(len(inputs))
        for part, own in zip(inputs.split(_ROWS), rarest.split(_ROWS), strict=True):
            own.copy_(torch.where(part != 0, ranks, -1).amax(1))
        return Order(rarest.argsort(stable=True), features)

    def _read(self) -> Iterator[Any]:
        assert self._loader is not None
        generator = self._loader.generator
        state = None if generator is None else generator.get_state()
        found = False
        with preserved_random_state():
            for batch in self._loader:
                found = True
                yield tree_map(self._convert, _plain(batch))
        if generator is not None and state is not None:
            generator.set_state(state)
        if not found and not self._may_be_empty:
            raise ArgumentError("data", self._loader, "it yields no batch", "Give some samples.")

    def _keep_if_small(self, memory: float) -> None:
        batches, used = [], 0
        for batch in self._read():
            used += sum(leaf.nbytes for leaf in _tensors(batch))
            batch_size(batch)
            if used > memory:
                return
            batches.append(batch)
        self._kept = _joined(batches) if batches else []

    def _convert(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        dtype = self._dtype if leaf.is_floating_point() else leaf.dtype
        return leaf.detach().to(self._device, dtype)

    def _check_tensors(self, tree: Any) -> None:
        leaves = _tensors(tree)
        if not leaves:
            raise ArgumentError(
                "data",
                tree,
                "it holds no tensors",
                "Give (inputs, targets), a Dataset or a DataLoader.",
            )
        for leaf in leaves:
            if leaf.device != self._device:
                raise ArgumentError(
                    "data",
                    leaf,
                    f"the model is on {self._device} and the data on {leaf.device}",
                    f"Move the data with .to({str(self._device)!r}).",
                )
        if batch_size(tree) == 0 and not self._may_be_empty:
            raise ArgumentError("data", tree, "it holds no samples", "Give some samples.")


def batch_size(batch: Any) -> int:
    """Return the number of samples of a batch: the common length of its tensors."""
    lengths = {len(leaf) if leaf.ndim else 0 for leaf in _tensors(batch)}
    if len(lengths) != 1:
        raise ArgumentError(
            "data",
            sorted(lengths),
            "the tensors of a batch have different lengths (first axis)",
            "Give every sample one entry along the first axis.",
        )
    return lengths.pop()


def cut(batch: Any, start: int, stop: int) -> Any:
    """Return samples start to stop of a batch."""
    return tree_map(lambda x: x[start:stop] if isinstance(x, torch.Tensor) else x, batch)


def pick(batch: Any, chosen: torch.Tensor) -> Any:
    """Return chosen samples of a batch."""
    return tree_map(lambda x: x[chosen] if isinstance(x, torch.Tensor) else x, batch)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _plain(batch: Any) -> Any:
    """Return a batch as tuples and dicts, which every tree function knows."""
    if isinstance(batch, Mapping):
        return {key: _plain(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return tuple(_plain(value) for value in batch)
    return batch


def _in_order(data: DataLoader | Dataset) -> DataLoader:
    """Return a loader that reads every sample once and in order, whatever the given one does.

    A sum over samples does not depend on their order, so a shuffling loader is read in order; then
    every pass sees the same batches and no random number is used.
    """
    if not isinstance(data, DataLoader):
        return DataLoader(data, batch_size=_READ)
    sampler = data.sampler
    if type(data) is DataLoader and type(sampler) is DistributedSampler:
        return _own_share(data, sampler)
    shuffles = type(sampler) is RandomSampler and not sampler.replacement
    whole = shuffles and sampler.num_samples == len(data.dataset)  # type: ignore[arg-type]
    if type(data) is not DataLoader or data.batch_size is None or not whole:
        return data
    return DataLoader(
        data.dataset,
        batch_size=data.batch_size,
        collate_fn=data.collate_fn,
        num_workers=data.num_workers,
    )


def _own_share(data: DataLoader, sampler: DistributedSampler) -> DataLoader:
    """Return a loader of a rank's samples, without those that are repeated to make ranks equal."""
    count = len(data.dataset)  # type: ignore[arg-type]
    return DataLoader(
        Subset(data.dataset, range(sampler.rank, count, sampler.num_replicas)),
        batch_size=data.batch_size,
        collate_fn=data.collate_fn,
        num_workers=data.num_workers,
    )


def _check_repeats(loader: DataLoader) -> None:
    """Read some samples twice; raise when they differ (random augmentation)."""
    dataset = loader.dataset
    with preserved_random_state():
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            first, second = (_first(loader) for _ in range(2))
        else:
            count = len(dataset)  # type: ignore[arg-type]
            probes = [count * i // _PROBES for i in range(min(count, _PROBES))]
            first, second = ([dataset[i] for i in probes] for _ in range(2))
    if not _equal(first, second):
        raise ArgumentError(
            "data",
            loader,
            "the same sample read twice differs, so its transform is random (augmentation)",
            "Give the data without random transforms; the risk is then one fixed function.",
        )


def _first(loader: DataLoader) -> Any:
    return next(iter(loader), None)


def _equal(first: Any, second: Any) -> bool:
    ours, theirs = tree_leaves(_plain(first)), tree_leaves(_plain(second))
    return len(ours) == len(theirs) and all(_same(a, b) for a, b in zip(ours, theirs, strict=True))


def _same(a: Any, b: Any) -> bool:
    try:
        a, b = torch.as_tensor(a), torch.as_tensor(b)
    except (TypeError, ValueError, RuntimeError):
        return type(a) is type(b)
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _joined(batches: list[Any]) -> list[Any]:
    """Return one batch of all samples when the batches' trees and shapes agree."""
    flat = [tree_flatten(batch) for batch in batches]
    for (leaves, structure), (others, other_structure) in pairwise(flat):
        same = structure == other_structure and all(
            isinstance(a, torch.Tensor)
            and isinstance(b, torch.Tensor)
            and a.shape[1:] == b.shape[1:]
            for a, b in zip(leaves, others, strict=True)
        )
        if not same:
            return batches
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    if not all(isinstance(leaf, torch.Tensor) for leaf in flat[0][0]):
        return batches
    return [tree_unflatten([torch.cat(column) for column in columns], flat[0][1])]

"""Data of an empirical risk: whatever holds samples, as the same batches on every pass."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.modes import preserve_random_state
from hyperribbon.core.devices.tensors import tensor_of
from hyperribbon.core.devices.torch_private import tree_leaves, tree_map
from hyperribbon.core.generators import numpy_generator, torch_generator
from hyperribbon.operators.risk.batches import (
    batch_size,
    bytes_of,
    concatenate,
    cut,
    pick,
    plain,
    split,
    tensors,
    to_precision,
    with_targets,
)

Data = Any
"""What operators take: tensors, a batch, batches, a Dataset or a DataLoader (see `Source`)."""


class Source:
    """Batches of a data set, always the same ones, in the precision and place of the model.

    `data` is one of

    - a batch: a tensor of inputs, (inputs, targets), (x1, x2, targets), ((x1, x2), targets),
      ({"name": x, …}, targets), a named tuple, or a dict that holds its targets under "labels",
      "label", "targets", "target" or "y". The last item of a tuple holds the targets;
    - a list of batches, or a list that is one batch written with brackets. With targets a list
      that ends with a tensor, such as [inputs, targets], is one batch, since a tensor alone has
      none; without, [x1, x2] are two batches of inputs;
    - an iterator of batches, which is read once and kept;
    - a Dataset, or anything with a length and an index that returns samples;
    - a DataLoader, or any object whose `__iter__` starts anew.

    Every sample counts once: shuffling loaders are read in order, and the samples that `drop_last`
    omits from an epoch are read too (see `_in_order`).

    What takes less than `memory` bytes is read once, on the first pass, and kept; more is read on
    every pass, and must then be the same. Floating-point tensors are brought to the model's
    precision, targets to single precision at least.

    Args:
        data: The samples.
        dtype: Precision of the model.
        device: Where the model is.
        memory: Bytes that may be kept.
        may_be_empty: Whether there may be no sample at all: when other ranks have some.
        has_targets: Whether the batches must hold targets: when there is a loss.
        is_fixed: Whether the samples stay in the batches that they come in, as training in these
            batches has them; `drop_last` is then obeyed.
        batch_size: Samples per batch when fixed batches are made of samples without batches, or of
            a selection; by default those of the loader, or all.

    Attributes:
        batch_size: Samples per batch, of a DataLoader or as given; None for one batch.

    Raises:
        ArgumentError: The data are empty, on another device, ragged, too large to be kept though
            they can be read only once, or change between readings.
    """

    def __init__(
        self,
        data: Data,
        *,
        dtype: torch.dtype,
        device: torch.device,
        memory: float,
        may_be_empty: bool = False,
        has_targets: bool = True,
        is_fixed: bool = False,
        batch_size: int | None = None,
    ) -> None:
        self._dtype, self._device, self._may_be_empty = dtype, device, may_be_empty
        self._has_targets, self._memory, self._is_fixed = has_targets, memory, is_fixed
        self.batch_size = batch_size
        if batch_size is None and isinstance(data, DataLoader):
            self.batch_size = data.batch_size
        self._later: torch.dtype | None = None  # what chunks are brought to after their rounding
        self._reader: Any = None
        self._gives_batches = True
        self._is_one = False
        self._prints: list[int] = []
        self._is_read = self._is_loaded = False
        self._kept: list[Any] = []
        if isinstance(data, TensorDataset):
            data = data.tensors if len(data.tensors) != 1 else data.tensors[0]
        if is_batch(data, has_targets):
            data = plain(data)
            self._check_device(data)
            self._take([data])
            self._kept = self._bundle(self._kept)
            self._is_one = len(self._kept) == 1
        elif isinstance(data, list | Iterator):
            self._take(data)
        else:
            self._reader = self._reader_of(data)

    @property
    def is_kept(self) -> bool:
        """Whether the data source keeps its batches in memory."""
        self._load()
        return bool(self._kept)

    @property
    def is_one_batch(self) -> bool:
        """Whether the data source was given one batch.

        Samples without batches (a Dataset) are one batch when they are kept as one.
        """
        self._load()
        return self._is_one

    @property
    def has_fixed_batches(self) -> bool:
        """Whether the risk's data stay in the batches that they come in."""
        return self._is_fixed

    @property
    def total(self) -> int | None:
        """Number of samples of the data source; None for a stream not read yet."""
        if self._kept or self._reader is None:
            return sum(map(batch_size, self._kept))
        return _length_of(self._reader)

    def batches(self) -> Iterator[Any]:
        """Yield the data's batches: the kept ones, or those of the loader, read anew."""
        self._load()
        if self._kept or self._reader is None:
            yield from self._kept
        else:
            yield from self._read()

    def join(self) -> None:
        """Let samples of different batches of the data be evaluated together."""
        self._is_fixed, self._kept = False, concatenate(self._kept)

    def take(self, places: np.ndarray) -> Source:
        """Return a data source of the samples at some places; fixed batches are made anew.

        Raises:
            ArgumentError: The data are a stream.
        """
        other = copy.copy(self)
        if self._kept:
            other._kept = self._bundle(list(_rows_of(self._kept, torch.from_numpy(places))))
            other._is_one = self.is_one_batch or len(other._kept) == 1
        elif _length_of(self._reader) is None:
            remedy = "Give a Dataset, or a DataLoader that reads one by index."
            raise ArgumentError("data", self._reader, "a stream has no places to select", remedy)
        else:
            loader = self._reader
            subset: Any = Subset(loader.dataset, places.tolist())
            other._reader, other._prints = _like(loader, subset), []
            other._is_read = other._is_loaded = False
        return other

    def few(self, number: int, seed: int) -> Source:
        """Return data of a few samples drawn at random, in their order; the first of a stream."""
        if self.total is None:
            return self._first(number)
        if number >= self.total:
            return self
        order = numpy_generator(seed, "samples").permutation(self.total)
        return self.take(np.sort(order[:number]))

    def groups(self, number: int, seed: int) -> list[Source]:
        """Return data sources of disjoint random groups of equally many samples."""
        if self.total is None or self.total < 2 * number:
            return []
        each = self.total // number
        order = numpy_generator(seed, "groups").permutation(self.total)[: each * number]
        return [self.take(np.sort(rows)) for rows in order.reshape(number, -1)]

    def share(self, rank: int, size: int) -> Source:
        """Return one process's share of the data: consecutive samples, nearly equally many."""
        if size == 1:
            return self
        return self.take(np.array_split(np.arange(self.total or 0), size)[rank])

    def within(self, memory: float) -> Source:
        """Return the same data source with another bound of what may be kept in memory."""
        other = copy.copy(self)
        other._memory = memory
        return other

    def fixed(self, size: int | None) -> Source:
        """Return the same data in fixed batches of a size, or in one; large data as read."""
        self._load()
        other = copy.copy(self)
        other._is_fixed, other.batch_size = True, size
        other._kept = other._bundle(self._kept)
        other._is_one = len(other._kept) == 1
        return other

    def chunks(self, size: int) -> Iterator[tuple[int, Any]]:
        """Yield the data in chunks of at most `size` samples, with the first one's position."""
        position = 0
        for batch in self.batches():
            count = batch_size(batch)
            for start in range(0, count, max(size, 1)):
                some = cut(batch, start, min(start + size, count))
                yield (
                    position + start,
                    some if self._later is None else to_precision(some, self._later),
                )
            position += count

    def in_precision(self, dtype: torch.dtype) -> Source:
        """Return the same data with chunks in another precision, as they are rounded now."""
        other = copy.copy(self)
        other._later = dtype
        return other

    def _first(self, number: int) -> Source:
        """Return the first batches of streamed data, enough for a number of samples."""
        other = copy.copy(self)
        other._kept, found = [], 0
        for batch in self._read():
            other._kept.append(batch)
            found += batch_size(batch)
            if found >= number:
                break
        other._is_one, other._is_loaded = len(other._kept) == 1, True
        return other

    def some(self, count: int, seed: int = 0) -> Any:
        """Return a batch of real samples spread over all the data, in their order.

        The data are divided into `count` equal parts and a sample is drawn from each. Data that are
        read by index are read there and nowhere else; of other data that are not kept, the first
        samples are taken. Where samples have different shapes and make no common batch, the largest
        number of those that do is returned. None without any samples.

        Args:
            count: Samples at most.
            seed: Of the choice.
        """
        length = None if self._kept else _length_of(self._reader)
        if self._kept:
            places = _spread(sum(map(batch_size, self._kept)), count, seed)
            pieces = list(_rows_of(self._kept, places))
        elif length:
            places = [int(place) for place in _spread(length, count, seed)]
            pieces = [self._convert(plain(_read_samples(self._reader, places)))]  # type: ignore[arg-type]
        else:
            pieces: list[Any] = []
            found = 0
            for batch in self.batches():
                pieces.append(cut(batch, 0, min(batch_size(batch), count - found)))
                found += batch_size(pieces[-1])
                if found >= count:
                    break
        return _largest(pieces)

    def _check_device(self, batch: Any) -> None:
        for leaf in tensors(batch):
            if leaf.device != self._device:
                reason = f"the model is on {self._device} and the data on {leaf.device}"
                remedy = f"Move the data with .to({str(self._device)!r})."
                raise ArgumentError("data", leaf, reason, remedy)

    def _take(self, data: Iterable[Any]) -> None:
        """Keep the data's batches that are in memory already, or come only once."""
        batches: list[Any] = []
        used = 0
        with preserve_random_state():
            for given in data:
                batches.append(self._convert(plain(given)))
                batch_size(batches[-1])
                used += bytes_of(batches[-1])
                if used > self._memory and isinstance(data, Iterator):
                    raise ArgumentError(
                        "data",
                        data,
                        f"it can be read only once, and its batches take more than the "
                        f"{self._memory:.3g} bytes that may be kept of data",
                        "Give a DataLoader or an object whose __iter__ starts anew, which are read "
                        "again on every pass, a list of the batches, or a larger memory=.",
                    )
        _check_alike(batches)
        if not any(map(batch_size, batches)) and not self._may_be_empty:
            raise ArgumentError("data", data, "it holds no samples", "Give some samples.")
        self._is_loaded = True
        self._keep(batches)

    def _reader_of(self, data: Any) -> Any:
        """Return what reads data again on every pass."""
        is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        if isinstance(data, DataLoader):
            reader: Any = _in_order(data, drops_last=self._is_fixed)
        elif isinstance(data, Dataset) or (is_indexed and not isinstance(data, str)):
            reader = DataLoader(data, batch_size=self.batch_size or _READ)
            self._gives_batches = isinstance(data, IterableDataset)
        elif isinstance(data, Iterable) and not isinstance(data, str):
            reader = data
        else:
            batch_size(data)  # raises
        _check_repeats(reader)
        return reader

    def _load(self) -> None:
        """Read the data for the first time; keep them when they are small."""
        if self._is_loaded:
            return
        self._is_loaded = True
        batches: list[Any] = []
        used = count = 0
        for batch in self._read():
            count += 1
            used += bytes_of(batch)
            if used <= self._memory:
                batches.append(batch)
            elif count > 1:
                break
        if used <= self._memory:
            self._keep(batches)
        else:
            self._is_one = count == 1 and self._gives_batches

    def _keep(self, batches: list[Any]) -> None:
        """Keep the data's batches, as one where that takes little memory."""
        if self._gives_batches and len(batches) > 1:
            self.batch_size = self.batch_size or batch_size(batches[0])
        is_cut = self._is_fixed and self.batch_size is not None
        fits = sum(map(bytes_of, batches)) <= self._memory
        self._kept = concatenate(batches) if fits and not is_cut else batches
        self._is_one = len(batches if self._gives_batches else self._kept) == 1

    def _bundle(self, batches: list[Any]) -> list[Any]:
        """Return samples of the data in fixed batches of a size, or as one batch."""
        batches = concatenate(batches)
        if not self._is_fixed or self.batch_size is None or len(batches) != 1:
            return batches
        size, count = self.batch_size, batch_size(batches[0])
        starts = list(range(0, count, size))
        if len(starts) > 1 and count % size == 1:
            starts.pop()  # statistics of one sample are none
        return [cut(batches[0], *ends) for ends in pairwise([*starts, count])]

    def _read(self) -> Iterator[Any]:
        """Yield the data's batches; raise when a pass differs from the one before."""
        reader = self._reader
        assert reader is not None
        place = -1
        with _preserve_state(reader):
            for place, given in enumerate(_in_one_shape(reader)):
                batch = plain(given)
                batch_size(batch)
                own = _fingerprint(batch)
                if place == len(self._prints) and not self._is_read:
                    self._prints.append(own)
                if self._prints[place : place + 1] != [own]:
                    raise _random_data_error(reader)
                yield self._convert(batch)
        if place + 1 < len(self._prints):
            raise _random_data_error(reader)
        self._is_read = True
        if place < 0 and not self._may_be_empty:
            raise ArgumentError("data", reader, "it yields no batch", "Give some samples.")

    def _convert(self, batch: Any) -> Any:
        converted = tree_map(lambda leaf: self._move(leaf, self._dtype), batch)
        if self._has_targets and self._dtype.itemsize < torch.float32.itemsize:
            targets = tree_map(lambda leaf: self._move(leaf, torch.float32), split(batch)[1])
            converted = with_targets(converted, targets)
        return converted

    def _move(self, leaf: Any, dtype: torch.dtype) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.is_meta and self._device.type != "meta":
            raise ArgumentError(
                "data", leaf, "a tensor on the meta device has no values", "Give real samples."
            )
        return leaf.detach().to(self._device, dtype if leaf.is_floating_point() else leaf.dtype)


def is_batch(data: Any, has_targets: bool) -> bool:
    """Whether data are one batch, not several or what samples are read from."""
    if isinstance(data, list):
        return has_targets and bool(data) and isinstance(data[-1], torch.Tensor | np.ndarray)
    return isinstance(data, torch.Tensor | np.ndarray | tuple | Mapping)


def _check_alike(batches: list[Any]) -> None:
    """Raise when tensors in a list are not batches of data, as in [inputs, targets]."""
    kinds: set[object] = {
        (b.ndim, b.dtype) if isinstance(b, torch.Tensor) else type(b) for b in batches
    }
    if len(kinds) > 1 and any(isinstance(batch, torch.Tensor) for batch in batches):
        raise ArgumentError(
            "data",
            [getattr(batch, "shape", type(batch).__name__) for batch in batches],
            "a list is read as batches of inputs here, and these are of different kinds",
            "Give a pair as a tuple, (inputs, targets).",
        )


def _in_one_shape(reader: Iterable[Any]) -> Iterator[Any]:
    """Yield the data's batches; explain what to do when shapes make no batch."""
    try:
        yield from reader
    except RuntimeError as error:
        if "equal size" not in str(error):
            raise
        reason = "its samples have different shapes and make no common batch"
        remedy = "Give a DataLoader with a collate_fn that pads them, or with batch_size=1."
        raise ArgumentError("data", reader, reason, remedy) from error


def _rows_of(batches: list[Any], places: torch.Tensor) -> Iterator[Any]:
    """Yield the chosen samples of each data batch."""
    start = 0
    for batch in batches:
        stop = start + batch_size(batch)
        own = places[(places >= start) & (places < stop)] - start
        if len(own):
            yield pick(batch, own)
        start = stop


def _spread(total: int, count: int, seed: int) -> torch.Tensor:
    """Return `count` sample indices spread evenly over the data."""
    count = min(count, total)
    bounds = torch.arange(count + 1, device="cpu") * total // max(1, count)
    uniform = torch.rand(
        count, generator=torch_generator(seed, "some samples"), dtype=torch.float64, device="cpu"
    )
    return bounds[:-1] + (uniform * bounds.diff()).long()


def _largest(pieces: list[Any]) -> Any:
    """Return the size of the largest batch of the data."""
    groups: list[Any] = []
    for piece in pieces:
        for place, group in enumerate(groups):
            both = concatenate([group, piece])
            if len(both) == 1:
                groups[place] = both[0]
                break
        else:
            groups.append(piece)
    return max(groups, key=batch_size, default=None)


_READ = 256  # samples read at once from a Dataset
_PROBES = 8  # samples of a Dataset that are read twice to see whether it augments
_ENTRIES = 64  # entries of a tensor by which it is known again


def _in_order(loader: DataLoader[Any], drops_last: bool = False) -> DataLoader[Any]:
    """Return a loader that reads every sample of the data once and in order.

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
        return _like(loader, dataset, grouped.batch_size)
    if type(loader) is not DataLoader or loader.batch_size is None:
        return loader
    if isinstance(dataset, IterableDataset):
        return _like(loader, dataset) if loader.drop_last else loader
    count = len(dataset)
    if drops_last and loader.drop_last and count > loader.batch_size:
        count -= count % loader.batch_size
        dataset = Subset(dataset, range(count)) if count < len(dataset) else dataset
    if type(sampler) is DistributedSampler:
        # without the samples that are repeated to give every rank as many
        return _like(loader, Subset(dataset, range(sampler.rank, count, sampler.num_replicas)))
    if type(sampler) is SubsetRandomSampler:
        return _like(loader, Subset(dataset, list(sampler.indices)))
    shuffles = type(sampler) is RandomSampler and not sampler.replacement
    if (shuffles and sampler.num_samples == len(sampler.data_source)) or (
        type(sampler) is SequentialSampler and loader.drop_last
    ):
        return _like(loader, dataset)
    return loader


def _length_of(loader: Any) -> int | None:
    """Return the number of samples of data that are read by index in order, else None."""
    indexed = (
        type(loader) is DataLoader
        and loader.batch_size is not None
        and type(loader.sampler) is SequentialSampler
        and type(loader.batch_sampler) is BatchSampler
        and not isinstance(loader.dataset, IterableDataset)
    )
    return len(loader.dataset) if indexed else None  # type: ignore[arg-type]


def _read_samples(loader: DataLoader[Any], places: Iterable[int]) -> Any:
    """Return the batch of some of the data's samples, read by index."""
    dataset: Any = loader.dataset
    indices = [int(place) for place in places]
    with preserve_random_state():
        if callable(getattr(dataset, "__getitems__", None)):
            return loader.collate_fn(dataset.__getitems__(indices))
        return loader.collate_fn([dataset[index] for index in indices])


@contextmanager
def _preserve_state(loader: Any) -> Generator[None]:
    """Give back random states, a loader's own too, after data have been read."""
    generator = getattr(loader, "generator", None)
    state = generator.get_state() if isinstance(generator, torch.Generator) else None
    try:
        with preserve_random_state():
            yield
    finally:
        if isinstance(generator, torch.Generator) and state is not None:
            generator.set_state(state)


def _check_repeats(loader: Iterable[Any]) -> None:
    """Read some of the data twice; raise when they differ (random augmentation)."""
    with _preserve_state(loader):
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
        raise _random_data_error(loader)


def _random_data_error(loader: Any) -> ArgumentError:
    """Return the error of data that are not the same when they are read again."""
    reason = "a sample read twice has two values, so its transform is random (augmentation)"
    remedy = "Give the data without random transforms; the risk is then one fixed function."
    return ArgumentError("data", loader, reason, remedy)


def _fingerprint(batch: Any) -> int:
    """Return a number by which a batch of data is recognised: of its shapes and some entries."""
    parts: list[tuple[tuple[int, ...], bytes]] = []
    for leaf in tensors(batch):
        flat = leaf.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // _ENTRIES)].cpu().contiguous()
        parts.append((tuple(leaf.shape), some.view(torch.uint8).numpy().tobytes()))
    return hash(tuple(parts))


def _like(loader: DataLoader[Any], dataset: Any, batch_size: int | None = None) -> DataLoader[Any]:
    """Return a loader of other data that reads in order and is else like the given one."""
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

"""Batches as trees of tensors: what is in them, parts of them, and several as one.

A batch is a tensor, a tuple, a named tuple or a dict, nested at will, whose tensors have one entry
a sample along the first axis. What is not a tensor (names, numbers, None) is carried along.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from hyperribbon.core.checks import ArgumentError, check_readable
from hyperribbon.core.devices.torch_private import (
    register_pytree_node,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
"""Keys under which a dict has its targets, the first one found."""

_PLAIN = (str, bytes, int, float, bool, type(None))
_DICTS = (dict, OrderedDict, defaultdict)


class Fields(dict[str, Any]):
    """A dict whose entries are attributes too, which stands for other mappings (BatchEncoding)."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the batch has no {name!r}, only {', '.join(map(str, self))}")


register_pytree_node(
    Fields,
    lambda fields: (list(fields.values()), list(fields)),
    lambda values, keys: Fields(zip(keys, values, strict=True)),
    serialized_type_name="hyperribbon.Fields",
)


def plain(batch: Any) -> Any:
    """Return a batch as tuples and dicts alone, which every tree function knows.

    Arrays become tensors.

    Raises:
        ArgumentError: A tensor in it has no rows to cut: packed, sparse or nested.
    """
    if isinstance(batch, torch.Tensor):
        _check_rows(batch)
        return batch
    if isinstance(batch, PackedSequence):
        reason = "a packed sequence cannot be cut into samples"
        remedy = "Give padded sequences and their lengths, and pack them in forward=."
        raise ArgumentError("data", type(batch).__name__, reason, remedy)
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "biuf":
        return torch.tensor(batch, device="cpu")
    if isinstance(batch, Mapping):
        kind: type[dict[Any, Any]] = dict if type(batch) in _DICTS else Fields
        return kind((key, plain(value)) for key, value in batch.items())
    if isinstance(batch, list | tuple):
        return _like(batch, tuple(plain(value) for value in batch))
    return batch


def tensors(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch in order."""
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def to_precision(batch: Any, precision: torch.dtype) -> Any:
    """Return a batch with its floating-point tensors in another precision."""
    return _map(lambda leaf: leaf.to(precision) if leaf.is_floating_point() else leaf, batch)


def move(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on a device."""
    for leaf in tensors(batch) if device.type != "meta" else ():
        check_readable("data", leaf)
    return _map(lambda leaf: leaf.to(device), batch)


def detach(batch: Any) -> Any:
    """Return a batch whose tensors have no graph."""
    return _map(torch.Tensor.detach, batch)


def bytes_of(batch: Any) -> int:
    """Return the memory that a batch takes."""
    return sum(leaf.nbytes for leaf in tensors(batch))


def batch_size(batch: Any) -> int:
    """Return the number of samples of a batch: the common length of its tensors.

    Raises:
        ArgumentError: It has no tensors, one without axes, or some of different lengths.
    """
    found = tensors(batch)
    if not found:
        remedy = "Give (inputs, targets), a Dataset, a DataLoader or a list of batches."
        raise ArgumentError("data", batch, "it holds no tensors", remedy)
    if any(leaf.ndim == 0 for leaf in found):
        reason = "a tensor of a batch has no axes, so no entry per sample"
        remedy = (
            "Give every sample one entry along the first axis; single samples become batches in "
            "DataLoader(data, batch_size=...)."
        )
        raise ArgumentError("data", [tuple(leaf.shape) for leaf in found], reason, remedy)
    lengths = {len(leaf) for leaf in found}
    if len(lengths) != 1:
        reason = "the tensors of a batch have different lengths (first axis)"
        remedy = (
            "Give every sample one entry along the first axis. A list of batches has a tuple or a "
            "dict for each; single samples become batches in DataLoader(data, batch_size=...)."
        )
        raise ArgumentError("data", [tuple(leaf.shape) for leaf in found], reason, remedy)
    return lengths.pop()


def cut(batch: Any, start: int, stop: int) -> Any:
    """Return samples start to stop of a batch."""
    return _map(lambda leaf: leaf[start:stop], batch)


def clone(batch: Any) -> Any:
    """Return a batch with tensors of its own."""
    with torch.inference_mode(False):
        return _map(torch.Tensor.clone, batch)


def pick(batch: Any, chosen: torch.Tensor) -> Any:
    """Return chosen samples of a batch."""
    return _map(lambda leaf: leaf[chosen.to(leaf.device)], batch)


def split(batch: Any) -> tuple[Any, Any]:
    """Return inputs and targets of a batch; targets are None if the batch does not hold any.

    The last item of a tuple holds the targets, the items before the inputs. In a dict the targets
    are under "labels", "label", "targets", "target" or "y", and the other entries are inputs.
    """
    if isinstance(batch, Mapping):
        key = _target_key(batch)
        if key is None:
            return batch, None
        return {name: value for name, value in batch.items() if name != key}, batch[key]
    if isinstance(batch, tuple) and batch:
        *inputs, targets = (*batch, None) if len(batch) == 1 else batch
        return inputs[0] if len(inputs) == 1 else tuple(inputs), targets
    return batch, None


def with_targets(batch: Any, targets: Any) -> Any:
    """Return a batch with other targets in the place where `split` finds them."""
    if isinstance(batch, dict):
        key = _target_key(batch)
        return batch if key is None else type(batch)({**batch, key: targets})
    if isinstance(batch, tuple) and len(batch) > 1:
        return _like(batch, (*batch[:-1], targets))
    return batch


def concatenate(batches: Sequence[Any]) -> list[Any]:
    """Return one batch of all samples when the batches fit together, else the batches.

    They fit when their trees, the types and shapes of their samples and what they carry agree.
    """
    flat = [tree_flatten(batch) for batch in batches]
    for (leaves, structure), (others, other_structure) in pairwise(flat):
        same = structure == other_structure and all(map(_fit, leaves, others))
        if not same:
            return list(batches)
    if len(batches) < 2:
        return list(batches)
    columns = [
        torch.cat(column) if isinstance(column[0], torch.Tensor) else column[0]
        for column in zip(*(leaves for leaves, _ in flat), strict=True)
    ]
    return [tree_unflatten(columns, flat[0][1])]


def _map(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, batch)


def _like(given: Any, items: tuple[Any, ...]) -> Any:
    """Return a tuple of a batch's entries, named where the given one is."""
    return type(given)(*items) if hasattr(given, "_fields") else items


def _target_key(batch: Mapping[Any, Any]) -> str | None:
    return next((key for key in TARGET_KEYS if key in batch), None)


def _fit(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.shape[1:] == second.shape[1:] and first.dtype == second.dtype
    return type(first) is type(second) and isinstance(first, _PLAIN) and first == second


def _check_rows(tensor: torch.Tensor) -> None:
    if tensor.is_nested:
        kind, remedy = "nested", "Give padded tensors, or batches of one shape."
    elif tensor.layout is not torch.strided:
        kind, remedy = "sparse", "Call .to_dense() on it."
    else:
        return
    raise ArgumentError("data", kind, f"a {kind} tensor cannot be cut into samples", remedy)

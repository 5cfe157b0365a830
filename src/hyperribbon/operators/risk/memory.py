"""How much of a risk's data is worked on at once and kept, within a memory.

What a sample takes is measured, not guessed: products on few and on fewer samples run while every
tensor that comes into being is counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from hyperribbon.core.memory import free_memory
from hyperribbon.core.torch_inside import TorchDispatchMode, tree_leaves

__all__ = ["SHARE", "Footprint", "Layout", "Meter", "measured"]

SHARE = 0.5
"""Part of the memory that is free on the device that may be used when memory= is not given."""

_HEAP = 1.25  # memory that a heap takes, over the tensors that live in it
_CHUNK_BYTES = 2**32  # graphs of larger chunks gain nothing
_LEAST = 64 * 2**20  # even a small share of the memory is no less than this


class Meter(TorchDispatchMode):
    """Counts the bytes of tensors that come into being and live on.

    Attributes:
        live: Bytes in tensors that live.
        peak: The most there were.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known = {}
        self.live = self.peak = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch's compiler is loaded, which takes seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known[key] = weakref.finalize(storage, self._forget, key, size)
        self._known[key].atexit = False
        self._change(size)

    def _change(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int, size: int) -> None:
        self._known.pop(key, None)
        self._change(-size)


@dataclass(frozen=True)
class Footprint:
    """What products take.

    Attributes:
        kept: Bytes a sample that stay between products: graphs and activations.
        working: Bytes a sample and vector that a product takes beside them.
        fixed: Bytes whatever the number of samples.
    """

    kept: float = 1.0
    working: float = 1.0
    fixed: float = 0.0

    def plus(self, other: Footprint) -> Footprint:
        """Return the footprint of both together: graphs add up, products take turns."""
        return Footprint(
            self.kept + other.kept,
            max(self.working, other.working),
            self.fixed + other.fixed,
        )


def measured(product: Callable[[int], Any], samples: int, fewer: int) -> Footprint:
    """Return the footprint of something that keeps what it returns.

    With B(n) bytes for n samples, a sample takes (B(n) − B(m))/(n − m) and the rest is fixed.

    Args:
        product: Builds graphs on some samples and multiplies once; returns what keeps the graphs.
        samples: n.
        fewer: m < n; 0 when the product cannot be done on fewer samples.
    """
    kept, working = _counted(product, samples)
    kept_by_fewer, working_by_fewer = _counted(product, fewer) if fewer else (0, 0)
    more = samples - fewer
    each = max((kept - kept_by_fewer) / more, 1.0)
    each_working = max((working - working_by_fewer) / more, 1.0)
    fixed = max(kept + working - samples * (each + each_working), 0.0)
    return Footprint(_HEAP * each, _HEAP * each_working, _HEAP * fixed)


def _counted(product: Callable[[int], Any], samples: int) -> tuple[int, int]:
    """Return the bytes that stay and those that come and go."""
    meter = Meter()
    with meter:
        holder = product(samples)
    kept, working = meter.live, meter.peak - meter.live
    del holder
    return kept, working


@dataclass(frozen=True)
class Layout:
    """How data are cut into chunks, and how many of the chunks keep their graphs.

    Attributes:
        chunk: Samples done together.
        kept: Samples whose graphs stay between products.
        columns: Vectors multiplied together.
        total: Bytes of all that, at the peak.
    """

    chunk: int
    kept: int
    columns: int
    total: int

    @classmethod
    def within(
        cls, memory: float, samples: int, footprint: Footprint, whole: bool = False
    ) -> Layout:
        """Return the layout that uses a memory best.

        Everything is kept where it fits. Where it does not, chunks are smaller, as many as fit are
        kept, and the others are evaluated anew in every product.

        Args:
            memory: Bytes to stay below.
            samples: Number of samples.
            footprint: What they take.
            whole: Whether the samples must not be cut.
        """
        each = footprint.kept + footprint.working
        room = max(memory - footprint.fixed, memory / 8)
        samples = max(samples, 1)
        most = samples if whole else max(1, int(min(_CHUNK_BYTES, room / 3) / each))
        chunk = ceil(samples / ceil(samples / most))
        worked_on = chunk * footprint.working
        kept = min(samples, int(max(room - worked_on, 0) / footprint.kept))
        if kept < samples:
            kept = max(0, int((room - chunk * each) / footprint.kept)) // chunk * chunk
        used = kept * footprint.kept + (chunk * footprint.kept if kept < samples else 0)
        columns = max(1, int((room - used) / 2 / worked_on))
        return cls(chunk, kept, columns, int(used + worked_on + footprint.fixed))


def allowance(device: torch.device) -> float:
    """Return the bytes that may be used when nothing is said: a share of what is free now."""
    return max(SHARE * free_memory(device), _LEAST)

"""How much of a risk's data is worked on at once and kept, within a memory.

What a sample takes is measured, not guessed: products on few and on fewer samples run while every
tensor that comes into being is counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from hyperribbon.core.devices.memory import free_memory
from hyperribbon.core.devices.torch_private import TorchDispatchMode, tree_leaves

SHARE = 0.5
"""Share of the device's free memory that is used when memory= is not given."""

_HEAP = 1.25  # memory that a heap takes, over the tensors that live in it
_CHUNK_BYTES = 2**32  # graphs of larger chunks gain nothing
_LEAST = 64 * 2**20  # even a small share of the memory is no less than this
_LOOSE = 8  # a product takes 0.5 to 2 times what an evaluation makes, and 3 to 9 times the weights


class Meter(TorchDispatchMode):
    """Meter of memory: counts the bytes of tensors that are made and live on.

    Args:
        present: Tensors that are there already; views of them are not counted.

    Attributes:
        made: Bytes of all tensors that came into being, views left out.
        live: Bytes in tensors that live.
        peak: The most there were, since the last stage began.
        stages: Peaks of the stages that have ended.
    """

    def __init__(self, present: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._known: dict[int, Any] = {}
        self.made = self.live = self.peak = 0
        self.stages: list[int] = []
        for tensor in present:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = storage

    def end_stage(self) -> None:
        """Note the peak memory of a stage of a risk's product, and begin another stage."""
        self.stages.append(self.peak)
        self.peak = self.live

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch's compiler is loaded, which takes seconds

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count the memory of the tensors that an operation of a risk's product returns."""
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

        def forget(_: Any) -> None:
            del self._known[key]
            self.live -= size

        self._known[key] = weakref.ref(storage, forget)
        self.made += size
        self.live += size
        self.peak = max(self.peak, self.live)


@dataclass(frozen=True)
class Footprint:
    """The memory that a risk's products take, per sample and fixed.

    Attributes:
        kept: Bytes per sample that stay between products: graphs and activations.
        working: Bytes per sample and vector that a product takes beside them.
        fixed: Bytes whatever the number of samples.
    """

    kept: float = 1.0
    working: float = 1.0
    fixed: float = 0.0

    def plus(self, other: Footprint) -> Footprint:
        """Return the memory footprint of both together: graphs add up, products take turns."""
        return Footprint(
            self.kept + other.kept,
            max(self.working, other.working),
            self.fixed + other.fixed,
        )


def measure(
    product: Callable[[int, Meter], Any], samples: int, fewer: int, present: Sequence[torch.Tensor]
) -> Footprint:
    """Return the memory footprint of a function that keeps what it returns.

    With B(n) bytes for n samples, a sample takes (B(n) − B(m))/(n − m) and the rest is fixed. Each
    stage has its own B: with few samples another one has the peak than with many.

    Args:
        product: Builds graphs on some samples and multiplies once, in stages; returns what keeps
            the graphs.
        samples: n.
        fewer: m < n; 0 when the product cannot be done on fewer samples.
        present: Tensors that are there in any case.
    """
    kept, peaks = _count_bytes(product, samples, present)
    kept_by_fewer, peaks_by_fewer = (0, [0] * len(peaks))
    if fewer:
        kept_by_fewer, peaks_by_fewer = _count_bytes(product, fewer, present)
    more = samples - fewer
    each = max((kept - kept_by_fewer) / more, 1.0)
    rises = [(peak - less) / more for peak, less in zip(peaks, peaks_by_fewer, strict=True)]
    fixed = max(peak - samples * max(rise, 0.0) for peak, rise in zip(peaks, rises, strict=True))
    return Footprint(_HEAP * each, _HEAP * max(*rises, each + 1.0) - _HEAP * each, fixed)


def _count_bytes(
    product: Callable[[int, Meter], Any], samples: int, present: Sequence[torch.Tensor]
) -> tuple[int, list[int]]:
    """Measure the memory of a risk's evaluation: what stays, and the peaks of the stages."""
    meter = Meter(present)
    with meter:
        holder = product(samples, meter)
    meter.end_stage()
    kept = meter.live
    del holder
    return kept, meter.stages


@dataclass(frozen=True)
class Layout:
    """How memory is used: the chunks that data are cut into, and how many keep their graphs.

    Attributes:
        chunk: Samples done together.
        kept: Samples whose graphs stay between products.
        columns: Vectors multiplied together.
        total: Bytes of all that, at the peak.
    """

    chunk: int
    kept: int
    columns: int = 1
    total: int = 0

    @classmethod
    def within(cls, memory: float, samples: int, footprint: Footprint, whole: int = 0) -> Layout:
        """Return the layout of chunks that uses a memory best.

        Everything is kept where it fits. Where it does not, chunks are smaller, as many as fit are
        kept, and the others are evaluated anew in every product.

        Args:
            memory: Bytes to stay below.
            samples: Number of samples.
            footprint: What they take.
            whole: Samples of the largest batch that must not be cut; 0 where all may be.
        """
        each = footprint.kept + footprint.working
        room = max(memory - footprint.fixed, memory / 8)
        samples = max(samples, 1)
        most = whole or max(1, int(min(_CHUNK_BYTES, room / 3) / each))
        chunk = whole or ceil(samples / ceil(samples / most))
        worked_on = chunk * footprint.working
        kept = min(samples, int(max(room - worked_on, 0) / footprint.kept))
        if kept < samples:
            kept = max(0, int((room - chunk * each) / footprint.kept)) // chunk * chunk
        used = kept * footprint.kept + (chunk * footprint.kept if kept < samples else 0)
        columns = max(1, int((room - used) / 2 / worked_on))
        return cls(chunk, kept, columns, int(used + worked_on + footprint.fixed))


def surely_fits(memory: float, made: float, weights: float) -> bool:
    """Whether a product fits memory by such a margin that it need not be measured.

    Args:
        memory: Bytes to stay below.
        made: Bytes of tensors that an evaluation of all samples makes.
        weights: Bytes of the weights.

    Returns:
        True when it would.
    """
    return _LOOSE * made + 2 * _LOOSE * weights <= memory


def allowance(device: torch.device) -> float:
    """Return a risk's default memory limit in bytes: a share of what is free now."""
    return max(SHARE * free_memory(device), _LEAST)

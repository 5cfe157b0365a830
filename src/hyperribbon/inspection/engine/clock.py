"""The time an inspection has: looked at before every product and every piece of the data."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, inf
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.processes import ALONE, Processes
from hyperribbon.inspection.memory import Heap, lacking_room
from hyperribbon.operators import GGN, Fisher, GradientCovariance, Hessian
from hyperribbon.operators.base import Cost
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.batches import bytes_of
from hyperribbon.operators.risk.data import Source
from hyperribbon.operators.risk.memory import Layout

__all__ = [
    "Clock",
    "DeclinedError",
    "OutOfTimeError",
    "TimedCovariance",
    "TimedFisher",
    "TimedGGN",
    "TimedGradientRows",
    "TimedHessian",
    "TimedRisk",
    "TimedRows",
    "why_not",
]

_MORE = 0.25
"""Memory of the samples that a product in float64 does together, over that of its weights."""


class OutOfTimeError(Exception):
    """The time budget is exceeded."""


class DeclinedError(ArgumentError):
    """A matrix that is not defined for this model or loss, and why."""


def why_not(error: Exception) -> str:
    """Return why something was not begun: it is not defined, or there is no room; or ""."""
    return error.reason if isinstance(error, DeclinedError) else lacking_room(error)


class Clock:
    """Counts down to the end of the budget, and to the end of the present step's share of it.

    Args:
        end: The moment, by `time.monotonic`, after which nothing may begin.
        processes: The ranks that look at it together; it is late when it is late for one of them.
        heap: The memory, which is tidied when the clock is looked at.
    """

    def __init__(
        self, end: float = inf, processes: Processes = ALONE, heap: Heap | None = None
    ) -> None:
        self.end = self.share_end = end
        self.heap = Heap() if heap is None else heap
        self._processes = processes

    @property
    def left(self) -> float:
        """Seconds to the end of the budget."""
        return self.end - time.monotonic()

    @property
    def share_left(self) -> float:
        """Seconds that the present step has, a moment at least."""
        return max(self.share_end - time.monotonic(), 1e-3)

    def give(self, seconds: float) -> None:
        """Give the present step its share, which ends no later than the budget."""
        self.share_end = min(time.monotonic() + seconds, self.end)

    @contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        """Let the time be up after some seconds already, inside the block."""
        end = self.end
        self.end = self.share_end = min(end, time.monotonic() + seconds)
        try:
            yield
        finally:
            self.end = self.share_end = end

    def check(self) -> None:
        """Raise when the time budget is exceeded; it is the `should_stop` of solvers.

        Raises:
            OutOfTimeError: It is.
        """
        self.heap.tidy()
        if self._processes.largest(float(self.left <= 0)):
            raise OutOfTimeError("interrupted, time budget exceeded")


class TimedRisk(Risk):
    """A risk that looks at the clock before every piece of its data, whatever asks for it.

    So a product, a Gram matrix or a diagonal of many samples ends in the middle. Several processes
    may cut their data into different numbers of pieces; they look at the clock together, before
    products only.
    """

    clock = Clock()

    def chunks(self, kind: str = "vjp") -> Iterator[Chunk]:
        """Yield the data in chunks while there is time."""
        for chunk in super().chunks(kind):
            self.check_in()
            yield chunk

    def check_in(self) -> None:
        """Look at the clock in the middle of a pass."""
        if not self.processes.is_parallel:
            self.clock.check()

    def release(self) -> None:
        """Give the memory of the graphs back; the next pass over the data builds them again."""
        self._kept = type(self._kept)()

    def _beside(self, samples: int, is_measured: bool) -> Layout:
        """Return the cuts for products in float64: fewer where weights take most of the memory."""
        layout = super()._beside(samples, is_measured)
        if not layout.total and not is_measured:
            return layout
        footprint = self._engine.footprint()
        each = footprint.kept + footprint.working
        most = min(samples, int(_MORE * footprint.fixed / each))
        if most <= layout.chunk:
            return layout
        chunk = ceil(samples / ceil(samples / most))
        return Layout(chunk, 0, 1, 2 * int(chunk * each + footprint.fixed))

    @property
    def must_be_whole(self) -> bool:
        """Whether its batches must not be cut: samples depend on each other, or the loss does."""
        return self._engine.must_be_whole

    def holds(self, samples: int) -> bool:
        """Whether so many samples fit in memory, where they all are one batch."""
        is_cut = not self.must_be_whole or self.source.batch_size is not None
        return is_cut or samples * self._engine._made <= self.memory

    def rows_at_once(self, most: int) -> int:
        """Return how many samples may be evaluated together, without derivatives."""
        if self.must_be_whole:
            return max(most, self._given())
        made = max(self._engine._made, 1.0)  # all tensors of a sample, which are not there at once
        return max(1, min(most, int(self.memory / 2 / made)))

    def with_data(self, source: Source, memory: float | None) -> TimedRisk | None:
        """Return the risk of other data by the derivatives found right on these.

        None where what was found holds for these data only: the samples depend on each other, the
        loss does not add up, or several processes share them.

        Args:
            source: Other samples of the same kind.
            memory: Bytes to stay below; None for as many as this risk has.
        """
        if self.processes.is_parallel or self.must_be_whole:
            return None
        other = copy.copy(self)
        other.memory = self.memory if memory is None else memory
        other.source = source.within(other.memory / 2)
        other._engine = copy.copy(self._engine)
        kept = other.source.is_kept
        if kept and other.source.has_fixed_batches:
            other.source.join()
        other._engine.data_bytes = sum(map(bytes_of, other.source.batches())) if kept else 0
        other._length = None
        other._forget()
        return other


class _Timed:
    """An operator that looks at the clock before every product of its own.

    Solvers are given the clock as `should_stop`: with several processes they multiply by
    `multiply_rows`.
    """

    clock = Clock()

    def __init_subclass__(cls) -> None:
        """Let messages name the operator that users know."""
        cls.__name__ = next(k.__name__ for k in cls.__mro__ if ".operators." in k.__module__)

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        self.clock.check()
        product: Any = super().__matmul__(other)  # type: ignore[misc]
        return product

    @property
    def is_frugal(self) -> bool:
        """Whether its graphs are freed for the float64 product that certifies eigenvalues."""
        return super().cost().beside > self.risk.memory  # type: ignore[misc]

    def in_precision(self, dtype: torch.dtype) -> Any:
        """Return the same matrix in another precision, for few products."""
        if self.is_frugal:
            self.risk.release()  # type: ignore[attr-defined]
        return super().in_precision(dtype)  # type: ignore[misc]

    def cost(self) -> Cost:
        """Return the memory and operations of one product."""
        cost = super().cost()  # type: ignore[misc]
        if not self.is_frugal:
            return cost
        return replace(cost, beside=max(cost.beside - cost.bytes, 0))


class TimedHessian(_Timed, Hessian):
    """The Hessian, with a clock."""


class TimedGGN(_Timed, GGN):
    """The Gauss-Newton matrix, with a clock."""


class TimedFisher(_Timed, Fisher):
    """The Fisher information, with a clock."""


class TimedCovariance(_Timed, GradientCovariance):
    """The covariance of single-sample gradients, with a clock."""


class TimedRows(TimedGGN):
    """The rows of the Gauss-Newton matrix, for its trace: nothing is prepared for products."""

    _kind = "vjp"


class TimedGradientRows(TimedCovariance):
    """The gradients of single samples, likewise, as they are: their mean is not taken off."""

    _kind = "vjp"

"""The time an inspection has: asked for by solvers between products, and between pieces of data."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf

from hyperribbon.application.inspection.memory import Heap, lacking_room
from hyperribbon.core.checks import ArgumentError, check_positive
from hyperribbon.core.devices.memory import free_memory
from hyperribbon.core.devices.processes import ALONE, Processes
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.data import Source

_MOST_MEMORY = 4e9
"""Bytes that are used when none are named: other machines may have less, where other pieces of the
data would round differently."""
_RESERVE = 0.2
"""Share of a time limit for what a solver does after it was asked to stop."""


@dataclass(frozen=True)
class Budget:
    """The seconds and memory that an inspection may take.

    Attributes:
        seconds: Time.
        memory: Bytes that everything together stays below, besides the model and the data given:
            graphs, solvers, recorded weights and predictions. Where it does not suffice, fewer
            eigenpairs, records or samples are used, or a step says so. None for half of what is
            free, 4 GB at most.
    """

    seconds: float = 60.0
    memory: float | None = None

    def __post_init__(self) -> None:
        check_positive("seconds", self.seconds)
        if self.memory is not None:
            check_positive("memory", self.memory)

    @classmethod
    def of(cls, value: Budget | float) -> Budget:
        """Return a budget of time on the clock and memory; a number is seconds.

        >>> Budget.of(30).seconds
        30.0
        """
        budget = value if isinstance(value, Budget) else cls(check_positive("budget", value))
        if budget.memory is None:
            return replace(budget, memory=min(0.5 * free_memory(), _MOST_MEMORY))
        return budget


class OutOfTimeError(Exception):
    """Exception of the clock: the time budget is exceeded."""


class DeclinedError(ArgumentError):
    """Exception: a matrix is not defined for this model or loss, and why."""


def why_not(error: Exception) -> str:
    """Return why a measurement gave up before the clock ran out: not defined, no memory; or ""."""
    return error.reason if isinstance(error, DeclinedError) else lacking_room(error)


class Clock:
    """Counts down to the end of the budget, or of the present measurement's part of it.

    Args:
        end: The moment, by `time.monotonic`, at which whatever runs is interrupted.
        processes: The ranks that measure together; the time is up when it is up for one of them.
        heap: The memory, which is tidied whenever the clock is read.

    Attributes:
        piece: Seconds that the last piece of the data took, which cannot be interrupted: none
            begins with less time left.
    """

    def __init__(
        self, end: float = inf, processes: Processes = ALONE, heap: Heap | None = None
    ) -> None:
        self.end, self._reserve, self.piece = end, 0.0, 0.0
        self.processes = processes
        self.heap = Heap() if heap is None else heap

    @property
    def left(self) -> float:
        """Seconds left on the inspection's clock."""
        return self.end - time.monotonic()

    @contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        """Let the clock run out after some seconds already, inside the block."""
        before = self.end, self._reserve
        self.end = min(self.end, time.monotonic() + seconds)
        self._reserve = _RESERVE * max(self.left, 0.0)
        try:
            yield
        finally:
            self.end, self._reserve = before

    def is_late(self) -> bool:
        """Whether the clock asks solvers to return what they have: the `should_stop` of all."""
        self.heap.tidy()
        return self.left <= max(self._reserve, self.piece)

    def check(self) -> None:
        """Raise when the clock has run out, on every rank when it has on one.

        Raises:
            OutOfTimeError: It is.
        """
        self.heap.tidy()
        if self.processes.largest(float(self.left <= self.piece)):
            raise OutOfTimeError("time budget exceeded")


class InterruptibleRisk(Risk):
    """A risk that reads the clock before every piece of its data, whatever asks for it.

    So a product, a Gram matrix or a diagonal of many samples ends in the middle. Several processes
    may cut their data into different numbers of pieces; they read the clock together, before the
    products of solvers only.

    Attributes:
        clock: The inspection's.
        portion: Part n/N of the samples given. A sum over these n counts N/n times, so that it
            estimates the sum over all, as a mean over them estimates the mean.
    """

    clock, portion = Clock(), 1.0

    @property
    def amount(self) -> float:
        """The divisor of a risk under a clock."""
        return super().amount * (self.portion if self.criterion.reduction == "sum" else 1.0)

    def chunks(self, kind: str = "vjp") -> Iterator[Chunk]:
        """Yield the data of an interruptible risk in chunks while the clock has time left."""
        self.check_in()
        began = time.monotonic()
        for chunk in super().chunks(kind):
            yield chunk
            del chunk  # its graph goes before the next one is built
            now = time.monotonic()
            began, self.clock.piece = now, now - began
            self.check_in()

    def check_in(self) -> None:
        """Read the inspection's clock in the middle of a pass."""
        if not self.processes.is_parallel:
            self.clock.check()

    def release(self) -> None:
        """Free the memory of graphs of a risk under a clock; the next pass builds them again."""
        self._kept = type(self._kept)()

    def holds(self, samples: int) -> bool:
        """Whether so many samples of a risk under a clock fit in memory as one batch."""
        is_cut = not self.must_be_whole or self.source.batch_size is not None
        return is_cut or samples * self.bytes_per_sample <= self.memory

    def with_data(self, source: Source, memory: float | None) -> InterruptibleRisk | None:
        """Return a risk under a clock with other data, whose derivatives are not checked again.

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
        if other.source.is_kept and other.source.has_fixed_batches:
            other.source.join()
        other._length = None
        other._forget()
        return other

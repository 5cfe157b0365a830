"""When to record: every so many epochs or steps, within a share of the training time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor
from time import perf_counter

from hyperribbon.core.checks import ArgumentError, check_positive

__all__ = ["Budget", "Cadence", "Overhead"]


@dataclass(frozen=True)
class Cadence:
    """An interval in steps or epochs.

    Attributes:
        amount: Length of the interval.
        unit: "it" (optimiser steps) or "ep" (epochs).
    """

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Cadence:
        """Read "1ep", "0.5ep" or "500it".

        >>> Cadence.parse("500it")
        Cadence(amount=500.0, unit='it')
        """
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ep|it)\s*", str(text))
        amount = float(match[1]) if match else 0.0
        if match is None or amount <= 0 or (match[2] == "it" and not amount.is_integer()):
            raise ArgumentError(
                "every", text, "it is not an interval", 'Use "1ep", "0.5ep" or "500it".'
            )
        return cls(amount, match[2])

    def passed(self, before: tuple[int, float | None], now: tuple[int, float | None]) -> bool:
        """Return whether a multiple of the interval lies in (before, now], each (step, epoch)."""
        index = 0 if self.unit == "it" else 1
        if now[index] is None:
            raise ArgumentError(
                "epoch",
                None,
                "recording by epochs needs to know the epoch",
                'Call step(epoch=epochs_done), or record with every="500it".',
            )
        return self._count(now[index]) > self._count(before[index] or 0)

    def _count(self, position: float | None) -> int:
        assert position is not None
        return floor(position / self.amount + 1e-6)


@dataclass(frozen=True)
class Overhead:
    """What recording cost.

    Attributes:
        recording_seconds: Time spent recording.
        training_seconds: All other time since the run began.
        fraction: Their ratio.
        records: Moments recorded.
        skipped: Moments passed over to keep within the bound.
        failed: Moments that could not be recorded (NaN, full disk).
    """

    recording_seconds: float
    training_seconds: float
    fraction: float
    records: int
    skipped: int
    failed: int

    def __str__(self) -> str:
        """Say it in one line."""
        share = f"{self.fraction:.0f} times" if self.fraction > 9.5 else f"{self.fraction:.1%} of"
        line = (
            f"{self.records} records in {self.recording_seconds:.3g} s, {share} the training time"
        )
        if self.skipped:
            line += f"; {self.skipped} moments passed over to keep within the bound"
        if self.failed:
            line += f"; {self.failed} moments could not be recorded"
        return line


class Budget:
    """The clock of a recorder: time spent, and whether there is room for one more record.

    Args:
        limit: Largest allowed ratio of recording to training time, or None.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = None if limit is None else check_positive("max_overhead", limit)
        self.cost = 0.0
        self._spent = self._elapsed = 0.0
        self._started: float | None = None
        self._recording_since: float | None = None

    @property
    def spent(self) -> float:
        """Time spent recording, the record under way included."""
        return self._spent + _since(self._recording_since)

    @property
    def training_seconds(self) -> float:
        """Time since the run began that was not spent recording."""
        return self._elapsed + _since(self._started) - self.spent

    def start(self, spent: float = 0.0, training: float = 0.0, cost: float = 0.0) -> None:
        """Start the clock, going on from an earlier session's times."""
        self._spent, self._elapsed, self.cost = spent, spent + training, cost
        self._started = perf_counter()

    def stop(self) -> None:
        """Stop the clock; the times stay as they are."""
        self._elapsed += _since(self._started)
        self._started = None

    def allows(self) -> bool:
        """Return whether this record and a closing one both fit within the limit."""
        return self.limit is None or (
            self.spent + 2 * self.cost <= self.limit * self.training_seconds
        )

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of the block as recording."""
        self._recording_since = perf_counter()
        try:
            yield
        finally:
            self.cost = _since(self._recording_since)
            self._spent += self.cost
            self._recording_since = None


def _since(moment: float | None) -> float:
    return 0.0 if moment is None else perf_counter() - moment

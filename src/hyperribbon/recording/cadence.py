"""When to record: intervals in epochs or steps, and the time budget."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import floor, inf
from time import perf_counter

from hyperribbon.core.checks import ArgumentError, as_number, check_positive, check_positive_int

Position = tuple[int, float | None]
"""Steps taken and epochs completed, if known."""


@dataclass(frozen=True)
class Cadence:
    """The cadence of records: an interval in steps or epochs.

    Attributes:
        amount: Length of the interval.
        unit: "it" (optimiser steps) or "ep" (epochs).
    """

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str, argument: str = "every") -> Cadence:
        """Parse a cadence such as "1ep", "0.5ep" or "500it".

        Args:
            text: The interval.
            argument: Name of the argument, for messages.

        Returns:
            The interval: its amount and its unit.

        Raises:
            ArgumentError: The text is not an interval.

        >>> Cadence.parse("500it")
        Cadence(amount=500.0, unit='it')
        """
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ep|it)\s*", str(text))
        amount = float(match[1]) if match else 0.0
        if match is None or amount <= 0 or (match[2] == "it" and not amount.is_integer()):
            reason = "it is not an interval"
            raise ArgumentError(argument, text, reason, 'Use "1ep", "0.5ep" or "500it".')
        return cls(amount, match[2])

    def passed(self, before: Position, now: Position) -> bool:
        """Return whether the cadence makes a record due: a multiple is in (before, now]."""
        index = 0 if self.unit == "it" else 1
        if now[index] is None:
            reason = "recording by epochs requires the epoch"
            remedy = 'Call step(epoch=epochs_done), or record with every="500it".'
            raise ArgumentError("epoch", None, reason, remedy)
        return self._count(now[index]) > self._count(before[index] or 0)

    def _count(self, position: float | None) -> int:
        assert position is not None
        return floor(position / self.amount + 1e-6)


def steps_between(every: int | str, length: float) -> int:
    """Return the cadence's interval in whole steps, at least one.

    Args:
        every: A number of steps, "20it" or "0.5ep".
        length: Steps per epoch.

    >>> steps_between(20, 10), steps_between("20it", 10), steps_between("0.5ep", 10)
    (20, 20, 5)
    """
    if not isinstance(every, str):
        return check_positive_int("every", every)
    cadence = Cadence.parse(every)
    return max(1, round(cadence.amount * (length if cadence.unit == "ep" else 1)))


@dataclass(frozen=True)
class Overhead:
    """The time overhead of recording.

    Attributes:
        recording_seconds: Time that recording blocked training, plus CPU time of background
            writing.
        training_seconds: All other time since the run began.
        fraction: Their ratio.
        records: Records made.
        skipped: Records skipped to stay within the time limit.
        failed: Records that failed (NaN, full disk).
        left_out: How often each measurement was skipped to stay within the time limit, by name.
    """

    recording_seconds: float
    training_seconds: float
    fraction: float
    records: int
    skipped: int
    failed: int
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the overhead that the cadence has led to, in one line."""
        share = f"{self.fraction:.0f} times" if self.fraction > 9.5 else f"{self.fraction:.1%} of"
        line = (
            f"{self.records} records in {self.recording_seconds:.3g} s, {share} the training time"
        )
        if self.skipped:
            line += f"; {self.skipped} records skipped to stay within the time limit"
        if self.left_out:
            counts = ", ".join(f"{name} {number} times" for name, number in self.left_out.items())
            line += f"; measurements skipped to stay within the time limit: {counts}"
        if self.failed:
            line += f"; {self.failed} records failed"
        return line


_SHARE, _SECONDS = 0.1, 0.1  # of the training time, or this long where that is more
_POINTS = 20  # measurements that a run should have, where it has as many records
_MARGIN = 1.5  # for the first measurement, which takes longer


class TimeShare:
    """A recorder's time budget: time spent, and whether another record fits.

    Args:
        limit: Largest allowed ratio of recording to training time. None: records are always made,
            and bounded measurements stay within a tenth of the training time or a tenth of a
            second, whichever is more.

    Attributes:
        beside: CPU seconds of background work, counted as spent.
    """

    def __init__(self, limit: float | None) -> None:
        is_endless = limit is not None and as_number("max_overhead", limit) == inf
        self.limit = limit if limit is None or is_endless else check_positive("max_overhead", limit)
        self.cost = 0.0
        self.beside = 0.0
        self._spent = self._elapsed = 0.0
        self._started: float | None = None
        self._recording_since: float | None = None

    @property
    def spent(self) -> float:
        """Time spent recording so far, by which the cadence is limited."""
        return self._spent + self.beside + _since(self._recording_since)

    @property
    def training_seconds(self) -> float:
        """Training time since the run began, from which the cadence of records follows."""
        return self._elapsed + _since(self._started) - (self.spent - self.beside)

    def start(self, spent: float = 0.0, training: float = 0.0, cost: float = 0.0) -> None:
        """Start the clock that the cadence follows, from an earlier session's times."""
        self._spent, self._elapsed, self.cost = spent, spent + training, cost
        self._started, self.beside = perf_counter(), 0.0

    def stop(self) -> None:
        """Stop the clock that the cadence follows; the times stay as they are."""
        self._elapsed += _since(self._started)
        self._started = None

    def allows(self) -> bool:
        """Return whether the cadence allows a record: it and a final one fit within the limit."""
        return self.limit is None or (
            self.spent + 2 * self.cost <= self.limit * self.training_seconds
        )

    @property
    def share(self) -> float:
        """Fraction of the training time that the cadence may spend on measurements."""
        return _SHARE if self.limit is None else self.limit

    def permits(self, cost: float, reserve: float) -> bool:
        """Return whether the cadence permits a measurement, with a reserve for the last one."""
        room = self.share * self.training_seconds
        if self.limit is None:
            room = max(room, _SECONDS)
        return self.spent + cost + reserve <= room

    def seconds_per_point(self, made: int, records: int | None) -> float:
        """Return what a measurement may take for the cadence to give a run enough of them.

        Enough is one at every record, or 20 where there will be more. Nothing is known before
        training has begun but that a short run may have a tenth of a second.

        Args:
            made: Records made so far.
            records: Records that the whole run will have, if that is known.
        """
        if self.limit == inf:
            return inf
        if made == 0:
            return 0.0 if self.limit is not None else _SECONDS / _POINTS
        a_record = self.share * self.training_seconds / made - self.cost
        expected = made if records is None else max(records, made)
        return max(a_record, 0.0) * max(expected / _POINTS, 1.0) / _MARGIN

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of the block as recording, for the cadence."""
        self._recording_since = perf_counter()
        try:
            yield
        finally:
            self.cost = _since(self._recording_since)
            self._spent += self.cost
            self._recording_since = None


def _since(moment: float | None) -> float:
    return 0.0 if moment is None else perf_counter() - moment

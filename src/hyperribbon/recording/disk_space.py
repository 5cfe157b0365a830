"""Forecast of the disk space that a recording will take."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.recording.cadence import Cadence
from hyperribbon.recording.writer import PendingRecord

_LARGE = 1e9  # bytes per run above which a warning is issued
_LARGE_RECORD = 1e8  # the same per record, if the length of the run is unknown
_LINE = 600  # size of a record's line: names, numbers and checksums


@dataclass(frozen=True)
class Forecast:
    """Disk space that a run's records will take.

    Attributes:
        record_bytes: Size of one record: weights, predictions and metrics.
        state_bytes: Maximum size of the resume state; 0 without.
        records: Planned number of records, or None if the length of the run is unknown.
        free_bytes: Free disk space.
    """

    record_bytes: int
    state_bytes: int
    records: int | None
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        """Disk space of the whole run, or of one record if its length is unknown."""
        return self.record_bytes * (self.records or 1) + self.state_bytes

    @property
    def is_large(self) -> bool:
        """Whether the disk space of a run is worth a warning."""
        if self.records is None:
            return self.record_bytes + self.state_bytes > _LARGE_RECORD
        return self.total_bytes > _LARGE

    def check(self) -> None:
        """Raise if the run does not fit in the disk space.

        Raises:
            ArgumentError: There is not enough disk space.
        """
        if self.total_bytes > self.free_bytes:
            reason = f"{self}"
            remedy = (
                "Record less often (every=), fewer weights (weights=False, a module's name, a "
                "Mask, or hr.recording.Projection(1000)), without the resume state "
                "(resume=False), or on another disk."
            )
            raise ArgumentError("weights", f"{in_words(self.total_bytes)} on disk", reason, remedy)

    def __str__(self) -> str:
        """Return the disk-space forecast in one line."""
        line = f"each record takes {in_words(self.record_bytes)}"
        if self.state_bytes:
            line += f", the resume state {in_words(self.state_bytes)}"
        if self.records is None:
            fit = max(self.free_bytes - self.state_bytes, 0) // self.record_bytes
            return f"{line}; {in_words(self.free_bytes)} are free, enough for {fit:,} records"
        return (
            f"{line}; {self.records:,} records make {in_words(self.total_bytes)}, and "
            f"{in_words(self.free_bytes)} are free"
        )


def forecast_run(
    folder: Path, record: PendingRecord, initial: int, parts: Mapping[str, Any], records: int | None
) -> Forecast:
    """Return the forecast of a run's disk space from its first record.

    Args:
        folder: The recording's folder.
        record: The first record, with its state if states are kept.
        initial: Size of the initial state in bytes.
        parts: Objects with a state; an "optimizer" does not have one yet.
        records: Planned number of records, if known.
    """
    state = 0
    if record.state is not None:  # the first state stays; a new one is written beside the last
        state = initial + 2 * (len(record.state) + optimizer_bytes(parts.get("optimizer")))
    free = shutil.disk_usage(folder).free
    return Forecast(record.array_bytes + _LINE, state, records, free)


def count_records(every: Cadence, total: str | None) -> int | None:
    """Return a run's number of records, for its disk space, if it can be known.

    >>> count_records(Cadence.parse("50it"), "1000it"), count_records(Cadence.parse("1ep"), None)
    (21, None)
    """
    if total is None:
        return None
    length = Cadence.parse(total, "total")
    return None if length.unit != every.unit else int(length.amount / every.amount + 1e-6) + 1


def optimizer_bytes(optimizer: Any) -> int:
    """Return the estimated disk space of an optimiser's state after its first step.

    Adam keeps two numbers for each weight (three with amsgrad), SGD with momentum one.
    """
    bytes_held = 0
    for group in getattr(optimizer, "param_groups", []):
        copies = 2 + bool(group.get("amsgrad")) if "betas" in group else bool(group.get("momentum"))
        bytes_held += copies * sum(
            p.numel() * p.element_size() for p in group["params"] if isinstance(p, torch.Tensor)
        )
    return int(bytes_held)


def in_words(size: float) -> str:
    """Return disk space in bytes as text with its unit.

    >>> in_words(353_000_000), in_words(1400)
    ('353 MB', '1.4 kB')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"

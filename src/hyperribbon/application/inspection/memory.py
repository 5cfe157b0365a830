"""The memory an inspection has: what it took, what is left, and what is given back."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from hyperribbon.core.checks import ArgumentError

_FULL = 0.5
"""Part of the memory from which on what was freed is given back between products."""
_STEP = 0.05
"""Part of it by which the process must have grown since it was given back the last time."""


class Heap:
    """Memory that the process has taken since the beginning, and of which it gives back in time.

    The C library keeps what was freed, for the next tensors, which may not fit into the gaps: so a
    process grows beyond what it uses at once. Where it has grown by half of its limit, the gaps go
    back to the system between products.

    Args:
        limit: Bytes to stay below.
    """

    def __init__(self, limit: float = inf) -> None:
        self.limit = limit
        self._begin, self._level = resident(), 0.0

    @property
    def taken(self) -> float:
        """Bytes of memory by which the inspection has grown; 0 where the system does not say."""
        return max(resident() - self._begin, 0.0)

    def check_room(self, operator: Any, vectors: int) -> None:
        """Raise where a product and some vectors do not fit into the inspection's memory.

        Raises:
            ArgumentError: They would not.
        """
        if self.limit == inf:
            return
        needed = operator.cost().bytes + vectors * operator.shape[0] * operator.dtype.itemsize
        left = self.limit - self.taken
        if operator.processes.largest(float(needed > left)):
            reason = f"a product and {vectors} vectors take {needed / 1e6:.0f} MB"
            raise ArgumentError("memory", max(left, 0.0), reason, "Give more.")

    def tidy(self) -> None:
        """Return freed memory to the system when an inspection has taken much since last time."""
        if self.limit == inf:
            return
        now = self.taken
        if now > max(_FULL * self.limit, self._level + _STEP * self.limit):
            give_back()
            now = self.taken
            self._level = now
        self._level = min(self._level, now)


def resident() -> float:
    """Return the bytes of the inspecting process that are in memory; 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def give_back() -> None:
    """Return memory that is free to the system; Linux's C library would keep a lot of it."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # other C libraries have no such function
            ctypes.CDLL(None).malloc_trim(0)


def lacking_room(error: Exception) -> str:
    """Return why a measurement refused to begin for lack of memory, or ""."""
    if not isinstance(error, ArgumentError) or error.argument != "memory":
        return ""
    value = error.value if isinstance(error.value, int | float) else 0.0
    return f"of the budget's memory it may take {value / 1e6:.0f} MB, and {error.reason}"

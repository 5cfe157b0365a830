"""The zoo: small networks of all kinds, by name."""

from __future__ import annotations

import zoo.attention  # noqa: F401
import zoo.calling  # noqa: F401
import zoo.convolutional  # noqa: F401
import zoo.layers  # noqa: F401
import zoo.recurrent  # noqa: F401
import zoo.unusual  # noqa: F401
from zoo.registry import REGISTRY, Entry, Network

__all__ = ["ENTRIES", "Entry", "Network"]

ENTRIES: dict[str, Entry] = REGISTRY

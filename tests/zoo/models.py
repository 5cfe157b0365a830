"""The zoo: small networks of all kinds, by name."""

from __future__ import annotations

import zoo.attention
import zoo.calling
import zoo.convolutional
import zoo.layers
import zoo.recurrent
import zoo.unusual  # noqa: F401
from zoo.registry import REGISTRY, Entry, Network

__all__ = ["ENTRIES", "Entry", "Network"]

ENTRIES: dict[str, Entry] = REGISTRY

"""The zoo: small networks of all kinds, by name."""

from __future__ import annotations

import zoo.attention
import zoo.calling
import zoo.convolutional
import zoo.layers
import zoo.recurrent
import zoo.unusual  # noqa: F401
from zoo.registry import REGISTRY, Entry, Network

__all__ = ["ENTRIES", "Entry", "Network", "with_cross_entropy"]

ENTRIES: dict[str, Entry] = REGISTRY


def with_cross_entropy() -> list[Entry]:
    """Return the networks whose loss is torch's cross-entropy: those with a categorical Fisher."""
    from torch import nn

    return [entry for entry in ENTRIES.values() if type(entry.build().loss) is nn.CrossEntropyLoss]

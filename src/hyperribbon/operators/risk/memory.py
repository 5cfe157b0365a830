"""How much of a risk's data is worked on at once and kept, within a memory."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MEMORY", "Budget"]

MEMORY = 512 * 2**20
"""Bytes for what is kept and worked on when memory= is not given."""

_CHUNK = 1280  # samples done together at most: larger chunks leave the processor's cache


@dataclass
class Budget:
    """Sizes of what products work on.

    Attributes:
        memory: Bytes to stay below.
        sample_bytes: What the derivatives of a sample take.
        direction_bytes: What a product takes for a sample and a direction.
    """

    memory: float
    sample_bytes: float = 1.0
    direction_bytes: float = 1.0

    def chunk(self) -> int:
        """Return how many samples are done together."""
        return max(1, min(_CHUNK, int(self.memory / 16 / self.sample_bytes)))

    def columns(self) -> int:
        """Return how many vectors are multiplied together."""
        return max(1, int(self.memory / 8 / (self.chunk() * self.direction_bytes)))

    def keeps(self, samples: int) -> bool:
        """Whether the derivatives of so many samples are kept between products."""
        return samples * self.sample_bytes <= self.memory / 2

    def working_bytes(self, samples: int, dimension: int, kept: bool) -> int:
        """Return an estimate of the memory of a product.

        Args:
            samples: Number of samples.
            dimension: Number of coordinates.
            kept: Whether the derivatives of all samples are kept.
        """
        chunk = min(self.chunk(), samples)
        worked_on = 2 * chunk + (samples if kept else 0)
        return int(worked_on * self.sample_bytes + 4 * dimension * 8)

"""Memory that products use again: fresh pages can take as long as what is computed in them."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager
from math import prod

import torch

__all__ = ["Workspace", "Workspaces"]


class Workspace:
    """Tensors of one product at a time, kept for the next one.

    Args:
        limit: Bytes to keep at most; what does not fit is allocated anew every time.
    """

    def __init__(self, limit: float = 0.0) -> None:
        self._limit = limit
        self._kept: dict[Hashable, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Memory that is kept."""
        return sum(tensor.nbytes for tensor in self._kept.values())

    def take(self, use: Hashable, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """Return a tensor of another's kind with any values, which overwrites the last one.

        Args:
            use: What it is for; one tensor at a time has this use.
            shape: Its shape.
            like: A tensor of its kind.
        """
        size, kept = prod(shape), self._kept.get(use)
        if (
            kept is None
            or len(kept) < size
            or (kept.dtype, kept.device) != (like.dtype, like.device)
        ):
            self._kept.pop(use, None)
            with torch.inference_mode(False):  # else later products could not write to it
                kept = torch.empty(size, dtype=like.dtype, device=like.device)
            if self.nbytes + kept.nbytes <= self._limit:
                self._kept[use] = kept
        return kept[:size].view(*shape)


class Workspaces:
    """Workspaces of an operator: one for every product that runs at the same time.

    Args:
        limit: Bytes that each may keep.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._idle: list[Workspace] = []

    @contextmanager
    def borrowed(self) -> Generator[Workspace]:
        """Give a workspace that nobody else has."""
        try:
            workspace = self._idle.pop()
        except IndexError:
            workspace = Workspace(self._limit)
        try:
            yield workspace
        finally:
            self._idle.append(workspace)

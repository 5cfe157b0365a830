"""A matrix without the coordinates that it never reaches."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Reached"]

_WORTH = 0.95
"""Share of the coordinates below which leaving the others out pays off."""


class Reached:
    """A symmetric matrix on the coordinates whose rows are not zero.

    Rows of an embedding that no sample reads, weights of pixels that are always black and of units
    that never fire have rows of zeros. The other eigenvalues are those of the rest, whose vectors
    are shorter: a half as long for a language model on a few sentences.

    Args:
        operator: The matrix, with processes that are one alone.
        places: Coordinates (r,) whose rows are not zero.
    """

    def __init__(self, operator: Any, places: torch.Tensor) -> None:
        self._operator, self._places = operator, places
        self.shape = (len(places), len(places))
        self.dtype, self.device = operator.dtype, operator.device
        self._lifted: torch.Tensor | None = None  # of one product at a time

    @classmethod
    def of(cls, operator: Any, images: list[torch.Tensor]) -> Any:
        """Return a matrix without the rows that are zero, or itself where there are few.

        A row that is zero has a zero in every image. That of another one is zero in the image of a
        random vector by chance alone, which float32 has about once in 10⁷ entries, and in two
        images once in 10¹⁴.
        """
        reached = torch.stack([image != 0 for image in images]).any(0)
        if operator.processes.is_parallel or int(reached.sum()) > _WORTH * len(reached):
            return operator
        return cls(operator, reached.nonzero()[:, 0])

    def with_operator(self, operator: Any) -> Reached:
        """Return another matrix, such as that of fewer samples, on the same coordinates."""
        other = Reached(operator, self._places)
        other._lifted = self._lifted
        return other

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        if other.ndim > 1:
            return self.narrowed(self._operator @ self.lifted(other))
        if self._lifted is None or self._lifted.dtype != other.dtype:
            self._lifted = other.new_zeros(self._operator.shape[0])
        self._lifted.index_copy_(0, self._places, other)
        return self.narrowed(self._operator @ self._lifted)

    def lifted(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return vectors (r, …) with zeros in the places that were left out, (P, …)."""
        whole = vectors.new_zeros(self._operator.shape[0], *vectors.shape[1:])
        return whole.index_copy_(0, self._places, vectors)

    def narrowed(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return vectors (P, …) without the places that were left out, (r, …)."""
        return vectors.index_select(0, self._places)

    def in_precision(self, dtype: torch.dtype) -> Reached | None:
        """Return the same in another precision, where the matrix has that."""
        precise = self._operator.in_precision(dtype)
        return None if precise is None else Reached(precise, self._places)

    def cost(self) -> Any:
        """Return the memory and operations of one product."""
        return self._operator.cost()

"""Masks: one boolean tensor per parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from hyperribbon.core.checks import ArgumentError, check_readable
from hyperribbon.core.checks import path as check_path


def safetensors_path(path: str | Path) -> Path:
    """Return the path of a mask's .safetensors file.

    Raises:
        ArgumentError: It has another ending.
    """
    found = Path(check_path("path", path))
    if found.suffix != ".safetensors":
        reason = "expected a file name that ends with .safetensors"
        raise ArgumentError("path", str(path), reason, "Give mask.safetensors, for example.")
    return found


_Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Mask(Mapping[str, torch.Tensor]):
    """A sub-network's mask: the selected entries of named parameters.

    A read-only mapping from parameter name to a boolean tensor of the parameter's shape, True where
    the entry is selected. Names that are absent are not selected at all. Masks combine with
    `&`, `|`, `-` and `~` (over the names they hold).

    Args:
        entries: Boolean tensors by parameter name.

    >>> mask = Mask({"weight": torch.tensor([True, False])})
    >>> mask.count, mask.size, (~mask).count
    (1, 2, 1)
    """

    def __init__(self, entries: Mapping[str, torch.Tensor]) -> None:
        if not isinstance(entries, Mapping):
            raise ArgumentError(
                "entries", entries, "expected a dict", "Give boolean tensors by parameter name."
            )
        for name, entry in entries.items():
            if not isinstance(entry, torch.Tensor) or entry.dtype != torch.bool:
                reason = "expected a boolean tensor"
                remedy = "Compare or call .bool() first."
                raise ArgumentError(f"entries[{name!r}]", entry, reason, remedy)
            check_readable(f"entries[{name!r}]", entry)
        self._entries = {name: entry.detach().clone() for name, entry in entries.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return the mask's boolean tensor of one parameter."""
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the mask's parameter names."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Return the number of parameters (tensors) in the mask."""
        return len(self._entries)

    @property
    def count(self) -> int:
        """Number of entries that the mask selects."""
        return sum(int(entry.sum()) for entry in self._entries.values())

    @property
    def size(self) -> int:
        """Number of entries of the mask, selected or not."""
        return sum(entry.numel() for entry in self._entries.values())

    @property
    def fraction(self) -> float:
        """Selected share of the entries; 0 for an empty mask."""
        return self.count / self.size if self.size else 0.0

    def __invert__(self) -> Mask:
        """Return the complement of the mask."""
        return Mask({name: ~entry for name, entry in self._entries.items()})

    def __and__(self, other: Mask) -> Mask:
        """Return the intersection of two masks."""
        return self._combine(other, torch.logical_and)

    def __or__(self, other: Mask) -> Mask:
        """Return the union of two masks."""
        return self._combine(other, torch.logical_or)

    def __sub__(self, other: Mask) -> Mask:
        """Select the entries of this mask that are not in the other."""
        return self._combine(other, lambda a, b: a & ~b)

    def __eq__(self, other: object) -> bool:
        """Compare the names and entries of two masks."""
        if not isinstance(other, Mask):
            return NotImplemented
        return self.keys() == other.keys() and all(
            torch.equal(entry, other[name]) for name, entry in self._entries.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show counts of the mask, not entries."""
        return f"Mask({self.count} of {self.size} entries in {len(self)} parameters)"

    def save(self, path: str | Path) -> None:
        """Write the mask to a .safetensors file of boolean tensors."""
        from hyperribbon.core.states import save_state  # which needs masks, by way of parameters

        save_state(safetensors_path(path), self._entries)

    @classmethod
    def load(cls, path: str | Path) -> Mask:
        """Read a mask that `save` wrote; the file must be whole and hold boolean tensors."""
        from hyperribbon.core.states import load_state

        return cls(load_state(safetensors_path(path)))

    def _combine(self, other: Mask, operation: _Operation) -> Mask:
        combined: dict[str, torch.Tensor] = {}
        for name in dict.fromkeys([*self, *other]):
            known = self._entries[name] if name in self else other._entries[name]
            none = torch.zeros_like(known)
            first, second = self._entries.get(name, none), other._entries.get(name, none)
            if first.shape != second.shape:
                reason = f"parameter {name!r} has shape {tuple(first.shape)} in the first mask"
                remedy = "Combine masks of the same architecture."
                raise ArgumentError("other", tuple(second.shape), reason, remedy)
            combined[name] = operation(first, second)
        return Mask(combined)

"""safetensors files as they are read, with types."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

from safetensors import safe_open

__all__ = ["TensorFile", "open_tensors"]


class TensorFile(Protocol):
    """An open file of named tensors."""

    def keys(self) -> list[str]:
        """Return the names."""
        ...

    def metadata(self) -> Mapping[str, str] | None:
        """Return the texts in the header."""
        ...

    def get_tensor(self, name: str) -> Any:
        """Return one tensor, as the framework has them."""
        ...


def open_tensors(path: Path, framework: str) -> AbstractContextManager[TensorFile]:
    """Open a file of tensors: of torch, "pt", or arrays, "numpy"."""
    return cast(AbstractContextManager[TensorFile], safe_open(path, framework=framework))

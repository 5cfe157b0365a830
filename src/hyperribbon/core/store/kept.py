"""Finished pieces of a long computation, kept so that the same call goes on after a kill."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import is_tensor
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.core.store.atomic import clear_leftovers, ensure_folder, make_folder
from hyperribbon.core.store.manifest import list_new_files
from hyperribbon.core.store.trees import load_tree, save_tree


class Kept:
    """The finished pieces of a long computation; after a kill the same call goes on with them.

    Args:
        folder: Where they are kept; None keeps none.
        request: What is computed, and of what, as for `content_digest`. Other requests have folders
            of their own beside this one.
    """

    def __init__(self, folder: str | Path | None, *request: Any) -> None:
        self._folder = None
        if folder is not None:
            place = ensure_folder("folder", Path(checks.path("folder", folder)))
            self._folder = make_folder(place / content_digest(*request))
            clear_leftovers(self._folder)
            list_new_files(self._folder, "pieces")

    def __call__(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return a kept piece by its name, or make it and keep it.

        Returns:
            What `compute` returns; where a folder is given, as `load_tree` reads it.
        """
        if self._folder is None:
            return compute()
        file = self._folder / f"{name}.safetensors"
        if not file.is_file():
            save_tree(file, compute())
            list_new_files(self._folder, "pieces")
        return load_tree(file)


def content_digest(*parts: Any) -> str:
    """Return the checksum that names a kept piece: of plain values, arrays and tensors.

    >>> content_digest("a", [1.0, {"b": np.ones(2)}]) == content_digest("a", [1.0, {"b": [1, 1]}])
    False
    """
    total = hashlib.blake2b(digest_size=8)
    for part in _flat(parts):
        total.update(part)
    return total.hexdigest()


def _flat(part: Any) -> Iterable[bytes]:
    if isinstance(part, Mapping):
        part = [entry for pair in part.items() for entry in pair]
    if isinstance(part, list | tuple):
        yield f"{len(part)} entries ".encode()
        for entry in part:
            yield from _flat(entry)
    elif isinstance(part, np.ndarray) or is_tensor(part):
        array = np.ascontiguousarray(host_array(part))
        yield f"{array.dtype} {array.shape} ".encode()
        yield array.tobytes()
    else:
        yield f"{part!r} ".encode()

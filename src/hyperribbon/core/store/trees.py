"""Nested results in one file: arrays as safetensors, everything else as JSON in its header."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_tensors

from hyperribbon.core.checks import ArgumentError, is_tensor
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.core.store.atomic import write_bytes

if TYPE_CHECKING:
    import pandas as pd

_ARRAY = "__array__"
TREE_KEY = "checked tree"
"""Entry of the header that holds a tree and its checksum."""
STATE_KEY = "checked state"
"""Entry of the header of a file of named tensors: their order and checksum."""


def save_tree(path: Path, tree: Any) -> None:
    """Write a tree of dicts, lists, plain values, arrays and tensors atomically.

    Tuples come back as lists, tensors as numpy arrays, dataclasses as dicts. The file carries a
    checksum of its content.
    """
    arrays: dict[str, np.ndarray] = {}
    structure = json.dumps(_take_apart(tree, arrays, ""))
    # One entry alone: several would be written in an order of chance.
    header = json.dumps({"tree": structure, "digest": _digest(structure, arrays)})
    write_bytes(path, save_tensors(arrays, metadata={TREE_KEY: header}))


def load_tree(path: Path) -> Any:
    """Read what `save_tree` wrote, bit for bit.

    Returns:
        Dicts, lists, plain values and numpy arrays.

    Raises:
        ArgumentError: The file is damaged or is of another kind.
    """  # noqa: DOC501 - the ValueError is caught
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})[TREE_KEY])
            arrays: dict[str, np.ndarray] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if header["digest"] != _digest(header["tree"], arrays):
            raise ValueError("its checksum is wrong")
        return _put_together(json.loads(header["tree"]), arrays)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        reason = f"the result file is damaged ({error})"
        raise ArgumentError("path", str(path), reason, "Remove it and run again.") from None


def _take_apart(node: Any, arrays: dict[str, np.ndarray], path: str) -> Any:
    node = _plainly(node)
    if isinstance(node, np.ndarray) and node.dtype.kind in "biuf":
        key = path or "/"
        arrays[key] = np.ascontiguousarray(node).reshape(node.shape)
        return {_ARRAY: key}
    if isinstance(node, dict):
        for key in node:
            if not isinstance(key, str) or key == _ARRAY:
                raise ArgumentError("key", key, "expected string keys", "Use str keys.")
        # Parts of a path are escaped, so that "a/b" and b within a stay apart.
        parts = {key: key.replace("~", "~0").replace("/", "~1") for key in node}
        return {key: _take_apart(node[key], arrays, f"{path}/{parts[key]}") for key in node}
    if isinstance(node, list | tuple):
        return [_take_apart(value, arrays, f"{path}/{i}") for i, value in enumerate(node)]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise ArgumentError(
        path or "tree", node, "only arrays and plain values can be stored", "Convert it first."
    )


def _plainly(node: Any) -> Any:
    if isinstance(node, np.generic):
        return node.item()
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    return host_array(node) if is_tensor(node) else node


def _put_together(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(node, dict):
        if _ARRAY in node:
            return arrays[node[_ARRAY]]
        return {key: _put_together(value, arrays) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_put_together(value, arrays) for value in node]
    return node


def _digest(structure: str, arrays: dict[str, np.ndarray]) -> str:
    """Return the checksum of a tree of stored values."""
    total = hashlib.blake2b(structure.encode(), digest_size=8)
    for key in sorted(arrays):
        total.update(f"{key} {arrays[key].dtype.str} {arrays[key].shape}".encode())
        total.update(np.ascontiguousarray(arrays[key]).tobytes())
    return total.hexdigest()


def tree_frame(tree: Any) -> pd.DataFrame:
    """Return every number of a stored tree as a table: name, index in its array ("2,0"), value.

    >>> tree_frame({"loss": [0.5, np.ones(2)]})
          name index  value
    0   loss.0          0.5
    1   loss.1     0    1.0
    2   loss.1     1    1.0
    """
    import pandas as pd

    rows: list[tuple[str, str, Any]] = []

    def walk(name: str, node: Any) -> None:
        if isinstance(node, dict | list | tuple):
            pairs = node.items() if isinstance(node, dict) else enumerate(node)
            for key, entry in pairs:
                walk(f"{name}.{key}" if name else str(key), entry)
        elif isinstance(node, np.ndarray) and node.dtype.kind in "biuf":
            rows.extend((name, ",".join(map(str, i)), value) for i, value in np.ndenumerate(node))
        elif isinstance(node, int | float):
            rows.append((name, "", node))

    walk("", tree)
    return pd.DataFrame(rows, columns=["name", "index", "value"])

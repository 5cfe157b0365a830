"""Nested results in one file: arrays as safetensors, everything else as JSON in its header."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_tensors

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import write_bytes

__all__ = ["load_tree", "save_tree"]

_ARRAY = "__array__"


def save_tree(path: Path, tree: Any) -> None:
    """Write a tree of dicts, lists, plain values, arrays and tensors atomically.

    Tuples come back as lists, tensors as numpy arrays, dataclasses as dicts.
    """
    arrays: dict[str, np.ndarray] = {}
    structure = _take_apart(tree, arrays, "")
    write_bytes(path, save_tensors(arrays, metadata={"tree": json.dumps(structure)}))


def load_tree(path: Path) -> Any:
    """Read what `save_tree` wrote, bit for bit.

    Raises:
        ArgumentError: The file is damaged or is of another kind.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            structure = json.loads(file.metadata()["tree"])
            return _put_together(structure, file.get_tensor)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            "path",
            str(path),
            f"it is not a whole result file ({error})",
            "Remove it and run again.",
        ) from None


def _take_apart(node: Any, arrays: dict[str, np.ndarray], path: str) -> Any:
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        node = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    if isinstance(node, torch.Tensor):
        node = node.detach().cpu().numpy()
    if isinstance(node, np.generic):
        node = node.item()
    if isinstance(node, np.ndarray):
        key = path or "/"
        arrays[key] = np.ascontiguousarray(node).reshape(node.shape)
        return {_ARRAY: key}
    if isinstance(node, dict):
        for key in node:
            if not isinstance(key, str) or key == _ARRAY:
                raise ArgumentError(
                    "key", key, "keys of a stored tree are strings", "Use str keys."
                )
        return {key: _take_apart(value, arrays, f"{path}/{key}") for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_take_apart(value, arrays, f"{path}/{i}") for i, value in enumerate(node)]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise ArgumentError(
        path or "tree", node, "only arrays and plain values can be stored", "Convert it first."
    )


def _put_together(node: Any, get_array) -> Any:
    if isinstance(node, dict):
        if _ARRAY in node:
            return get_array(node[_ARRAY])
        return {key: _put_together(value, get_array) for key, value in node.items()}
    if isinstance(node, list):
        return [_put_together(value, get_array) for value in node]
    return node

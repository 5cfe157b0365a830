"""State for resuming a run: weights, optimiser, and random states, stored without pickle.

A state is a safetensors file whose header has the structure around the tensors as JSON; its name
ends with its checksum: state/step-500-5d41402abc4b2a76.safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import digest_of, file_digest, make_folder, write_bytes
from hyperribbon.recording.measurements import random_state, set_random_state


@runtime_checkable
class Stateful(Protocol):
    """An object that can resume from a state dict: a module, an optimiser, a scheduler."""

    def state_dict(self) -> Any:
        """Return a state to resume from: tensors and plain values."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore a state to resume from."""
        ...


def pack_parts(parts: Mapping[str, Stateful], notes: Any = None) -> bytes:
    """Serialize the resume state of every part and of the global random generators.

    Raises an ArgumentError where a state holds something other than tensors and plain values.

    Returns:
        The content of a safetensors file.
    """
    tensors: dict[str, torch.Tensor] = {}
    states = {name: part.state_dict() for name, part in parts.items()}
    content = {"parts": states, "random": random_state(), "notes": notes}
    structure = json.dumps(_encode(content, "parts", tensors))
    return safetensors.torch.save(tensors, metadata={"state": structure})


def remove_others(state: Path, kind: str) -> None:
    """Remove the states of a kind, such as "epoch", that a run no longer resumes from."""
    for path in state.parent.glob(f"{kind}-*.safetensors"):
        if path != state:
            path.unlink()


def save_state(folder: Path, name: str, state: bytes) -> Path:
    """Write a serialized state to resume from; return its path."""
    path = make_folder(folder / "state") / f"{name}-{digest_of(state)}.safetensors"
    write_bytes(path, state)
    return path


def find_state(folder: Path, name: str) -> Path | None:
    """Return the path of a stored resume state, or None."""
    return next(folder.glob(f"state/{name}-*.safetensors"), None)


def load_parts(folder: Path, name: str, parts: Mapping[str, Stateful]) -> Any:
    """Restore every part's resume state and the random generators; return the notes.

    Returns:
        The notes that were stored with the parts.

    Raises:
        ArgumentError: There is no such state, it is damaged, or it is of other parts.
    """
    path = find_state(folder, name)
    if path is None:
        reason = "its last record has no state to resume from"
        remedy = "Choose another folder, or resume by other means and call attach(step=...)."
        raise ArgumentError("folder", str(folder), reason, remedy)
    content = read_parts(path)
    remedy = "Attach the same model, optimiser and other parts as before."
    if content["parts"].keys() != parts.keys():
        reason = f"the stored run has {sorted(content['parts'])}"
        raise ArgumentError("parts", sorted(parts), reason, remedy)
    for name, part in parts.items():
        try:
            part.load_state_dict(content["parts"][name])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = f"the stored state does not match it ({' '.join(str(error).split())[:200]})"
            raise ArgumentError("parts", name, reason, remedy) from None
    set_random_state(content["random"])
    return content["notes"]


def read_parts(path: Path) -> dict[str, Any]:
    """Return a resume state as `pack_parts` serialized it: parts, random states and notes.

    Raises:
        ArgumentError: It is damaged, or of another kind.
    """  # noqa: DOC501 - the ValueError is caught
    try:
        if file_digest(path) != path.stem.rpartition("-")[2]:
            raise ValueError("its checksum is wrong")
        with safe_open(path, framework="pt") as file:
            content = _decode(json.loads((file.metadata() or {})["state"]), file)
        if not {"parts", "random", "notes"} <= content.keys():
            raise ValueError("not the state of a run")
        return content
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"the state to resume from is damaged ({error})"
        remedy = "Begin again in another folder; the records in this one can still be read."
        raise ArgumentError("folder", str(path), reason, remedy) from None


def _encode(node: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a resume state as plain JSON, with tensors as indices into `tensors`."""
    if isinstance(node, np.generic):
        node = node.item()
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, torch.Tensor | np.ndarray):
        kind = "array" if isinstance(node, np.ndarray) else "tensor"
        tensor = torch.from_numpy(node) if isinstance(node, np.ndarray) else node
        key = str(len(tensors))
        tensors[key] = tensor.detach().to("cpu", copy=True).contiguous()
        return {kind: key}
    if isinstance(node, Mapping):
        pairs = [
            [_encode(key, place, tensors), _encode(value, f"{place}[{key!r}]", tensors)]
            for key, value in node.items()
        ]
        return {"dict": pairs}
    if isinstance(node, list | tuple):
        entries = [_encode(value, place, tensors) for value in node]
        return entries if isinstance(node, list) else {"tuple": entries}
    reason = f"its state holds a {type(node).__name__}, which cannot be stored"
    remedy = "Omit it, or record with resume=False."
    raise ArgumentError(place, type(node).__name__, reason, remedy)


def _decode(node: Any, file: Any) -> Any:
    if isinstance(node, list):
        return [_decode(value, file) for value in node]
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "dict":
        return {_decode(key, file): _decode(entry, file) for key, entry in value}
    if kind == "tuple":
        return tuple(_decode(entry, file) for entry in value)
    tensor = file.get_tensor(value)
    return tensor.numpy() if kind == "array" else tensor

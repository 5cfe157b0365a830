"""State for resuming a run: weights, optimiser, and random states."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.states import refusal
from hyperribbon.recording.measurements import random_state, set_random_state

__all__ = ["Stateful", "load_parts", "pack_parts", "read_parts"]


@runtime_checkable
class Stateful(Protocol):
    """An object with a state dict: a module, an optimiser, a scheduler."""

    def state_dict(self) -> Any:
        """Return the state: tensors and plain values."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore a state."""
        ...


def pack_parts(parts: Mapping[str, Stateful], notes: Any = None) -> bytes:
    """Serialize the state of every part and of the global random generators."""
    content = {
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "random": random_state(),
        "notes": notes,
    }
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def load_parts(path: Path, parts: Mapping[str, Stateful]) -> Any:
    """Restore the state of every part and of the random generators; return the notes.

    Returns:
        The notes that were stored with the parts.

    Raises:
        ArgumentError: There is no such state, it is damaged or would run code, or it is of other
            parts.
    """
    if not path.is_file():
        reason = "its last record has no state to resume from"
        remedy = "Choose another folder, or resume by other means and call attach(step=...)."
        raise ArgumentError("folder", str(path.parent.parent), reason, remedy)
    content = read_parts(path)
    if content["parts"].keys() != parts.keys():
        reason = f"the stored run has {sorted(content['parts'])}"
        remedy = "Attach the same model, optimiser and other parts as before."
        raise ArgumentError("parts", sorted(parts), reason, remedy)
    for name, part in parts.items():
        try:
            part.load_state_dict(content["parts"][name])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = f"the stored state does not match it ({' '.join(str(error).split())[:200]})"
            remedy = "Attach the same model, optimiser and other parts as before."
            raise ArgumentError("parts", name, reason, remedy) from None
    set_random_state(content["random"])
    return content["notes"]


def read_parts(path: Path) -> dict[str, Any]:
    """Return what `pack_parts` serialized: parts, random states and notes.

    Raises:
        ArgumentError: It is damaged, of another kind, or loading it would run code.
    """  # noqa: DOC501 - the ValueError is caught
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or not {"parts", "random", "notes"} <= content.keys():
            raise ValueError("not the state of a run")
        return content
    except Exception as error:  # torch raises pickle, zip, runtime and end-of-file errors here
        reason = (
            f"the state to resume from is damaged, or loading it would run code ({refusal(error)})"
        )
        remedy = "Begin again in another folder; the records in this one can still be read."
        raise ArgumentError("folder", str(path), reason, remedy) from None

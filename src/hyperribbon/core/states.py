"""Named tensors in files: safetensors, or checkpoints that hold tensors and nothing that runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import writing

__all__ = ["load_state", "save_state"]


def load_state(path: str | Path) -> dict[str, torch.Tensor]:
    """Load named tensors from a .safetensors file, or a .pt file that holds tensors only.

    Raises:
        ArgumentError: The file is missing or damaged, or loading it would run code.
    """
    path = Path(path)
    if not path.is_file():
        raise ArgumentError("path", str(path), "there is no such file", "Check the path.")
    if path.suffix == ".safetensors":
        try:
            return _load_safetensors(path)
        except (SafetensorError, ValueError, TypeError) as error:
            raise ArgumentError(
                "path", str(path), f"it is damaged or truncated ({error})", "Write it again."
            ) from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle, zip, runtime and end-of-file errors here
        raise ArgumentError(
            "path",
            str(path),
            "it is damaged, or loading it would run code that it carries "
            f"({str(error).splitlines()[0][:160]})",
            "Save the state dict alone, best as .safetensors.",
        ) from None
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise ArgumentError(
            "path", str(path), "it is not a state dict of named tensors", "Save model.state_dict()."
        )
    return dict(content)


def save_state(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Write named tensors as safetensors, atomically, keeping their order."""
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in weights.items()}
    with writing(path) as temporary:
        # The format sorts tensors by type and name; the model's own order goes in the header.
        save_file(tensors, temporary, metadata={"order": json.dumps(list(tensors))})


def _load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        order = json.loads((file.metadata() or {}).get("order", "[]"))
        if sorted(order) == sorted(names):
            names = order
        return {name: file.get_tensor(name) for name in names}

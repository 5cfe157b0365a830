"""Load and save named tensors: safetensors, or tensor-only checkpoints."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import writing
from hyperribbon.core.store.trees import STATE_KEY


def load_state(path: str | Path) -> dict[str, torch.Tensor]:
    """Load a state: named tensors from a .safetensors file, or a .pt file with tensors only.

    A file model.safetensors.index.json stands for the shards it lists, which lie beside it.

    Returns:
        Tensors on the CPU by name, in the order of the file.

    Raises:
        ArgumentError: The file is missing or damaged, or loading it would run code.
    """
    path = Path(path)
    if not path.is_file():
        raise ArgumentError("path", str(path), "the file does not exist", "Check the path.")
    if path.name.endswith(".index.json"):
        return _load_shards(path)
    if path.suffix == ".safetensors":
        try:
            return _load_safetensors(path)
        except (SafetensorError, ValueError, TypeError, KeyError) as error:
            raise ArgumentError(
                "path", str(path), f"it is damaged or truncated ({error})", "Write it again."
            ) from None
    try:
        content: Any = load_tensors_only(path)
    except ArgumentError:
        raise
    except Exception as error:  # torch raises pickle, zip, runtime and end-of-file errors here
        reason = f"it is damaged, or loading it would run code ({refusal(error)})"
        remedy = "Save the state dict alone, best as .safetensors."
        raise ArgumentError("path", str(path), reason, remedy) from None
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise ArgumentError(
            "path", str(path), "expected a state dict of named tensors", "Save model.state_dict()."
        )
    return dict(content)


def load_tensors_only(path: Path) -> Any:
    """Load a state from a file of `torch.save` without running code in it.

    Raises:
        ArgumentError: This version of torch may run code that is hidden in such a file.
    """  # noqa: DOC201 - and whatever torch.load raises
    if torch_version() < (2, 6):
        reason = (
            f"torch {torch.__version__} may run code hidden in such files, even with "
            "weights_only=True (CVE-2025-32434)"
        )
        remedy = "Save it as .safetensors, or install torch 2.6 or newer."
        raise ArgumentError("path", str(path), reason, remedy)
    return torch.load(path, map_location="cpu", weights_only=True)


def torch_version() -> tuple[int, ...]:
    """Return torch's major and minor version, on which the loading of .pt states depends."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def refusal(error: Exception) -> str:
    """Return a short reason why torch did not load a state dict from a file.

    Args:
        error: What torch.load(weights_only=True) raised.
    """
    text = str(error) or repr(error)
    called = re.search(r"GLOBAL ([\w.]+)", text)
    if called and isinstance(getattr(torch, called[1].removeprefix("torch."), None), torch.dtype):
        return f"torch {torch.__version__} cannot read {called[1]}; use a newer version"
    return f"it names {called[1]}" if called else text.splitlines()[-1].strip()[:160]


def save_state(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Write a state, named tensors, as safetensors, atomically, with their order and a checksum."""
    with writing(path) as temporary:
        temporary.write_bytes(_serialise(weights))


def header_size(weights: Mapping[str, torch.Tensor]) -> int:
    """Return how many bytes a saved state's file holds beside the entries."""
    return len(_serialise(weights)) - sum(tensor.nbytes for tensor in weights.values())


def _serialise(weights: Mapping[str, torch.Tensor]) -> bytes:
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in weights.items()}
    # The format sorts tensors by type and name. One entry alone in the header: several would be
    # written in an order of chance.
    header = json.dumps({"order": list(tensors), "digest": _digest(tensors)})
    return safetensors.torch.save(tensors, metadata={STATE_KEY: header})


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the checksum of a state."""
    total = hashlib.blake2b(digest_size=8)
    for name, tensor in tensors.items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _load_shards(index: Path) -> dict[str, torch.Tensor]:
    try:
        shards = json.loads(index.read_text())["weight_map"]
        files = {str(file) for file in shards.values()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(
            "path", str(index), f"it lists no shards ({error!r})", "Write it again."
        ) from None
    outside = [name for name in files if Path(name).name != name]
    if outside:
        reason = f"it refers to a file outside its folder, {outside[0]}"
        raise ArgumentError("path", str(index), reason, "Keep the shards beside it.")
    nested = [name for name in files if name.endswith(".index.json")]
    if nested:
        reason = f"it refers to another index, {nested[0]}"
        raise ArgumentError("path", str(index), reason, "List the files that hold tensors.")
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(files):
        tensors |= load_state(index.parent / name)
    return {name: tensors[name] for name in shards if name in tensors}


def _load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, framework="pt") as file:
        names, about = list(file.keys()), file.metadata() or {}
        own = json.loads(about.get(STATE_KEY, "{}"))
        order: list[str] = own["order"] if own else json.loads(about.get("order", "[]"))
        if sorted(order) == sorted(names):
            names = order
        state = {name: file.get_tensor(name) for name in names}
        if own and own["digest"] != _digest(state):
            raise ValueError("its checksum is wrong")
        return state

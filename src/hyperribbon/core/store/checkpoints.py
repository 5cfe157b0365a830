"""Find the checkpoints in a folder by the step in their names."""

from __future__ import annotations

import re
from pathlib import Path

from hyperribbon.core.checks import ArgumentError

__all__ = ["INDEX_SUFFIX", "find_checkpoints"]

INDEX_SUFFIX = ".index.json"
"""End of the name of a file that lists the shards of a model."""

_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
_MODEL_FILES = ("model.safetensors", f"model.safetensors{INDEX_SUFFIX}", "pytorch_model.bin")


def find_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoint of every step, in order of the steps.

    The step is the number after "step" in a name, or else the last number in it; if two have the
    same step, the later name is used.

    Raises:
        ArgumentError: There is none.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        numbers = re.findall(r"step\D?(\d+)", path.name) or re.findall(r"\d+", path.stem)
        if path.is_dir():
            inside = [path / name for name in _MODEL_FILES if (path / name).is_file()]
            path = inside[0] if inside else path
        is_model = path.suffix in _SUFFIXES or path.name.endswith(INDEX_SUFFIX)
        if is_model and path.is_file() and numbers:
            found[int(numbers[-1])] = path
    if not found:
        reason = "it contains no checkpoint with a step in its name"
        remedy = "Name the files like step-500.safetensors or step-500.pt."
        raise ArgumentError("folder", str(folder), reason, remedy)
    return dict(sorted(found.items()))

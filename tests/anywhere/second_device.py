"""A device of its own in host memory, on which mixing devices fails as it does on a GPU."""

from __future__ import annotations

import types
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension, rename_privateuse1_backend

NAME = "second"


@cache
def second_device(folder: Path | None = None) -> str:
    """Build the device once a process, make torch know it, and return its name.

    Args:
        folder: Where the compiler's files go; torch's own place for extensions by default.
    """
    source = Path(__file__).with_name("second_device.cpp")
    built = cpp_extension.load(
        name="second_device",
        sources=[str(source)],
        extra_cflags=["-O0", "-w"],
        build_directory=None if folder is None else str(folder),
    )
    built.begin()
    rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())
    return NAME


def _module() -> types.ModuleType:
    """Return what torch asks of `torch.second`."""
    module: Any = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    return module

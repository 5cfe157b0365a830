"""Free memory of a device, also in containers and without /proc."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from hyperribbon.core.checks import ArgumentError

_UNIFIED = ("memory.max", "memory.current", ("inactive_file", "active_file"))
_OLD = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def free_memory(device: torch.device | str = "cpu", *, root: Path = Path("/")) -> int:
    """Return the free memory of a device in bytes.

    An accelerator is asked itself. On a CPU, and on an accelerator that shares its memory, it is
    what the system has available (memory that is free, or that caches of files would give back),
    or what the limits of the control groups around this process leave of it, if that is less:

        free = min(available, min over groups of limit − used + cached files).

    Systems that keep no such record say how many pages are free; those that do not say that
    either (macOS) are taken to have half of their memory free.

    Raises an ArgumentError where the system does not say how much memory it has.

    Args:
        device: A device of torch.
        root: Folder that has `proc` and `sys`.

    >>> free_memory("cpu") > 0
    True
    """
    device = torch.device(device)
    ask = getattr(getattr(torch, device.type, None), "mem_get_info", None)
    if device.type != "cpu" and ask is not None:
        return int(ask(device)[0])
    kilobytes = _numbers(root / "proc" / "meminfo", "MemAvailable:").get("MemAvailable:")
    available = _free_pages() if kilobytes is None else 1024 * kilobytes
    return max(min([available, *_group_allowances(root)]), 0)


def give_back() -> None:
    """Give the memory of freed tensors back to the system, where the C library keeps it."""
    with suppress(AttributeError, OSError, TypeError):  # glibc alone can be asked to
        ctypes.CDLL(None).malloc_trim(0)


def _free_pages() -> int:
    """Return the free memory in bytes by `os.sysconf`."""
    known = getattr(os, "sysconf_names", {})
    for name, part in (("SC_AVPHYS_PAGES", 1), ("SC_PHYS_PAGES", 2)):
        if name in known and (pages := os.sysconf(name)) > 0:
            return pages * os.sysconf("SC_PAGE_SIZE") // part
    raise ArgumentError(
        "memory", None, "the free memory of this system is unknown", "Give memory=8e9."
    )


def _group_allowances(root: Path) -> Iterator[int]:
    """Yield the memory that each control group around this process leaves, where limited."""
    mounts = root / "sys" / "fs" / "cgroup"
    for line in _lines(root / "proc" / "self" / "cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            yield from _left(mounts, group, *_UNIFIED)
        elif "memory" in controllers.split(","):
            yield from _left(mounts / "memory", group, *_OLD)


def _left(mount: Path, group: str, limit: str, used: str, cached: tuple[str, str]) -> Iterator[int]:
    """Yield the device memory that a control group and its parents leave, in a container too."""
    inner = mount / group.strip("/")
    for folder in (inner, *inner.parents):
        if not folder.is_relative_to(mount):
            break
        most, taken = _number(folder / limit), _number(folder / used)
        if most is not None and taken is not None:
            yield most - taken + sum(_numbers(folder / "memory.stat", *cached).values())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """Return a device's memory limit from a control group's file; None if missing or "max"."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _numbers(path: Path, *names: str) -> dict[str, int]:
    """Return the memory in kB of the lines "name number ..." of /proc/meminfo with these names."""
    words = (line.split() for line in _lines(path) if line.startswith(names))
    return {row[0]: int(row[1]) for row in words if row[0] in names and row[1].isdigit()}

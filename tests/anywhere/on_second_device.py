"""Runs every public call on the CPU and on the second device; writes what differs.

Usage: python tests/anywhere/on_second_device.py FOLDER
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from anywhere.calls import CALLS, differences, make_setting, numbers
from anywhere.second_device import second_device

# Sums of at most 24 × 39 products in single precision: the two devices may order them otherwise.
ROUNDING = 24 * 39 * torch.finfo(torch.float32).eps


def message(call: Callable[[], object]) -> str:
    """Return what a call raises; nothing where it raises nothing."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(folder: Path) -> None:
    device = second_device()
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "An output with one or more elements was resized")
    there, here = torch.ones(2, 2, device=device), torch.ones(2, 2)
    mixes = (torch.add, torch.mm, lambda a, b: torch.cat([a, b]))
    refusals = [message(lambda mix=mix: mix(there, here)) for mix in mixes]
    told = {"mixing": min(refusals, key=lambda text: "same device" in text)}
    told["numpy"] = message(there.numpy)

    def compare(name: str) -> None:
        place = folder / str(len(told))
        expected = numbers(CALLS[name](make_setting(place / "cpu")))
        found = numbers(CALLS[name](make_setting(place / "there", device)))
        assert not (far := differences(found, expected, ROUNDING)), far

    for name in CALLS:
        told[name] = message(lambda name=name: compare(name))
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

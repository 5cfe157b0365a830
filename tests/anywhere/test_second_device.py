"""Every public call on a device of its own: the CPU's numbers, and nothing mixed in silence."""

from __future__ import annotations

import shutil

import pytest
import torch

from anywhere.calls import CALLS, differences, make_setting, numbers
from anywhere.second_device import second_device

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:An output with one or more elements was resized"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="the device is compiled"),
]
# Sums of at most 24 × 39 products in single precision: the two devices may order them otherwise.
ROUNDING = 24 * 39 * torch.finfo(torch.float32).eps


def test_mixing_devices_fails_as_on_a_gpu():
    there = torch.ones(2, 2, device=second_device())
    for mix in (torch.add, torch.mm, lambda a, b: torch.cat([a, b])):
        with pytest.raises(RuntimeError, match="same device"):
            mix(there, torch.ones(2, 2))
    with pytest.raises(TypeError, match="to numpy"):
        there.numpy()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_the_numbers_of_the_cpu(name, tmp_path):
    expected = numbers(CALLS[name](make_setting(tmp_path / "cpu")))
    found = numbers(CALLS[name](make_setting(tmp_path / "there", second_device())))
    assert not differences(found, expected, ROUNDING)

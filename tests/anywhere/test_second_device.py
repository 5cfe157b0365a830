"""Every public call on a device of its own: the CPU's numbers, and nothing mixed in silence.

In a process of its own: torch counts the devices when it first differentiates.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anywhere.calls import CALLS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the device is compiled"),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of each call: empty where its numbers are those of the CPU."""
    script = Path(__file__).with_name("on_second_device.py")
    folder = tmp_path_factory.mktemp("second")
    path = os.pathsep.join([str(script.parents[1]), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads((folder / "told.json").read_text())


def test_mixing_devices_fails_as_on_a_gpu(told):
    assert "same device" in told["mixing"]
    assert "to numpy" in told["numpy"]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_the_numbers_of_the_cpu(name, told):
    assert told[name] == ""

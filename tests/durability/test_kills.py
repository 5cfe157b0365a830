"""Work that is killed, or runs out of disk, loses nothing it reported and ends the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(folder, seed, timeout, kills):
    """Disturb tasks as often as is said: kills and full disks by task."""
    script = Path(__file__).with_name("kill.py")
    tasks = [f"{task}:{count}:{disks}" for task, (count, disks) in kills.items()]
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(seed), *tasks],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for task, (count, disks) in kills.items():
        assert f"{task}: {count} kills, {disks} full disks" in done.stdout


def test_kills_and_full_disks(tmp_path):
    short = {
        "sweep/short": (6, 1),
        "find_ticket/short": (3, 0),
        "reproduce": (1, 0),
        "compare": (4, 0),
    }
    ensembles = {"ensemble": (2, 0), "ensemble/together": (2, 1)}
    recordings = {"record/short": (6, 1), "record/wait": (3, 1)}
    run(tmp_path, 7, 300, recordings | ensembles | short)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "kills"),
    [("record", 400), ("sweep", 300), ("find_ticket", 150), ("reproduce", 150), ("compare", 150)],
)
def test_a_thousand_kills(tmp_path, task, kills):
    run(tmp_path, 11, 3000, {task: (kills, 8)})

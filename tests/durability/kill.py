"""Kills tasks at random moments, and fills the disk under them; looks at what is there each time.

Called as: kill.py FOLDER SEED TASK:KILLS:DISKS... Prints what was done; fails if anything that was
reported as written is lost or wrong.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from tasks import TASKS, assert_reported_is_there, content

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.check import check_folder

FILE_SIZES = (700, 18_000, 7_000, 27_000, 50, 2_500, 12_000, 35_000)


def fork(task: str, folder: Path, log: Path, largest: int | None = None) -> int:
    """Run a task in another process; `largest` is the size at which its files stop to grow."""
    pid = os.fork()
    if pid == 0:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        if largest is not None:
            warnings.simplefilter("ignore")
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        try:
            TASKS[task](folder, lambda number: os.pwrite(handle, b"%09d" % number, 0) and None)
        except OSError:
            os._exit(0 if largest is not None else 1)
        except BaseException as error:
            print(f"{task}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def wait(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def look(task: str, run: Path, whole: list, log: Path) -> None:
    """Compare what is on disk with what was reported, and with a run that nobody disturbed."""
    reported = int(log.read_bytes() or 0)
    header = "trajectory.json" if task.startswith("record") else ""
    begun = (run / header).exists()
    assert begun or not reported, "everything is lost"
    if begun:
        assert_reported_is_there(task, run, whole, reported)
    try:
        assert check_folder(run).is_whole
    except ArgumentError as error:  # stopped before there was anything
        assert "does not exist" in error.reason or "does not contain" in error.reason


def finish(task: str, run: Path, whole: list, log: Path) -> None:
    """Go on undisturbed: the end is the same, and nothing lies about."""
    assert wait(fork(task, run, log)) == 0
    assert content(task, run) == whole
    leftovers = list(run.rglob("*.tmp"))
    assert not leftovers, leftovers


def main(folder: Path, seed: int, task: str, kills: int, disks: int) -> None:
    rng, log = random.Random(seed), folder / f"{task.replace('/', '-')}.log"
    place = folder / task
    place.mkdir(parents=True)
    TASKS[task](place / "warm", lambda number: None)  # imports what the children need, once
    begun = time.perf_counter()
    assert wait(fork(task, place / "whole", log)) == 0
    duration = time.perf_counter() - begun
    whole = content(task, place / "whole")
    done = number = 0
    while done < kills:
        run = place / f"killed-{number}"
        log.write_bytes(b"")
        pid = fork(task, run, log)
        time.sleep(rng.uniform(0.0, duration / 2))
        os.kill(pid, signal.SIGKILL)
        status = wait(pid)
        if not os.WIFSIGNALED(status):  # it had come to its end: begin another run
            assert status == 0
            assert content(task, run) == whole
            number += 1
            continue
        done += 1
        look(task, run, whole, log)
    finish(task, place / f"killed-{number}", whole, log)
    for size in FILE_SIZES[:disks]:
        log.write_bytes(b"")
        assert wait(fork(task, place / f"full-{size}", log, size)) == 0
        look(task, place / f"full-{size}", whole, log)
        finish(task, place / f"full-{size}", whole, log)
    print(f"{task}: {done} kills, {disks} full disks, nothing lost or wrong")


def do_not_sync() -> None:
    """Make os.fsync do nothing: a killed process loses nothing that it gave to the system."""
    os.fsync = lambda handle: None


if __name__ == "__main__":
    torch.set_num_threads(1)
    do_not_sync()
    for argument in sys.argv[3:]:
        task, kills, disks = argument.split(":")
        main(Path(sys.argv[1]), int(sys.argv[2]), task, int(kills), int(disks))

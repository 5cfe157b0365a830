"""Kill a second save into the same folder: the old result or the new one is whole, never a mix.

Run as a script: python resave.py FOLDER KILLS [SEED]
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr
from hyperribbon.core.store import finish_save
from hyperribbon.core.store.check import check_folder

CALLS = ("rename", "replace", "unlink", "fsync", "rmdir", "mkdir")
QUIET = {"console": Console(quiet=True)}


def results() -> dict[str, list]:
    """Return two results of every kind that is saved into a folder by name."""
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    loss, models = nn.CrossEntropyLoss(), [nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)]
    inspections = [hr.inspect(m, loss, (x, y), budget=1, **QUIET) for m in models[:2]]
    comparisons = [hr.compare(*pair, loss=loss, data=(x, y), **QUIET) for pair in pairwise(models)]
    return {"inspection": inspections, "comparison": comparisons}


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder as anybody reads them, without the time they were written."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    names = {str(path.relative_to(folder)): path.read_bytes() for path in found}
    return {
        name: re.sub(rb'"started": "[^"]*"', b"", content)
        for name, content in names.items()
        if not name.startswith(".")
    }


def killed(work: Callable[[], object], *, at: int | None, seconds: float | None) -> bool:
    """Do something in another process; kill it at a call that changes files, or after a time.

    Returns:
        Whether it was killed before its end.
    """
    pid = os.fork()
    if pid == 0:
        left = [at]

        def counting(call: Callable[..., object]) -> Callable[..., object]:
            def counted(*arguments: object, **options: object) -> object:
                if left[0] is not None:
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return counted

        if at is not None:
            for name in CALLS:
                setattr(os, name, counting(getattr(os, name)))
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0
    return os.WIFSIGNALED(status)


def count_calls(work: Callable[[], object]) -> int:
    """Return how many calls of something change files."""
    calls = [0]

    def counting(call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            calls[0] += 1
            return call(*arguments, **options)

        return counted

    kept = {name: getattr(os, name) for name in CALLS}
    try:
        for name, call in kept.items():
            setattr(os, name, counting(call))
        work()
    finally:
        for name, call in kept.items():
            setattr(os, name, call)
    return calls[0]


def is_of(found: dict[str, bytes], whole: dict[str, bytes]) -> bool:
    return all(whole.get(name) == content for name, content in found.items())


def look(folder: Path, old: dict[str, bytes], new: dict[str, bytes]) -> str:
    """Return whether the old or the new result is there, alone and whole."""
    plain = files(folder)
    assert is_of(plain, old) or is_of(plain, new), "some files are old and some are new"
    assert check_folder(folder).is_whole
    finish_save(folder)
    found = files(folder)
    assert found in (old, new), "files are missing"
    assert check_folder(folder).is_whole and (folder / "manifest.json").is_file()
    return "old" if found == old else "new"


def main(folder: Path, kills: int, seed: int = 0) -> dict[str, int]:
    rng, seen = random.Random(seed), {"old": 0, "new": 0}
    for kind, (first, second) in results().items():
        whole = {}
        for name, result in (("old", first), ("new", second)):
            result.save(folder / kind / name)
            whole[name] = files(folder / kind / name)
        place = folder / kind / "again"
        save = partial(second.save, place)
        begun = time.perf_counter()
        shutil.copytree(folder / kind / "old", place)
        assert not killed(save, at=None, seconds=None)
        duration, done, calls = time.perf_counter() - begun, 0, count_calls(save)
        while done < kills // 2:
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(folder / kind / "old", place)
            by_call = done % 2 == 0
            seconds = None if by_call else rng.uniform(0, duration)
            first_call = rng.choice([0, calls - 60])  # the last ones move files into place
            at = rng.randrange(max(first_call, 0), calls) if by_call else None
            if not killed(save, at=at, seconds=seconds):
                continue
            done += 1
            seen[look(place, whole["old"], whole["new"])] += 1
    print(f"{sum(seen.values())} kills of a second save: {seen}, none mixed")
    return seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)

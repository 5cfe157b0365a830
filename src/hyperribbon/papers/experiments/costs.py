"""What an experiment costs at each preset: measured where it was run, estimated elsewhere."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hyperribbon.core.store import read_json, write_json
from hyperribbon.papers.experiments.names import PRESETS
from hyperribbon.papers.experiments.registry import Experiment

try:
    import resource
except ImportError:  # not on this system: the memory stays unknown
    resource = None

_HEARTBEAT = 2.0  # seconds


@dataclass(frozen=True)
class RunCost:
    """The cost of a run: time on one core and memory of one seed.

    Attributes:
        seconds: Seconds of one core; of an estimate, what it takes at least.
        at_most: Of an estimate, what it takes at most; infinite without a bound.
        megabytes: Largest memory of the process; of an estimate, of the preset it comes from.
        measured: Whether it was measured at this preset.
    """

    seconds: float
    at_most: float
    megabytes: float
    measured: bool


def cost_of(experiment: Experiment, preset: str) -> RunCost | None:
    """Return what an experiment costs at a preset, or None where nothing was measured at all.

    One measured preset gives only a bound: a larger one takes at least as long. At preset smoke the
    time is mostly what every run takes, and the rest may grow with the square or cube of a setting.

    Where two smaller presets were measured, with times c and c + t, their difference is work. On
    the way to the preset the settings that count something (samples, steps, seeds, the length of a
    list) grow by ratios r. It takes c + t·max r if one of them drives the work alone, and
    c + t·Π r if all do.

    Args:
        experiment: The experiment.
        preset: "smoke", "laptop" or "paper".
    """
    known = _read_costs().get(experiment.id, {})
    if preset in known:
        seconds, megabytes = known[preset]
        return RunCost(seconds, seconds, megabytes, True)
    if not known:
        return None
    place = PRESETS.index(preset)
    below = [name for name in PRESETS[:place] if name in known]
    above = [name for name in PRESETS[place:] if name in known]
    if above:
        (longest, megabytes), shortest = known[above[0]], known[below[-1]][0] if below else 0.0
        return RunCost(shortest, longest, megabytes, False)
    seconds, megabytes = known[below[-1]]
    constant = known[below[0]][0]
    if seconds <= constant:
        return RunCost(seconds, math.inf, megabytes, False)
    configs = [experiment.config(name) for name in (below[-1], preset)]
    names = [field.name for field in dataclasses.fields(configs[0])]
    sizes = [[_size(getattr(config, name)) for config in configs] for name in names]
    ratios = [max(new / old, 1.0) for old, new in sizes if old and new]
    alone, together = max(ratios, default=1.0), math.prod(ratios)
    work = seconds - constant
    return RunCost(constant + work * alone, constant + work * together, megabytes, False)


def collect(stores: Sequence[str | Path]) -> dict[str, dict[str, list[float]]]:
    """Return the costs of the runs in stores, by experiment and preset, per seed on one core.

    Only runs of one process count, as `hyperribbon reproduce` makes them without --jobs, with the
    preset's own settings. Pieces that a store had before a run, such as trained networks that other
    figures share, are not in its time: give stores of runs that computed everything themselves.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for store in stores:
        for path in sorted(Path(store).glob("*/run.json")):
            info = json.loads(path.read_text())
            if {"cpu_seconds", "peak_megabytes"} <= info.keys() and "changed" not in info:
                seconds = info["cpu_seconds"] / len(info.get("seeds", [0]))
                cost = [round(seconds, 2), float(info["peak_megabytes"])]
                found.setdefault(info["id"], {})[info["preset"]] = cost
    return found


class Meter:
    """What a run costs, summed over the processes that worked at it, killed ones too.

    While it is entered, a file is written every two seconds that the next process adds to.

    Args:
        file: Where.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._ended = file, threading.Event()
        self._elsewhere = 0.0
        try:
            self._earlier: dict[str, float] = read_json(file, checksum=True)
        except (OSError, ValueError):
            self._earlier = dict.fromkeys(("seconds", "cpu_seconds", "peak_megabytes"), 0.0)

    def __enter__(self) -> Meter:
        self._began = time.monotonic(), time.process_time()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def add(self, process: int, seconds: float) -> None:
        """Add to an experiment's cost the CPU time of another process."""
        if process != os.getpid():
            self._elsewhere += seconds

    def cost(self) -> dict[str, float]:
        """Return what an experiment has cost so far: wall time, CPU time and peak memory."""
        wall, cpu = time.monotonic() - self._began[0], time.process_time() - self._began[1]
        spent = self._earlier["cpu_seconds"] + cpu + self._elsewhere
        peak = max(self._earlier["peak_megabytes"], peak_megabytes())
        seconds = round(self._earlier["seconds"] + wall, 2)
        return {"seconds": seconds, "cpu_seconds": round(spent, 2), "peak_megabytes": round(peak)}

    def _keep(self) -> None:
        while not self._ended.wait(_HEARTBEAT):
            with suppress(OSError):  # a full disk ends the run elsewhere
                write_json(self._file, self.cost(), checksum=True)


def peak_megabytes() -> float:
    """Return the memory cost: the peak of this process, or 0 where it is not reported."""
    if resource is None:
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def _size(value: Any) -> int:
    """Return the size of a setting that a cost grows with, or 0."""
    if isinstance(value, tuple):
        return len(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


@cache
def _read_costs() -> dict[str, dict[str, tuple[float, float]]]:
    text = (files("hyperribbon.papers.experiments") / "costs.json").read_text()
    return {
        id: {preset: (cost[0], cost[1]) for preset, cost in presets.items()}
        for id, presets in json.loads(text).items()
    }

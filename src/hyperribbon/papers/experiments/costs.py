"""What an experiment costs at each preset: measured where it was run, estimated elsewhere."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hyperribbon.papers.experiments.names import PRESETS
from hyperribbon.papers.experiments.registry import Experiment

try:
    import resource
except ImportError:  # not on this system: the memory stays unknown
    resource = None


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
    """Return what the runs of stores cost, by experiment and preset, for one seed on one core.

    Only runs of one process count, as `hyperribbon reproduce` makes them without --jobs, with the
    preset's own settings. Pieces that a store had before a run, such as trained networks that other
    figures share, are not in its time: give stores of runs that computed everything themselves.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for store in stores:
        for path in sorted(Path(store).glob("*/run.json")):
            info = json.loads(path.read_text())
            if "cpu_seconds" in info and "changed" not in info:
                seconds = info["cpu_seconds"] / len(info.get("seeds", [0]))
                cost = [round(seconds, 2), float(info["peak_megabytes"])]
                found.setdefault(info["id"], {})[info["preset"]] = cost
    return found


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

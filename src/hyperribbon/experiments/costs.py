"""What an experiment costs at each preset: measured where it was run, estimated elsewhere."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from hyperribbon.experiments.registry import Experiment

try:
    import resource
except ImportError:  # not on this system: the memory stays unknown
    resource = None

__all__ = ["Cost", "cost_of", "peak_megabytes"]

_ORDER = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Cost:
    """Time on one core and memory of one seed.

    Attributes:
        seconds: Seconds of one core.
        megabytes: Largest memory of the process.
        measured: Whether it was measured at this preset; if not, both numbers are estimates.
    """

    seconds: float
    megabytes: float
    measured: bool


def cost_of(experiment: Experiment, preset: str, *, with_data: bool = False) -> Cost | None:
    """Return what an experiment costs at a preset, or None where nothing was measured at all.

    An estimate takes the nearest preset that was measured and multiplies its time by the ratios of
    the settings that count something (samples, steps, seeds, the length of a list), which is right
    when the work is proportional to each of them, and multiplies the memory above that of an empty
    process by the same ratio, but at most tenfold.

    Args:
        experiment: The experiment.
        preset: "smoke", "laptop" or "paper".
        with_data: Whether a folder of full data sets is at hand.
    """
    known = _measured().get(experiment.id, {})
    if preset in known:
        return Cost(*known[preset], True)
    nearest = min(
        known, key=lambda name: abs(_ORDER.index(name) - _ORDER.index(preset)), default=None
    )
    if nearest is None:
        return None
    seconds, megabytes = known[nearest]
    growth = _growth(
        experiment.config(nearest, with_data=with_data),
        experiment.config(preset, with_data=with_data),
    )
    base = min(known[name][1] for name in known) * 0.8
    return Cost(seconds * growth, base + (megabytes - base) * min(max(growth, 0.1), 10), False)


def peak_megabytes() -> float:
    """Return the largest memory that this process has had; 0 where the system does not tell."""
    if resource is None:
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def _growth(before: Any, after: Any) -> float:
    ratio = 1.0
    for field in dataclasses.fields(before):
        old, new = (_size(getattr(config, field.name)) for config in (before, after))
        ratio *= new / old if old and new else 1.0
    return ratio


def _size(value: Any) -> int:
    if isinstance(value, tuple):
        return len(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


@cache
def _measured() -> dict[str, dict[str, tuple[float, float]]]:
    text = (files("hyperribbon.experiments") / "costs.json").read_text()
    return {
        id: {preset: (cost[0], cost[1]) for preset, cost in presets.items()}
        for id, presets in json.loads(text).items()
    }

"""Everything an inspection can do: the steps that the files of `inspection/parts` export."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from hyperribbon.inspection import parts
from hyperribbon.inspection.engine.planning import Step

__all__ = ["STEPS", "find_steps"]


def find_steps() -> tuple[Step, ...]:
    """Return the `STEP`, or the several `STEPS`, of every file of `inspection/parts`, in order."""
    found: list[Step] = []
    for entry in pkgutil.iter_modules(parts.__path__):
        module = import_module(f"{parts.__name__}.{entry.name}")
        own = getattr(module, "STEP", None)
        found += getattr(module, "STEPS", ()) if own is None else (own,)
    return tuple(sorted(found, key=lambda step: step.order))


STEPS = find_steps()

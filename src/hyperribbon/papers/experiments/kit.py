"""Everything an experiment is written with, under one name: `kit.says`, `kit.Context`, ….

The parts come from `context`, `judging`, `statements` and `hyperribbon.plots.style`; the rest is
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core.claims import Band
from hyperribbon.papers.experiments.context import Context, Item
from hyperribbon.papers.experiments.judging import (
    Measurements,
    Observed,
    estimate,
    exact,
    over_seeds,
)
from hyperribbon.papers.experiments.statements import at_scale, observe, says
from hyperribbon.plots.style import COLORS, DIVERGING, SEQUENTIAL, new_figure

__all__ = [
    "COLORS",
    "DIVERGING",
    "SEQUENTIAL",
    "Band",
    "Context",
    "Figure",
    "Frozen",
    "Item",
    "Measurements",
    "Observed",
    "at_scale",
    "estimate",
    "exact",
    "new_figure",
    "observe",
    "over_seeds",
    "presets",
    "says",
    "shades",
    "stack",
]

AnyConfig = TypeVar("AnyConfig")


@dataclass_transform(frozen_default=True)
class Frozen:
    """A base that makes an experiment's settings and results frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


def presets(laptop: AnyConfig, *, smoke: AnyConfig, paper: AnyConfig) -> dict[str, AnyConfig]:
    """Return by preset an experiment's configurations (kit of experiments)."""
    return {"smoke": smoke, "laptop": laptop, "paper": paper}


def stack(
    rows: Sequence[Mapping[str, Any]], *names: str, shape: tuple[int, ...] = (-1,)
) -> dict[str, np.ndarray]:
    """Stack rows of results: an array per name, one entry per row (kit of experiments).

    >>> stack([{"a": 1, "b": 2}, {"a": 3, "b": 4}], "a")
    {'a': array([1, 3])}

    Args:
        rows: Entries by name, the same names in all rows.
        *names: Which to return.
        shape: The grid that the rows belong to, the last axis varying fastest.
    """
    arrays = {name: np.array([row[name] for row in rows]) for name in names or rows[0]}
    return {name: array.reshape(*shape, *array.shape[1:]) for name, array in arrays.items()}


def shades(count: int) -> np.ndarray:
    """Return colours (count, 4) for ordered curves, dark to light (kit of experiments)."""
    return mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.85, count))

"""What every experiment is written with, in one place to import it from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.experiments.context import Context, Item
from hyperribbon.plots.style import COLORS, new_figure

__all__ = ["COLORS", "Context", "Figure", "Frozen", "Item", "new_figure", "presets", "stack"]

AnyConfig = TypeVar("AnyConfig")


@dataclass_transform(frozen_default=True)
class Frozen:
    """A base that makes its subclasses frozen dataclasses: settings and results."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


def presets(laptop: AnyConfig, *, smoke: AnyConfig, paper: AnyConfig) -> dict[str, AnyConfig]:
    """Return the configurations by preset, from the quickest to the printed one."""
    return {"smoke": smoke, "laptop": laptop, "paper": paper}


def stack(rows: Sequence[Mapping[str, Any]], *names: str) -> dict[str, np.ndarray]:
    """Return an array for each name, or for every name there is, with one entry for each row.

    >>> stack([{"a": 1, "b": 2}, {"a": 3, "b": 4}], "a")
    {'a': array([1, 3])}
    """
    return {name: np.array([row[name] for row in rows]) for name in names or rows[0]}

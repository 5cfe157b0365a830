"""How the figures of [subnetworks] show a quantity over seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hyperribbon.experiments.subnetworks._training import mean_and_error

__all__ = ["draw_band", "draw_layer_bars"]


def draw_band(axis: Axes, x: np.ndarray, values: np.ndarray, **style: Any) -> None:
    """Draw the mean over seeds (first axis) with the range of the seeds."""
    mean, _ = mean_and_error(values)
    (line,) = axis.plot(x, mean, **style)
    if len(values) > 1:
        low, high = np.min(values, axis=0), np.max(values, axis=0)
        axis.fill_between(x, low, high, color=line.get_color(), alpha=0.2, lw=0)


def draw_layer_bars(
    axis: Axes, values: np.ndarray, *, color: str, baseline: float, ylabel: str = "test accuracy"
) -> None:
    """Draw one bar for each layer, with a point for each seed, beside the trained network's."""
    mean, _ = mean_and_error(values)
    layers = np.arange(1, len(mean) + 1)
    axis.bar(layers, mean, color=color, alpha=0.6, width=0.6)
    for row in values:
        axis.plot(layers, row, "o", color="black", ms=2.5)
    axis.axhline(baseline, color="0.4", ls="--", lw=1)
    axis.text(len(mean) + 0.45, baseline + 0.01, "trained", ha="right", va="bottom", fontsize=8)
    for layer, value in enumerate(mean, 1):
        height = 0.02 if value > 0.3 else values[:, layer - 1].max() + 0.03
        axis.text(layer, height, f"{value:.2f}", ha="center", va="bottom", fontsize=8)
    axis.set(xlabel="layer", ylabel=ylabel, ylim=(0, 1.1), xticks=layers)

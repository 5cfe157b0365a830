"""What several figures of [ribbons] share: items of training, and a legend of line styles."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from hyperribbon.core import derive_seed
from hyperribbon.experiments.kit import Context

__all__ = ["CIRCLES", "explain_styles", "training_item"]

CIRCLES: dict[str, Any] = {"marker": "o", "ls": "", "mfc": "white", "ms": 3}
"""How trained models are drawn."""


def training_item(config: Any, context: Context, *seeds: Any, **own: Any) -> dict[str, Any]:
    """Return the item of `moments_of_training` for one batch of models.

    Args:
        config: Gives the samples n, with d = 2n input dimensions, and the initialisations.
        context: Gives the seeds of the inputs, which all batches share, and of the batch.
        *seeds: Names the batch; none for an item that is only the base of others.
        **own: Further entries: slope, steps, sigma_w, sigma_star, alpha, ….
    """
    shared = {
        "samples": config.samples,
        "dimensions": 2 * config.samples,
        "initialisations": config.initialisations,
        "inputs_seed": derive_seed(context.seed, "inputs"),
    }
    return {**shared, **({"seed": derive_seed(context.seed, *seeds)} if seeds else {}), **own}


def explain_styles(axis: Axes, styles: dict[str, dict[str, Any]]) -> None:
    """Explain the line styles above an axis, whose own legend explains the colours."""
    handles = [
        axis.plot([], [], **{"color": "0.3", **style}, label=label)[0]
        for label, style in styles.items()
    ]
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    axis.legend(handles=handles, ncols=3, handlelength=1.5, columnspacing=1.0, **place)

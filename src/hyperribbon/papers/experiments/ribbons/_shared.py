"""What several figures of [ribbons] share: items of training, a statement, a legend."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from hyperribbon.core import derive_seed
from hyperribbon.papers.experiments.kit import Context
from hyperribbon.papers.experiments.statements import Band, Statement, says

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


def simulation_says(setting: str) -> Statement:
    """Return the statement that trained models have the second moment of the closed form."""
    return says(
        "simulation",
        "Eqs. (3) and (5)",
        "As the number of random initializations N goes to infinity, we can separate the PCA "
        "matrix P into two components",
        "The second moment of trained models is P1: along its leading eigenvectors the variances "
        "agree within 2%.",
        Band.around(1.0, "closed form", atol=0.02),
        setting=setting,
        needs="the models of preset laptop",
        compare="mean",
    )


def explain_styles(axis: Axes, styles: dict[str, dict[str, Any]]) -> None:
    """Explain the line styles above an axis, whose own legend explains the colours."""
    handles = [
        axis.plot([], [], **{"color": "0.3", **style}, label=label)[0]
        for label, style in styles.items()
    ]
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    axis.legend(handles=handles, ncols=3, handlelength=1.5, columnspacing=1.0, **place)

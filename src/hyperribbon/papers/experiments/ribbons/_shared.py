"""What several figures of [ribbons] share: trained models, a statement, a legend."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hyperribbon.core import derive_seed
from hyperribbon.papers.experiments.kit import Context
from hyperribbon.papers.experiments.statements import Band, Statement, says
from hyperribbon.papers.simulation.ribbons.trajectories import (
    moments_of_training,
    pca_spectra,
    projected_variances,
)

CIRCLES: dict[str, Any] = {"marker": "o", "ls": "", "mfc": "white", "ms": 3}
"""How trained models are drawn."""


def training_item(config: Any, context: Context, *seeds: Any, **own: Any) -> dict[str, Any]:
    """Return the item of `moments_of_training` that ribbons' figures share, for one batch.

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


class Trained:
    """Batches of trained models, and the PCA matrix P(N, T) of their points.

    Args:
        context: Keeps what is finished.
        items: For each batch one item of `moments_of_training`; they differ in the seed.
        label: What the progress display calls it.
    """

    def __init__(
        self, context: Context, items: list[dict[str, Any]], label: str = "gradient descent"
    ) -> None:
        self._items = items
        self._moments = context.map(moments_of_training, items, label)
        self._count, self._steps = items[0]["initialisations"], tuple(items[0]["steps"])

    @property
    def together(self) -> np.ndarray:
        """Eigenvalues of P(N, T) of all batches, trained for settings that are shared: (t, n)."""
        return pca_spectra(self._moments, self._count, self._steps)

    @property
    def each(self) -> np.ndarray:
        """Eigenvalues of P(N, T) of each batch, trained for settings that are shared: (b, t, n)."""
        return np.array([pca_spectra([one], self._count, self._steps) for one in self._moments])

    @property
    def projections(self) -> np.ndarray:
        """Second moments along P₁'s leading eigenvectors, shared by ribbons' figures: (b,)."""
        times = range(len(self._steps))
        pairs = zip(self._items, self._moments, strict=True)
        return np.array(
            [np.mean([projected_variances(*pair, t)[:3] for t in times]) for pair in pairs]
        )


def line_fits(values: np.ndarray) -> tuple[float, float]:
    """Return R² of log λ against index i and against log i, shared by figures of [ribbons]."""
    index = np.flatnonzero(values > 0) + 1.0
    logs = np.log(values[values > 0])
    by_index, by_log = (np.corrcoef(x, logs)[0, 1] ** 2 for x in (index, np.log(index)))
    return float(by_index), float(by_log)


def simulation_says(setting: str) -> Statement:
    """Return the statement that figures of [ribbons] share: trained models agree with P₁."""
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


def draw_spectrum(
    axis: Axes, theory: np.ndarray, trained: Any = None, *, every: int = 3, **look: Any
) -> None:
    """Draw a ribbon's eigenvalues by their index, and some of trained models as circles."""
    index = np.arange(1, len(theory) + 1)
    axis.semilogy(index, theory, **look)
    if trained is not None:
        axis.semilogy(index[::every], trained[::every], color=look["color"], **CIRCLES)
    axis.set_xlabel("index $i$")


def style_handles(axis: Axes, styles: dict[str, dict[str, Any]]) -> list[Any]:
    """Return a legend's handles for line styles of a ribbon figure, in grey."""
    return [
        axis.plot([], [], **{"color": "0.3", **style}, label=label)[0]
        for label, style in styles.items()
    ]


def explain_styles(axis: Axes, styles: dict[str, dict[str, Any]]) -> None:
    """Explain line styles above an axis, shared by ribbon figures whose legend has the colours."""
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    look = {"ncols": 3, "handlelength": 1.5, "columnspacing": 1.0}
    axis.legend(handles=style_handles(axis, styles), **look, **place)

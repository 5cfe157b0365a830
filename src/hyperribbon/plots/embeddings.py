"""Figures of embedded training runs: pairs of coordinates, and which runs are similar."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, validate
from hyperribbon.plots.style import COLORS, SEQUENTIAL, new_figure

if TYPE_CHECKING:
    from hyperribbon.manifold.shown import ShownEmbedding

_PANELS = 3  # coordinates in a triangle of panels
_NAMED = 10  # runs that the legend names at most
_LETTERS = 24  # of a name in the legend
_axes = checks.instance(Axes, "Give axes of matplotlib.")


def _distances(argument: str, value: Any) -> np.ndarray:
    return checks.square(argument, checks.non_negative(argument, value))


@validate(ax=_axes)
def plot_embedding(embedding: ShownEmbedding, ax: Axes | None = None) -> Figure | Axes:
    """Draw an embedding by InPCA or PCA: one panel per pair of coordinates, one colour per run.

    Args:
        embedding: A fitted InPCA or PCA.
        ax: Axes for the first two coordinates; None for a triangle of panels.

    Returns:
        The figure, or the axes that were given.

    Raises:
        ArgumentError: It is not fitted, or has a single coordinate.
    """
    points = getattr(embedding, "embedding_", None)
    if points is None or points.shape[1] < 2:
        reason = "expected a fitted InPCA or PCA with two coordinates or more"
        remedy = "Call fit with n_components=2 or more, and two or more models."
        raise ArgumentError("embedding", embedding, reason, remedy)
    if ax is not None:
        if not hasattr(ax, "plot"):
            raise ArgumentError("ax", ax, "expected matplotlib axes", "Give one of plt.subplots().")
        _draw_pair(ax, embedding, 0, 1)
        if embedding.runs_ is not None:
            ax.legend(**_name_runs(ax))
        return ax
    shown = min(points.shape[1], _PANELS)
    figure, axes = new_figure(shown - 1, shown - 1, width="full", ratio=0.85, squeeze=False)
    for panel in axes.flat:
        panel.set_visible(False)
    for first, second in combinations(range(shown), 2):
        panel = axes[second - 1, first]
        panel.set_visible(True)
        _draw_pair(panel, embedding, first, second)
    if embedding.runs_ is not None:
        place = (
            "upper right" if shown > 2 else "outside upper right"
        )  # a triangle has a free corner
        figure.legend(**_name_runs(axes[0, 0]), loc=place)
    return figure


def _name_runs(ax: Axes) -> dict[str, Any]:
    """Return a legend of the embedded runs, at most ten of them, and of the mark of an end."""
    lines, labels = ax.get_legend_handles_labels()
    chosen = np.unique(np.linspace(0, len(lines) - 1, _NAMED).round().astype(int))
    half = _LETTERS // 2
    names = [n if len(n) <= _LETTERS else f"{n[:half]}…{n[-half:]}" for n in labels]
    end = ax.plot([], [], "*", color="0.4", markersize=9)[0]
    return {
        "handles": [*(lines[i] for i in chosen), end],
        "labels": [*(names[i] for i in chosen), "last snapshot"],
        "title": None if len(chosen) == len(lines) else f"{len(chosen)} of {len(lines)} runs",
    }


def _draw_pair(ax: Axes, embedding: ShownEmbedding, x: int, y: int) -> None:
    runs = embedding.runs_
    parts = [embedding.embedding_] if runs is None else runs.split(embedding.embedding_)
    labels = [""] if runs is None else runs.labels
    with_line = "-" if runs is not None else ""
    colors: Any = COLORS
    if len(parts) > len(COLORS):
        colors = colormaps[SEQUENTIAL](np.linspace(0, 1, len(parts)))
    for color, points, label in zip(colors, parts, labels, strict=False):
        look = {"color": color, "markersize": 3, "linewidth": 1}
        ax.plot(points[:, x], points[:, y], f"o{with_line}", label=label, alpha=0.8, **look)
        if runs is not None:
            ax.plot(*points[-1, [x, y]], "*", color=color, markersize=9)
    ax.set_xlabel(_axis_title(embedding, x))
    ax.set_ylabel(_axis_title(embedding, y))


def _axis_title(embedding: ShownEmbedding, index: int) -> str:
    shares = np.diff(embedding.explained_stress_, prepend=0.0)
    kind = " (time-like)" if embedding.time_like_[index] else ""
    share = "" if np.isnan(shares[index]) else f", {shares[index]:.0%} of stress"
    return f"component {index + 1}{kind}{share}"


@validate(distances=_distances, labels=checks.list_of(checks.text), ax=_axes)
def plot_dendrogram(
    distances: np.ndarray, labels: Sequence[str], *, ax: Axes | None = None
) -> Axes:
    """Draw which runs of an embedding are similar, by average linkage; return the axes.

    Args:
        distances: (runs, runs), such as `Trajectories.distances`.
        labels: A name for each run.
        ax: Axes to draw into; None for new ones.

    Returns:
        The axes.

    Raises:
        ArgumentError: There are fewer than two runs, or labels are missing.
    """
    from scipy.cluster.hierarchy import dendrogram, linkage

    if len(distances) < 2 or len(labels) != len(distances):
        reason = f"there are {len(distances)} runs"
        raise ArgumentError("labels", labels, reason, "Give a label for each of two or more runs.")
    axes: Axes = new_figure()[1] if ax is None else ax
    pairs = np.triu_indices(len(distances), 1)
    if not distances[pairs].any():
        reason = "all runs are identical"
        raise ArgumentError("distances", distances, reason, "Give runs that differ.")
    tree: Any = linkage((distances + distances.T)[pairs] / 2, "average")
    dendrogram(tree, labels=list(labels), orientation="left", ax=axes, color_threshold=0)
    axes.set_xlabel("distance at equal progress")
    return axes

"""How a fitted embedding is shown: a table, a figure, and HTML for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
from sklearn.utils.validation import check_is_fitted

from hyperribbon.core import html
from hyperribbon.core.result import frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hyperribbon.manifold.runs import Trajectories


class ShownEmbedding:
    """The table and the figure of a fitted InPCA or PCA of models."""

    embedding_: np.ndarray
    eigenvalues_: np.ndarray
    explained_stress_: np.ndarray
    time_like_: np.ndarray
    runs_: Trajectories | None = None

    def _repr_html_(self) -> str:
        """Show the embedding's first two coordinates of the models in a notebook."""
        if not hasattr(self, "embedding_"):
            return html.card(repr(self), html.note("not fitted yet"))
        shown = zip(self.eigenvalues_, self.explained_stress_, strict=True)
        rows = [
            (i + 1, value, "time-like" if value < 0 else "space-like", f"{share:.1%}")
            for i, (value, share) in enumerate(shown)
        ]
        columns = ("component", "eigenvalue", "kind", "distances held so far")
        several = self.embedding_.shape[1] > 1
        picture = html.picture(self.plot(), "coordinates of the models") if several else ""
        title = f"{type(self).__name__} of {len(self.embedding_):,} models"
        return html.card(title, f"<div>{picture}</div>", html.table(columns, rows))

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Show the embedding where scikit-learn would show its diagram."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def to_frame(self) -> pd.DataFrame:
        """Return the embedding's coordinates, one row per model, with the run where known."""
        check_is_fitted(self, "eigenvalues_")
        columns = {f"component {i + 1}": c for i, c in enumerate(self.embedding_.T)}
        table = frame(columns, "model", first=0)
        if self.runs_ is not None:
            sizes = [len(part) for part in self.runs_.split(self.embedding_)]
            table.insert(0, "run", np.repeat(np.array(self.runs_.labels, dtype=object), sizes))
        return table

    @overload
    def plot(self, ax: None = None) -> Figure: ...
    @overload
    def plot(self, ax: Axes) -> Axes: ...
    def plot(self, ax: Axes | None = None) -> Figure | Axes:
        """Draw the fitted embedding: pairs of leading coordinates, one colour per run.

        Time-like coordinates are marked; titles state the explained stress.

        Args:
            ax: Axes for the first two coordinates alone; None for a triangle of panels.

        Returns:
            The figure, or the axes that were given.
        """
        import hyperribbon  # plots is a higher layer, reached by its public name

        check_is_fitted(self, "eigenvalues_")
        return hyperribbon.plots.plot_embedding(self, ax=ax)

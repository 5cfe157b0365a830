"""Results to figures."""

from hyperribbon.plots.style import COLORS, DIVERGING, SEQUENTIAL, STYLE, new_figure

__all__ = ["COLORS", "DIVERGING", "SEQUENTIAL", "STYLE", "new_figure"]

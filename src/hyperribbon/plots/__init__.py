"""Figures of results."""

from hyperribbon.plots.charts import Bars, Chart, Curve, Level, Path, Surface
from hyperribbon.plots.embeddings import plot_dendrogram, plot_embedding
from hyperribbon.plots.interactive import draw_interactive
from hyperribbon.plots.printed import draw
from hyperribbon.plots.recorded import draw_metric, metric_chart
from hyperribbon.plots.results import (
    plot_batch_sharpness,
    plot_columns,
    plot_criticality,
    plot_density,
    plot_estimate,
    plot_fluctuations,
    plot_frame,
    plot_history,
    plot_layer_curvature,
    plot_layer_fluctuations,
    plot_overlap,
    plot_plan,
    plot_points,
    plot_prunable,
    plot_relation,
    plot_sharpness_forecast,
    plot_spectrum,
    plot_sweep,
    plot_variance_flatness,
)
from hyperribbon.plots.style import COLORS, DIVERGING, SEQUENTIAL, STYLE, label_logs, new_figure

__all__ = [
    "Bars",
    "COLORS",
    "Chart",
    "Curve",
    "DIVERGING",
    "Level",
    "Path",
    "SEQUENTIAL",
    "STYLE",
    "Surface",
    "draw",
    "draw_interactive",
    "draw_metric",
    "label_logs",
    "metric_chart",
    "new_figure",
    "plot_batch_sharpness",
    "plot_columns",
    "plot_criticality",
    "plot_dendrogram",
    "plot_density",
    "plot_embedding",
    "plot_estimate",
    "plot_frame",
    "plot_history",
    "plot_layer_curvature",
    "plot_overlap",
    "plot_plan",
    "plot_points",
    "plot_relation",
    "plot_sharpness_forecast",
    "plot_spectrum",
    "plot_prunable",
    "plot_sweep",
    "plot_fluctuations",
    "plot_layer_fluctuations",
    "plot_variance_flatness",
]

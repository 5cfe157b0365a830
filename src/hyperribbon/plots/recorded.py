"""Charts of a recorded metric over training, with its recorded limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from hyperribbon.core.checks import ArgumentError, text, validate
from hyperribbon.plots.charts import Chart, Curve
from hyperribbon.plots.printed import draw

if TYPE_CHECKING:  # it brings torch, which figures do without
    from hyperribbon.recording.trajectory import Trajectory

_MOST_CURVES = 8


def _trajectory(argument: str, value: Any) -> Any:
    if not hasattr(value, "metric_names"):
        raise ArgumentError(
            argument, value, "expected a Trajectory", "Give Trajectory.open(folder)."
        )
    return value


@validate(trajectory=_trajectory, name=text)
def draw_metric(trajectory: Trajectory, name: str, ax: Axes | None = None) -> Axes:
    """Draw a recorded metric over training and return the axes; see `metric_chart`."""
    figure = draw(metric_chart(trajectory, name), ax)
    return figure.axes[0] if ax is None else ax


@validate(trajectory=_trajectory, name=text)
def metric_chart(trajectory: Trajectory, name: str) -> Chart:
    """Return a chart of a recorded metric over training, with its limit if there is one.

    The line skips records without a measurement. A vector-valued metric, such as eigenvalues, has
    one curve for each of its first eight entries.

    Raises an ArgumentError when no record has the metric.

    Args:
        trajectory: A recorded run.
        name: A metric of it.
    """
    values = trajectory.metric(name)
    rows = values.reshape(len(values), -1)[:, :_MOST_CURVES]
    several = rows.shape[1] > 1
    marks = []
    for column, row in enumerate(rows.T):
        x, y = _finite_points(trajectory.steps, row)
        if len(x):
            marks.append(Curve(x, y, f"{name} {column + 1}" if several else name, "both"))
    base = name.removesuffix(".eigenvalues")
    caption = ""
    if f"{base}.limit" in trajectory.metric_names():
        x, y = _finite_points(trajectory.steps, trajectory.metric(f"{base}.limit"))
        varies = len(y) > 0 and bool(np.ptp(y) > 1e-9 * abs(y).max())
        label = "stability limit at each record" if varies else "stability limit"
        marks.append(Curve(x, y, label, "line", dashed=True))
        caption = (
            "Dashed: the largest curvature at which the optimiser's step is stable on a quadratic, "
            "2/η for plain SGD and 2(1+β)/η with momentum β"
            + (", for the learning rate η at each record." if varies else ".")
        )
    missing = int(np.isnan(rows[:, 0]).sum())
    if missing:
        caption += f" Not measured at {missing} of {len(rows)} records."
    return Chart(name, f"{name} over training", "step", name, tuple(marks), caption=caption.strip())


def _finite_points(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    there = np.isfinite(values)
    return steps[there], values[there]

"""The same chart drawn twice shows the same numbers."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperribbon.plots import Bars, Chart, Curve, Level, Path, Surface, draw, draw_interactive
from hyperribbon.plots.style import label_logs, new_figure

HOSTILE = "<b>bold</b> $x_1$"
X = np.linspace(1, 2, 5)


def _charts() -> list[Chart]:
    curve = Curve(X, X**2, HOSTILE, "both", low=X**2 - 0.1, high=X**2 + 0.1)
    return [
        Chart("curve", HOSTILE, HOSTILE, "y", (curve, Level(2.0, "level")), log_y=True),
        Chart(
            "bars",
            "t",
            "x",
            "",
            (Bars((HOSTILE, "b"), X[:2], X[:2] / 9, colors=(1, 2)), Level(1.0, "level", "x")),
        ),
        Chart("plane", "t", "x", "y", (Surface(X, X, np.outer(X, X), "z"),)),
        Chart("path", "t", "x", "y", (Path(np.stack([X, X, X], 1), "p", X, "time", ("a",) * 5),)),
    ]


@pytest.mark.parametrize("chart", _charts(), ids=lambda chart: chart.name)
def test_a_chart_is_drawn_in_print_and_in_the_browser(chart, tmp_path):
    draw(chart).savefig(tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()
    content = json.loads(draw_interactive(chart).to_json())
    assert len(content["data"]) >= 1
    assert "<b>" not in json.dumps([content["data"], content["layout"].get("xaxis", {})])


@given(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=20))
@settings(max_examples=15, deadline=None)
def test_both_drawings_hold_the_values_of_the_curve(values):
    y = np.array(values)
    chart = Chart("c", "t", "x", "y", (Curve(np.arange(len(y)), y, "measured"),))
    axis = draw(chart).axes[0]
    np.testing.assert_array_equal(axis.lines[0].get_ydata(), y)
    np.testing.assert_array_equal(np.asarray(draw_interactive(chart).data[0].y), y)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (180, 2200, ["200", "500", "1000", "2000"]),
        (5.8, 11.5, ["6", "7", "8", "9", "10"]),
        (1.5e-4, 1.5e-3, None),  # powers of ten, few of them
        (1e-3, 1e3, None),  # long enough for powers of ten alone
    ],
)
def test_short_logarithmic_axes_have_few_labels_that_do_not_touch(low, high, labels):
    figure, axis = new_figure()
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    label_logs(figure)
    figure.draw_without_rendering()
    shown = [
        label
        for label in [*axis.get_xticklabels(), *axis.get_xticklabels(minor=True)]
        if label.get_text() and low <= label.get_position()[0] <= high
    ]
    texts = [label.get_text() for label in shown]
    assert texts == labels if labels else all("10^" in text for text in texts)
    boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.x0)
    assert len(boxes) >= 3
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))

"""Bands, levels and bars are where their numbers are, in print and in the browser."""

import numpy as np
import pandas as pd
import torch
from matplotlib.colors import to_hex

from hyperribbon.core.result import Result
from hyperribbon.core.spectral_results import Spectrum
from hyperribbon.plots import COLORS, Bars, Chart, Curve, Level, draw, draw_interactive
from hyperribbon.plots.results import plot_frame
from hyperribbon.subnetworks import Sweep

X = np.array([1.0, 2.0, 4.0])


def chart(*marks):
    return Chart("c", "t", "x", "y", marks)


def test_a_band_holds_its_low_and_high_edges():
    low, high = X - 0.5, 2 * X
    drawn = chart(Curve(X, X, "a", low=low, high=high))
    edges = {(x, y) for ys in (low, high) for x, y in zip(X, ys, strict=True)}
    (band,) = draw(drawn).axes[0].collections
    assert edges <= {tuple(point) for point in band.get_paths()[0].vertices}
    outline = draw_interactive(drawn).data[0]
    assert list(zip(outline.x, outline.y, strict=True)) == [
        *zip(X, high, strict=True),
        *reversed(list(zip(X, low, strict=True))),
    ]


def test_the_band_of_a_sweep_is_two_standard_errors_wide():
    fractions, values, errors = torch.tensor([[0.2, 0.5], [0.9, 0.6], [0.01, 0.03]])
    axes = Sweep(fractions, fractions, values, errors, values).plot()
    (band,) = axes.collections
    found = band.get_paths()[0].vertices
    for x, y, error in zip(fractions, values, errors, strict=True):
        across = found[np.isclose(found[:, 0], x)][:, 1]
        np.testing.assert_allclose([across.min(), across.max()], [y - 2 * error, y + 2 * error])


def test_levels_cross_the_axis_that_they_name():
    for axis in ("x", "y"):
        drawn = chart(Curve(X, X, "a"), Level(3.0, "limit", axis))
        line = draw(drawn).axes[0].lines[1]
        trace = draw_interactive(drawn).data[1]
        for values in ((line.get_xdata(), line.get_ydata()), (trace.x, trace.y)):
            across = values[0] if axis == "x" else values[1]
            along = values[1] if axis == "x" else values[0]
            assert set(across) == {3.0}
            assert len(set(along)) == 2


def test_every_bar_stands_beside_its_name_the_first_on_top():
    bars = Bars(("first", "second", "third"), np.array([5.0, 1.0, 3.0]), colors=(2, 0, 1))
    axis = draw(chart(bars)).axes[0]
    names = {
        tick: label.get_text()
        for tick, label in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)
    }
    found = {
        names[round(bar.get_y() + bar.get_height() / 2)]: (
            bar.get_width(),
            to_hex(bar.get_facecolor()).upper(),
        )
        for bar in axis.patches
    }
    expected = {"first": (5.0, 2), "second": (1.0, 0), "third": (3.0, 1)}
    assert found == {name: (value, COLORS[i]) for name, (value, i) in expected.items()}
    heights = {name: tick for tick, name in names.items()}
    assert heights["first"] > heights["second"] > heights["third"]
    trace = draw_interactive(chart(bars)).data[0]
    assert dict(zip(trace.y, trace.x, strict=True)) == {"first": 5.0, "second": 1.0, "third": 3.0}


def test_values_equal_up_to_rounding_have_a_logarithmic_axis(tmp_path):
    for value in (5.0, 3.7, 1e-3):
        y = np.array([value, np.nextafter(value, 1e9), value])
        figure = draw(Chart("c", "t", "x", "y", (Curve(X, y, "a"),), log_y=True))
        figure.savefig(tmp_path / "drawn.svg")
        low, high = figure.axes[0].get_ylim()
        assert low < value < high and high / low > 2


def test_eigenvalues_that_did_not_converge_are_hollow():
    values, done = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([True, False, True])
    axes = Spectrum(values, None, 0.1 * values, 9, "lanczos", done).plot()
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "w"]
    assert [list(line.get_ydata()) for line in hollow] == [[2.0]]


def test_the_band_of_a_table_reaches_two_standard_errors_to_both_sides():
    class Table(Result):
        def to_frame(self):
            return pd.DataFrame({"x": X, "value": 3 * X, "stderr": X / 4})

    (band,) = plot_frame(Table()).collections
    points = {tuple(point) for point in band.get_paths()[0].vertices}
    assert {(x, factor * x) for x in X for factor in (2.5, 3.5)} <= points

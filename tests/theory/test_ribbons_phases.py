import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory.ribbons import (
    Ribbon,
    count_dimensions,
    phase_diagram,
    slope,
    smallest_model,
)

SLOPES = [0.05, 0.1, 0.2, 0.5, 1.0]
STEPS = [1, 32, 562, 10_000]


def test_figure_8_dimensions():
    diagram = phase_diagram(50, STEPS, SLOPES, [3.0, 10.0])
    expected = [
        [[42, 29, 15, 6, 3], [27, 30, 17, 7, 4], [22, 25, 24, 10, 5], [22, 23, 27, 13, 7]],
        [[42, 29, 15, 6, 3], [2, 2, 2, 2, 2], [2, 3, 3, 3, 3], [2, 3, 4, 4, 4]],
    ]
    np.testing.assert_array_equal(diagram.dimensions.transpose(0, 2, 1), expected)
    np.testing.assert_array_equal(np.ceil(diagram.interpolated - 1e-9), diagram.dimensions)


def test_interpolated_dimensions_are_where_the_partial_sums_reach_the_fraction():
    spectrum = np.array([[5.0, 3.0, 1.5, 0.5], [4.0, 4.0, 1.0, 1.0]])
    found = count_dimensions(spectrum, lambda rows, at: spectrum[rows, :, None] * np.eye(4), 0.9)
    np.testing.assert_array_equal(found.dimensions, [3, 3])
    # Sums of 8 after two and 9.5 after three eigenvalues reach 9 two thirds of the way.
    np.testing.assert_allclose(found.interpolated, [2 + 1 / 1.5, 3.0])


def test_ridge_lies_where_training_reaches_the_last_eigenvalue():
    slopes = np.linspace(0.1, 0.3, 9)
    steps = np.unique(np.round(np.logspace(0, 7, 200)))
    diagram = phase_diagram(50, steps, slopes, 3.0)
    # Below c = 0.1 the most dimensions are those of the initial points, at T = 1.
    ridge = np.log(steps[diagram.interpolated.argmax(axis=1)])
    tilt, offset = np.polyfit(slopes, ridge, 1)
    assert tilt == pytest.approx(49.1, rel=0.03) and offset == pytest.approx(-0.93, abs=0.4)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 80),
    c=st.floats(0, 1.5),
    steps=st.integers(1, 10**6),
    ratio=st.floats(0.05, 50),
    fraction=st.floats(0.5, 0.999),
    alpha=st.floats(0.1, 1.9),
)
def test_certified_count_is_the_dense_count(n, c, steps, ratio, fraction, alpha):
    ribbon = Ribbon.exponential(n, c, sigma_star=ratio, alpha=alpha, steps=steps)
    sums = np.cumsum(np.maximum(ribbon.spectrum(), 0))
    goal = fraction * sums[-1]
    if np.abs(sums / goal - 1).min() < 1e-9:
        return  # a tie within rounding has two right answers
    dense = int((sums < goal).sum()) + 1
    found = phase_diagram(n, [steps], [c], ratio, fraction=fraction, alpha=alpha)
    assert found.dimensions[0, 0] == dense
    assert ribbon.dimensions(fraction) == dense


def test_the_block_does_not_grow_with_n():
    small = phase_diagram(100, STEPS, [0.2, 0.5], 3.0)
    large = phase_diagram(1600, STEPS, [0.2, 0.5], 3.0)
    assert large.kept.max() <= small.kept.max()
    np.testing.assert_array_equal(small.dimensions, large.dimensions)


def test_targets_outside_the_span_of_the_data_do_not_count():
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((30, 6)), rng.standard_normal(30)
    U = np.linalg.qr(X)[0]
    inside = U @ (U.T @ y)
    setting = {"steps": [1, 10, 200], "ratio": [0.5, 3.0, 20.0]}
    whole, part = (phase_diagram(data=(X, goal), **setting) for goal in (y, inside))
    np.testing.assert_allclose(whole.interpolated, part.interpolated, rtol=1e-9)
    assert np.linalg.norm(inside) < 0.7 * np.linalg.norm(y)


def test_truncation_of_any_covariance():
    rng = np.random.default_rng(0)
    factor = rng.standard_normal((30, 30)) * np.exp(-0.3 * np.arange(30))
    matrix = factor.T @ factor
    sums = np.cumsum(np.linalg.eigvalsh(matrix)[::-1])
    found = count_dimensions(
        np.diagonal(matrix)[None], lambda _, at: matrix[np.ix_(at[0], at[0])][None], 0.9, start=2
    )
    assert found.dimensions[0] == (sums < 0.9 * sums[-1]).sum() + 1


def test_boundary_separates_the_phases():
    ratios = np.geomspace(1, 30, 25)
    diagram = phase_diagram(50, [32, 562, 10_000], [0.1, 0.5], ratios)
    edge = diagram.boundary(5)
    for i, c in enumerate(diagram.slopes):
        for j, T in enumerate(diagram.steps):
            above = phase_diagram(50, [T], [c], edge[i, j] * 1.15).dimensions[0, 0]
            below = phase_diagram(50, [T], [c], edge[i, j] / 1.15).dimensions[0, 0]
            assert above <= 5 < below
    with pytest.raises(ArgumentError, match="several ratios"):
        phase_diagram(50, [10], [0.1], 3.0).boundary(3)


def test_smallest_model_is_the_limit_of_many_samples():
    assert smallest_model(0.5, 3.0, 562) == smallest_model(0.5, 3.0, 562, n=400)
    assert smallest_model(0.5, 3.0, 562, n=50) == 10
    assert smallest_model(0.5, 30.0, 562) < smallest_model(0.5, 1.0, 562)


def test_slope_with_its_uncertainty():
    rng = np.random.default_rng(1)
    exact = slope(np.exp(-0.3 * np.arange(60)))
    assert exact.value == pytest.approx(0.3) and exact.stderr < 1e-12 and exact.r_squared > 0.999
    np.testing.assert_allclose(exact.line(), np.exp(-0.3 * np.arange(60)))
    misses = []
    for _ in range(200):
        noise = np.convolve(rng.standard_normal(84), np.ones(5) / 5, "valid")
        values = np.exp(-0.3 * np.arange(80) + 0.2 * noise)
        fit = slope(values)
        misses.append((fit.value - 0.3) / fit.stderr)
    # Sorting shifts the line a little; the error bars must still be of the right size.
    assert 0.6 < np.std(misses) < 1.7
    cut = slope(np.append(np.exp(-0.3 * np.arange(20)), np.zeros(30)))
    assert (cut.first, cut.last) == (0, 20)
    with pytest.raises(ArgumentError, match="at least 6"):
        slope(np.ones(3))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((50, [0], [0.1], 3.0), "integers, 1 or more"),
        ((50, [10], [-0.1], 3.0), "slopes=.*from 0"),
        ((50, [10], [0.1], 0.0), "ratio=.*positive"),
        ((0, [10], [0.1], 3.0), "n=0"),
    ],
)
def test_bad_grids_are_named(arguments, match):
    with pytest.raises(ArgumentError, match=match):
        phase_diagram(*arguments)

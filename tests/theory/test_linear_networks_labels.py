"""Labels, singular values and the errors for bad input."""

import numpy as np
import pytest

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory import linear_networks as ln


def one_hot(labels, classes):
    return np.eye(classes)[labels].T


def test_solution_singular_values_are_those_of_the_least_squares_map():
    rng = np.random.default_rng(0)
    X = ln.whiten(rng.standard_normal((12, 80)), 1.7).inputs
    Y = one_hot(rng.integers(0, 4, 80), 4)
    least_squares = np.linalg.lstsq(X.T, Y.T, rcond=None)[0].T
    expected = np.linalg.svd(least_squares, compute_uv=False) ** (1 / 3)
    assert np.allclose(ln.solution_singular_values(X, Y, 3), expected, rtol=1e-12)


def test_both_forms_agree_when_the_labels_can_be_interpolated():
    rng = np.random.default_rng(1)
    X = ln.whiten(rng.standard_normal((90, 60)), 1.7).inputs
    Y = one_hot(rng.integers(0, 4, 60), 4)
    general = ln.solution_singular_values(X, Y, 4)
    assert np.allclose(general, ln.solution_singular_values(X, Y, 4, "interpolating"), rtol=1e-12)
    sharpness = ln.balanced_eigenvalues(general, 4, len(X), 4, 1.7)[0]
    proportions = ln.label_proportions(Y)
    assert ln.label_sharpness(proportions, 4, 1.7) == pytest.approx(sharpness, rel=1e-12)
    assert np.allclose(np.sort(np.linalg.svd(Y, compute_uv=False) ** 2 / 60), np.sort(proportions))


def test_the_interpolating_form_is_an_upper_bound_when_they_cannot():
    rng = np.random.default_rng(2)
    X = ln.whiten(rng.standard_normal((12, 80))).inputs
    Y = one_hot(rng.integers(0, 4, 80), 4)
    general = ln.solution_singular_values(X, Y, 4)
    assert np.all(general < ln.solution_singular_values(X, Y, 4, "interpolating"))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_balanced_eigenvalues_follow_the_printed_quotient(depth):
    singular = np.array([1.3, 0.8, 0.4])
    squares = singular**2
    quotient = np.subtract.outer(squares**depth, squares**depth) / (
        np.subtract.outer(squares, squares) + np.eye(3)
    )
    quotient[np.diag_indices(3)] = depth * squares ** (depth - 1)
    predicted = ln.balanced_eigenvalues(singular, depth, 3, 3, 2.0)
    assert np.allclose(predicted, 4 * np.sort(quotient.ravel())[::-1], rtol=1e-12)


def test_balance_defect_of_layers_out_of_balance():
    W1 = np.diag([2.0, 1.0])
    assert ln.balance_defect([W1, W1]) == 0
    assert ln.balance_defect([W1, np.diag([2.0, 0.0])]) == pytest.approx(1 / np.sqrt(17))
    assert ln.balance_defect([W1]) == 0
    assert ln.balance_defect([np.zeros((2, 2)), np.zeros((2, 2))]) == 0


def test_bad_input_is_explained():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((6, 20))
    flat = np.vstack([X, np.zeros((2, 20))])
    Y = one_hot(rng.integers(0, 3, 20), 3)
    white = ln.whiten(X).inputs
    with pytest.raises(ArgumentError, match="8 features span only 6 directions"):
        ln.solution_singular_values(flat, Y, 2)
    with pytest.raises(ArgumentError, match="is not σx² I"):
        ln.shallow_eigenvectors(np.ones((2, 6)), np.ones((3, 2)), X)
    with pytest.raises(ArgumentError, match="one-hot"):
        ln.label_proportions(Y * 0.5)
    with pytest.raises(ArgumentError, match="one-hot"):
        ln.label_proportions(np.vstack([Y, Y]))
    with pytest.raises(ArgumentError, match="add up to 1"):
        ln.label_sharpness([0.5, 0.2], 3)
    with pytest.raises(ArgumentError, match=r"proportions.*NaN"):
        ln.label_sharpness([np.nan, 0.2], 3)
    with pytest.raises(ArgumentError, match="takes 5 inputs, but layer 1 has 4 outputs"):
        ln.ntk([np.ones((4, 6)), np.ones((2, 5))], white)
    with pytest.raises(ArgumentError, match="NaN or infinite"):
        ln.trace([np.full((2, 6), np.nan)])
    with pytest.raises(ArgumentError, match="NaN or infinite"):
        ln.ntk([np.ones((2, 6))], np.where(X > 1, np.nan, X))
    with pytest.raises(ArgumentError, match="first layer takes 6 inputs"):
        ln.trace([np.ones((2, 6))], X[:5])
    with pytest.raises(ArgumentError, match="at most 3 finite numbers"):
        ln.balanced_eigenvalues([1, 2, 3, 4], 2, 5, 3)
    with pytest.raises(ArgumentError, match="narrowest layer has width 3"):
        ln.sample_balanced_weights((5, 3, 4), [1.0, 2.0], rng)
    with pytest.raises(ArgumentError, match="depth"):
        ln.label_sharpness([1.0], 0)

"""Ribbons of short training, Gram matrices over outputs, and what is no row of eigenvalues."""

import mpmath
import numpy as np
import pytest

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory.ribbons import Ribbon, slope
from hyperribbon.theory.ribbons.geometric_sums import covariances


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize("steps", [2, 7, 400, 3000])
@pytest.mark.parametrize("alpha", [1e-9, 1e-6, 1e-3, 0.3, 1.7])
def test_covariances_keep_their_accuracy_at_small_times(steps, alpha):
    """The centred sums agree with 60 digits, entry by entry, however small αT is."""
    rates = alpha * np.array([1.0, 0.7, 0.5, 1e-2, 1e-3, 1e-6])
    with mpmath.workdps(60):
        powers = [[(1 - mpmath.mpf(float(x))) ** t for t in range(steps)] for x in rates]
        means = [mpmath.fsum(p) / steps for p in powers]
        both = list(zip(powers, means, strict=True))
        exact = np.array(
            [[float(mpmath.fdot(p, q) / steps - m * k) for q, k in both] for p, m in both]
        )
    # Terms of at most 1 are left with 1/48 or more of themselves: about 50 roundings of 40 sums.
    np.testing.assert_allclose(covariances(rates, steps), exact, rtol=2e-12)


def test_ribbons_of_short_training_have_no_noise_of_rounding():
    """Without spread of the start P is one outer product of rates to first order, for αT → 0."""
    targets = np.array([1.0, 0.5, 0.2])
    eigenvalues = np.array([1.0, 0.6, 0.3])
    ribbon = Ribbon(eigenvalues, targets, 0.0, 1e-9, 10)
    drift = 1e-9 * eigenvalues * targets
    expected = np.outer(drift, drift) * np.var(np.arange(10))
    np.testing.assert_allclose(ribbon.P, expected, rtol=1e-7)  # next order: αT = 1e-8
    assert ribbon.dimensions(0.99) == 1


def test_a_gram_matrix_over_samples_and_outputs_counts_samples(rng):
    X, y = rng.standard_normal((12, 5)), rng.standard_normal((12, 3))
    shared = Ribbon.from_kernel(X @ X.T, y, 0.4, 0.1, 9)
    whole = Ribbon.from_kernel(np.kron(X @ X.T, np.eye(3)), y, 0.4, 0.1, 9)
    np.testing.assert_allclose(whole.spectrum(), shared.spectrum(), rtol=1e-9, atol=1e-12)


def test_a_data_matrix_is_not_a_row_of_eigenvalues(rng):
    with pytest.raises(ArgumentError, match="eigenvalues"):
        slope(rng.standard_normal((30, 20)))

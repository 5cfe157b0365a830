"""How far a right prediction is from a covariance that was measured on a few moments."""

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from hyperribbon import noise
from hyperribbon.noise.stationary import LeadingCovariance


@pytest.mark.parametrize("size", [1, 3])
def test_it_is_the_deviation_of_a_sample_covariance(size):
    """Of n independent normal moments: ‖S − I‖ has the mean square (k² + k)/n."""
    unit = np.eye(size)
    predicted = LeadingCovariance(
        torch.eye(4, size, dtype=torch.float64), np.ones(size), unit, unit, 0.1, "continuous"
    )
    rng = np.random.default_rng(0)
    found = [noise.compare_covariance(rng.normal(size=(400, 4)), predicted) for _ in range(60)]
    expected = np.sqrt((size**2 + size) / 400 / size)
    seen = np.sqrt(np.mean([entry.discrepancy**2 for entry in found]))
    told = np.mean([entry.sampling_error for entry in found])
    assert seen == pytest.approx(expected, rel=0.25)  # 60 repetitions: 9% for one direction
    assert told == pytest.approx(expected, rel=0.1)


def test_slow_and_fast_directions_multiply_their_memories():
    """AR(1) of memory φ beside white noise: n_ij = n (1 − φ_iφ_j)/(1 + φ_iφ_j)."""
    unit, moments, memory = np.eye(2), 4000, 0.95
    predicted = LeadingCovariance(
        torch.eye(2, dtype=torch.float64), np.ones(2), unit, unit, 0.1, "continuous"
    )
    rng = np.random.default_rng(0)
    found = []
    for _ in range(40):
        slow, fast = rng.normal(size=(2, moments))
        slow[1:] *= np.sqrt(1 - memory**2)
        rows = np.stack([lfilter([1.0], [1.0, -memory], slow), fast], axis=1)
        found.append(noise.compare_covariance(rows, predicted))
    variances = 2 * (1 + memory**2) / (1 - memory**2) + 2 + 2 * 1  # slow, fast, both off-diagonal
    expected = np.sqrt(variances / moments / 2)
    seen = np.sqrt(np.mean([entry.discrepancy**2 for entry in found]))
    told = np.mean([entry.sampling_error for entry in found])
    assert seen == pytest.approx(expected, rel=0.35)  # 40 repetitions: 11%
    assert told == pytest.approx(expected, rel=0.15)

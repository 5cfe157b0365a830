"""How far a right prediction is from a covariance that was measured on a few moments."""

import numpy as np
import pytest
import torch

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

"""A model of weight two is as good as two models."""

import numpy as np
import pytest

from hyperribbon.manifold import PCA


def test_whole_weights_are_repetitions():
    X = np.random.default_rng(0).normal(size=(5, 4))
    counts = np.array([1, 3, 1, 2, 1])
    weighted = PCA(3).fit(X, sample_weight=counts)
    repeated = PCA(3).fit(np.repeat(X, counts, axis=0))
    np.testing.assert_allclose(weighted.mean_, repeated.mean_, atol=1e-12)
    np.testing.assert_allclose(weighted.components_, repeated.components_, atol=1e-10)
    np.testing.assert_allclose(weighted.transform(X), repeated.transform(X), atol=1e-10)
    # Weights sum up to the number of models, 5, and repetitions to 8.
    assert weighted.eigenvalues_ / 5 == pytest.approx(repeated.eigenvalues_ / 8)

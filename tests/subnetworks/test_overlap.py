"""The overlap ratio, its expectation and its z-score."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

import hyperribbon as hr
from hyperribbon.core import ArgumentError


def _mask(chosen: np.ndarray) -> hr.Mask:
    return hr.Mask({"weight": torch.from_numpy(chosen)})


@given(
    size=st.integers(2, 60), k1=st.integers(1, 60), k2=st.integers(0, 60), seed=st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_moments_are_those_of_the_hypergeometric_law(size, k1, k2, seed):
    k1, k2 = min(k1, size), min(k2, size)
    rng = np.random.default_rng(seed)
    first, second = (rng.permutation(size) < k for k in (k1, k2))
    result = hr.overlap_ratio(_mask(first), _mask(second))
    support = np.arange(size + 1)
    weights = hypergeom.pmf(support, size, k1, k2)
    mean = weights @ support
    std = np.sqrt(max(weights @ support**2 - mean**2, 0.0))
    assert result.shared == (first & second).sum()
    assert result.ratio == pytest.approx(result.shared / k1)
    assert result.expected == pytest.approx(mean / k1)
    assert result.stderr == pytest.approx(std / k1, abs=1e-6)
    if result.stderr > 0:
        assert result.z == pytest.approx((result.shared - mean) / std, abs=1e-9)


def test_independent_selections_have_a_standard_normal_z():
    rng = np.random.default_rng(0)
    zs = [
        hr.overlap_ratio(*(_mask(rng.permutation(2000) < 600) for _ in range(2))).z
        for _ in range(400)
    ]
    assert np.mean(zs) == pytest.approx(0, abs=4 / 20)
    assert np.std(zs) == pytest.approx(1, abs=4 / (2 * 400) ** 0.5)


def test_identical_selections_and_errors():
    mask = _mask(np.arange(100) < 20)
    same = hr.overlap_ratio(mask, mask)
    assert same.ratio == 1
    assert same.z > 9
    full = hr.overlap_ratio(_mask(np.ones(9, bool)), _mask(np.ones(9, bool)))
    assert (full.ratio, full.z) == (1.0, 0.0)
    with pytest.raises(ArgumentError, match="mask is empty"):
        hr.overlap_ratio(_mask(np.zeros(9, bool)), _mask(np.ones(9, bool)))
    with pytest.raises(ArgumentError, match="same parameters"):
        hr.overlap_ratio(mask, hr.Mask({"other": torch.ones(3, dtype=torch.bool)}))

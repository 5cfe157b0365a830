import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.spectral_results import Estimate
from hyperribbon.spectra import effective_rank, eigsh, summarize

positive = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30)


def test_equal_eigenvalues_have_every_rank_equal_to_their_number():
    summary = summarize(torch.full((7,), 3.0))
    for rank in (summary.effective_rank, summary.participation_ratio, summary.stable_rank):
        assert rank == pytest.approx(7)
    assert summary.dimensions(0.95) == 7
    assert summary.slope == pytest.approx(0, abs=1e-12)


def test_formulas_by_hand():
    summary = summarize(np.array([1.0, 4.0, 3.0]))
    shares = np.array([0.5, 0.375, 0.125])
    assert summary.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert summary.participation_ratio == pytest.approx(64 / 26)
    assert summary.stable_rank == pytest.approx(26 / 16)
    assert summary.trace_ratio(2) == pytest.approx(7 / 8)
    assert [summary.dimensions(f) for f in (0.5, 0.51, 0.875, 0.9, 1.0)] == [1, 2, 2, 3, 3]


def test_slope_of_a_sloppy_spectrum():
    assert summarize(np.exp(-0.7 * np.arange(20))).slope == pytest.approx(0.7)
    with_zeros = np.concatenate([np.exp(-0.7 * np.arange(20)), np.zeros(5)])
    assert summarize(with_zeros).slope == pytest.approx(0.7)
    assert np.isnan(summarize(np.array([2.0, 0.0])).slope)


def test_a_given_trace_counts_what_is_not_listed():
    spectrum = eigsh(torch.diag(torch.tensor([5.0, 3.0, 1.0, 1.0])), 2)
    assert summarize(spectrum, trace=10.0).trace_ratio(2) == pytest.approx(0.8)
    assert summarize(spectrum, Estimate(10.0, 0.1, False, 5)).trace_ratio(1) == pytest.approx(0.5)


def test_negative_eigenvalues_are_ordered_by_magnitude():
    summary = summarize(np.array([1.0, -3.0, 2.0]))
    assert summary.eigenvalues.tolist() == [-3.0, 2.0, 1.0]
    assert summary.trace == 0
    assert np.isnan(summary.trace_ratio(1))


def test_zeros():
    summary = summarize(np.zeros(4))
    assert summary.effective_rank == summary.participation_ratio == summary.stable_rank == 0
    assert summary.dimensions() == 0


@settings(max_examples=100, deadline=None)
@given(positive, st.floats(1e-3, 1e3))
def test_ranks_are_bounded_ordered_and_free_of_scale(values, scale):
    values = np.array(values)
    summary, scaled = summarize(values), summarize(scale * values)
    ranks = (summary.stable_rank, summary.participation_ratio, summary.effective_rank)
    assert min(ranks) >= 1 - 1e-9
    assert max(ranks) <= len(values) * (1 + 1e-9)
    assert summary.participation_ratio <= summary.effective_rank * (1 + 1e-9)
    assert scaled.effective_rank == pytest.approx(summary.effective_rank)
    assert scaled.participation_ratio == pytest.approx(summary.participation_ratio)
    assert scaled.stable_rank == pytest.approx(summary.stable_rank)


@settings(max_examples=50, deadline=None)
@given(positive, st.floats(0.01, 1))
def test_dimensions_are_the_least_that_suffice(values, fraction):
    summary = summarize(np.array(values))
    d = summary.dimensions(fraction)
    assert summary.trace_ratio(d) >= fraction - 1e-9
    assert d == 1 or summary.trace_ratio(d - 1) < fraction + 1e-9


def test_spread_of_a_vector_over_coordinates():
    vector = torch.zeros(100)
    vector[:25] = 0.2
    assert effective_rank(vector**2) == pytest.approx(25)


@pytest.mark.parametrize("bad", [np.array([]), np.array([1.0, np.nan])])
def test_bad_eigenvalues(bad):
    with pytest.raises(ArgumentError, match="eigenvalues"):
        summarize(bad)


def test_bad_arguments():
    summary = summarize(np.ones(3))
    with pytest.raises(ArgumentError, match="k=4"):
        summary.trace_ratio(4)
    with pytest.raises(ArgumentError, match="fraction"):
        summary.dimensions(1.5)

"""Summaries of spectra with eigenvalues of both signs, by hand."""

import numpy as np
import pytest

from hyperribbon.spectra import summarize


def test_negative_eigenvalues_lower_the_participation_ratio():
    summary = summarize(np.array([-1.0, 3.0]))
    assert summary.participation_ratio == pytest.approx((3 - 1) ** 2 / (9 + 1))
    assert summarize(np.array([-2.0, 2.0])).participation_ratio == 0


def test_ranks_go_by_magnitude():
    summary = summarize(np.array([-3.0, 1.0]))
    shares = np.array([0.75, 0.25])
    assert summary.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert summary.stable_rank == pytest.approx(10 / 9)
    assert summary.dimensions(0.7) == 1

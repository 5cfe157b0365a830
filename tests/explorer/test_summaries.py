"""The list of runs: its search, and its small curves."""

import base64
import re

import numpy as np
import pytest

from hyperribbon.application.explorer.runs.summaries import RunSummary, sparkline


def points(series):
    """Return the places of a curve's points, right and up."""
    picture = base64.b64decode(sparkline(series, "red").partition(",")[2]).decode()
    (text,) = re.findall(r'points="([^"]*)"', picture)
    return np.array([[float(x), -float(y)] for x, y in (p.split(",") for p in text.split())])


def test_larger_values_stand_higher_and_later_ones_further_right():
    places = points((np.array([0, 10, 40]), np.array([3.0, 1.0, 2.0])))
    right, up = (places - places[[0, 1], [0, 1]]).T
    assert right / right[2] == pytest.approx([0, 0.25, 1], abs=0.01)
    assert up / up[0] == pytest.approx([1, 0, 0.5], abs=0.01)


def test_many_points_keep_their_ends():
    x = np.arange(1000)
    places = points((x, x**2))
    assert len(places) <= 150
    assert places[0, 1] == places[:, 1].min()
    assert places[-1, 1] == places[:, 1].max()


def test_a_search_matches_runs_that_have_all_of_its_words():
    run = RunSummary("a", "digits", "recording", "running", 0.0, "1 kB", "9 records", {}, ("loss",))
    assert run.matches("Digits loss", "all") and run.matches("", "recording")
    assert not run.matches("digits accuracy", "all")
    assert not run.matches("digits", "inspection")

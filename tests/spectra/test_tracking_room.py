"""How far an operator may move before a tracker looks around again."""

from types import SimpleNamespace

import pytest
import torch

from hyperribbon.spectra import Tracker


def test_it_looks_again_before_a_wanted_and_an_unwanted_eigenvalue_can_meet():
    """An operator that moves by d moves every eigenvalue by d at most, both towards each other."""
    tracker = Tracker(2)
    products = SimpleNamespace(whole=lambda rows: rows)
    search = SimpleNamespace(
        basis=SimpleNamespace(products=products), runner_up=lambda: (torch.zeros(1, 5), 3.0)
    )
    tracker._look_ahead(search, None)
    assert tracker._room == 1.5
    tracker._look_ahead(search, 0.4)
    assert tracker._room == pytest.approx(1.1)

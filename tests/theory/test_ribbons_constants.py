"""Constants of the bounds, by hand: a bound that is too weak holds as well as the right one."""

import numpy as np
import pytest

from hyperribbon.theory.ribbons import Ribbon, bounds


def test_the_base_of_lemma_1():
    """exp(π²/(2 ln(8κ − 4))) of a condition number κ."""
    for condition, inside in ((1.0, 4.0), (2.0, 12.0), (100.0, 796.0)):
        base = np.exp(np.pi**2 / (2 * np.log(inside)))
        assert bounds.decay_base(np.array([3.0, 3.0 / condition])) == pytest.approx(base)


def test_the_bound_of_lemma_1_at_its_first_indices():
    ribbon = Ribbon.exponential(4, np.log(5.0) / 3, steps=20)  # condition number 5
    rho = np.exp(np.pi**2 / (2 * np.log(36.0)))
    upper = bounds.target_decay_bound(ribbon).upper
    assert upper[0] == pytest.approx(1.0)
    assert upper[1] == pytest.approx(4 * rho**-2 / (1 + rho**-4) ** 2)

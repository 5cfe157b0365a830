"""How many samples of each class a share of them is."""

import numpy as np
import pytest

import hyperribbon as hr


@pytest.mark.parametrize(
    ("first", "limit", "counts"),
    [
        (0.10, 105, [15, *[10] * 9]),  # of 10.5 each, ten halves go to class 0
        (0.37, 50, [23, *[3] * 9]),  # of 3.5 each
        (0.10, 100, [10] * 10),
    ],
)
def test_classes_get_their_share_rounded_down_and_the_first_one_the_rest(first, limit, counts):
    shares = [first, *[(1 - first) / 9] * 9]
    targets = hr.load_data("digits", limit=limit, proportions=shares).targets
    assert np.bincount(targets).tolist() == counts

"""Differences of two networks: paired by groups, with distances of predictions as elsewhere."""

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection.comparison.result import paired
from hyperribbon.manifold import bhattacharyya

SHARES = np.full(4, 0.25)


def test_what_a_group_does_to_both_networks_cancels():
    groups = np.array([1.0, 20.0, 3.0, 40.0])
    found = paired("x", "x", groups, groups - np.array([1.0, 1.1, 0.9, 1.0]), SHARES)
    assert found.difference == pytest.approx(1.0)
    assert found.stderr == pytest.approx(np.std([1.0, 1.1, 0.9, 1.0], ddof=1) / 2)
    assert found.lower == "b"
    assert found.agreeing == 4


@pytest.mark.parametrize(("shift", "lower"), [(-9.0, "a"), (-0.1, None), (0.1, None), (9.0, "b")])
def test_the_lower_one_is_named_where_the_interval_leaves_zero(shift, lower):
    steps = shift + np.array([-1.0, 1.0, -1.0, 1.0])
    assert paired("x", "x", 5 + steps, np.full(4, 5.0), SHARES).lower == lower


def test_rounding_widens_the_interval():
    steps = np.array([1.0, 1.01, 0.99, 1.0])
    assert paired("x", "x", steps, np.zeros(4), SHARES).lower == "b"
    assert paired("x", "x", steps, np.zeros(4), SHARES, rounding=1.5).lower is None


def test_the_distance_of_predictions_is_that_of_inpca():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    y = torch.randint(4, (40,), generator=generator)
    models = [nn.Linear(3, 4), nn.Linear(3, 4)]
    with torch.no_grad():
        for model in models:
            model.weight.normal_(generator=generator)
    found = hr.compare(
        *models,
        nn.CrossEntropyLoss(),
        (x, y),
        parts=("predictions",),
        groups=4,
        console=Console(quiet=True),
    )
    P = np.stack([model(x).softmax(1).detach().double().numpy() for model in models])
    expected = bhattacharyya(P, precision="double")[0, 1]
    assert found["predictions.distance"].value == pytest.approx(expected, rel=1e-4)

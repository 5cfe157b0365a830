"""compare_with_theory: only layers in series are a chain; only broken assumptions are blamed."""

import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.application.inspection import compare_with_theory
from hyperribbon.application.inspection.linear.chains import find_chain
from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory import linear_networks as theory


class Joined(nn.Module):
    """Two maps of the same width, joined in different ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.second, self.how = nn.Linear(4, 4), nn.Linear(4, 4), how
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        if self.how == "parallel":
            return self.first(x) + self.second(x)
        if self.how == "around the end":
            return x + self.second(torch.tanh(self.first(x)))
        if self.how == "parallel before a head":
            return self.head(self.first(x) * self.second(x))
        if self.how == "around a layer":
            return self.head(x + torch.relu(self.second(self.first(x))))
        return self.head(torch.relu(self.second(self.first(x))))


@pytest.fixture
def data():
    torch.manual_seed(0)
    return torch.randn(30, 4), torch.randint(0, 4, (30,))


@pytest.mark.parametrize("how", ["parallel", "around the end"])
def test_outputs_of_joined_maps_are_no_series(data, how):
    with pytest.raises(ArgumentError, match="alone"):
        compare_with_theory(Joined(how), data)


@pytest.mark.parametrize(
    ("how", "layers"),
    [
        ("parallel before a head", ("head",)),
        ("around a layer", ("head",)),
        ("in series", ("first", "second", "head")),
    ],
)
def test_a_chain_holds_layers_that_follow_each_other(data, how, layers):
    model = Joined(how)
    assert find_chain(model, data).layers == layers
    assert not any(module._forward_hooks for module in model.modules())


def test_only_broken_assumptions_are_blamed():
    """Just off its minimum a network is a hundredth too sharp; what is broken is the minimum."""
    rng = np.random.default_rng(0)
    X = theory.whiten(rng.standard_normal((6, 80)), 1.0).inputs
    Y = rng.standard_normal((3, 6)) @ X
    left, singular, right = np.linalg.svd(Y @ X.T / 80, full_matrices=False)
    root = (1.01 * singular) ** (1 / 2)
    layers = [root[:, None] * right, left * root]
    model = nn.Sequential(*(nn.Linear(w.shape[1], w.shape[0], bias=False).double() for w in layers))
    with torch.no_grad():
        for module, weight in zip(model, layers, strict=True):
            module.weight.copy_(torch.from_numpy(weight))
    found = compare_with_theory(model, (torch.from_numpy(X.T.copy()), torch.from_numpy(Y.T.copy())))
    cause = found.responsible("sharpness", "labels")
    assert cause is not None
    assert not cause.holds
    assert found.assumptions[4].value == pytest.approx(0.01, rel=1e-6)
    assert not found.assumptions[4].holds
    # Within a thousandth of its minimum every assumption holds, and none is blamed.
    with torch.no_grad():
        for module in model:
            module.weight.mul_((1.0006 / 1.01) ** 0.5)
    near = compare_with_theory(model, (torch.from_numpy(X.T.copy()), torch.from_numpy(Y.T.copy())))
    assert all(a.holds for a in near.assumptions)
    assert near.responsible("sharpness", "labels") is None

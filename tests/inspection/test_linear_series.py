"""compare_with_theory: only layers in series are a chain."""

import pytest
import torch
from torch import nn

from hyperribbon.application.inspection import compare_with_theory
from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators import Risk
from hyperribbon.prediction.linear_layers import find_chain


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
        compare_with_theory(Joined(how), nn.CrossEntropyLoss(), data)


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
    assert find_chain(Risk(model, nn.CrossEntropyLoss(), data)).layers == layers
    assert not any(module._forward_hooks for module in model.modules())

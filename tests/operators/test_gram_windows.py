"""Gram matrices of parameters without factors, written out for a few samples at a time."""

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.operators.gram import GramParts, structured_everywhere
from hyperribbon.operators.jacobian_and_ntk import _identity


class Squares(nn.Module):
    """Outputs whose weight no linear layer holds."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(x @ self.weight.square())


@pytest.mark.parametrize("memory", [None, 2e4])
def test_windows_are_multiplied_with_each_other(memory):
    torch.manual_seed(0)
    model, x = Squares(), torch.randn(7, 6, dtype=torch.float64)

    def outputs(weight):
        return torch.func.functional_call(model, {"weight": weight}, (x,)).flatten()

    J = torch.func.jacrev(outputs)(model.weight.detach()).flatten(1)
    kernel = hr.NTK(model, x, memory=memory)
    torch.testing.assert_close(kernel.to_dense(), J @ J.T)
    windows = GramParts(kernel.risk, _identity, structured_everywhere(kernel.risk)).windows
    assert (len(windows) > 2) is (memory is not None)

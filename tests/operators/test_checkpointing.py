"""Models that checkpoint their activations have the same curvature, at any weights."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hyperribbon.operators import GGN, Hessian


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class Residual(nn.Module):
    def __init__(self, saving):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head, self.saving = nn.Linear(5, 3), saving

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.saving else block(x)
        return self.head(x)


@pytest.mark.parametrize("operator", [Hessian, GGN])
def test_checkpointed_activations_change_nothing(operator):
    torch.manual_seed(0)
    plain, saving = Residual(False).double(), Residual(True).double()
    saving.load_state_dict(plain.state_dict())
    data = torch.randn(9, 5, dtype=torch.float64), torch.arange(9) % 3
    expected = operator(plain, nn.CrossEntropyLoss(), data)
    found = operator(saving, nn.CrossEntropyLoss(), data)
    v = torch.randn(expected.shape[0], dtype=torch.float64)
    torch.testing.assert_close(found @ v, expected @ v)
    elsewhere = torch.randn(expected.shape[0], dtype=torch.float64)
    torch.testing.assert_close(found.at(elsewhere) @ v, expected.at(elsewhere) @ v)
    nn.init.zeros_(saving.head.weight)  # training goes on; the operator keeps its weights
    torch.testing.assert_close(found @ v, expected @ v)

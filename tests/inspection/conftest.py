import copy
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from hyperribbon.papers.training import mlp, train

TESTS = str(Path(__file__).parents[1])
if TESTS not in sys.path:
    sys.path.append(TESTS)


@pytest.fixture(scope="session")
def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture(scope="session")
def classified() -> tuple[torch.Tensor, torch.Tensor]:
    """Three Gaussian clusters in six dimensions, 240 samples."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 3
    centres = 2 * torch.randn(3, 6, generator=generator)
    return centres[labels] + torch.randn(240, 6, generator=generator), labels


@pytest.fixture(scope="session")
def trained(classified):
    """A small trained network, its loss, its data and its initial state."""
    model = mlp((6, 12, 8, 3), "tanh", seed=1)
    initial = copy.deepcopy(model.state_dict())
    train(model, nn.CrossEntropyLoss(), classified, epochs=15, lr=0.1, batch_size=32, seed=0)
    return model, nn.CrossEntropyLoss(), classified, initial

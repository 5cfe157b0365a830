"""Small networks of three kinds, each with a start and an end of training."""

import copy

import pytest
import torch
from torch import nn


class Transformer(nn.Module):
    """One encoder layer over eight tokens, tied input and output embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(tokens)).mean(1))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4)
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(3 * 4 * 4, 5),
    )


def _case(name: str):
    generator = torch.Generator().manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        model = {"mlp": _mlp, "cnn": _cnn, "transformer": Transformer}[name]()
    if name == "mlp":
        inputs, classes = torch.randn(60, 6, generator=generator), 4
    elif name == "cnn":
        inputs, classes = torch.randn(60, 1, 8, 8, generator=generator), 5
    else:
        inputs, classes = torch.randint(0, 11, (60, 8), generator=generator), 11
    targets = torch.randint(0, classes, (60,), generator=generator)
    initial = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model, initial, (inputs, targets)


@pytest.fixture(params=["mlp", "cnn", "transformer"])
def case(request):
    """Model at the end of training, its initial state, and data."""
    return _case(request.param)


@pytest.fixture
def mlp():
    return _case("mlp")


@pytest.fixture
def transformer():
    return _case("transformer")


@pytest.fixture
def cnn():
    return _case("cnn")

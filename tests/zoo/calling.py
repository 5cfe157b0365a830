"""Networks with several inputs, outputs without an axis, or arguments by keyword."""

from __future__ import annotations

import torch
from torch import nn

from zoo.registry import Network, labels, network


class OneNumber(nn.Module):
    """Outputs of shape (n,)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).squeeze(1)


@network()
def outputs_without_an_axis() -> Network:
    return Network(OneNumber(), nn.MSELoss(), torch.randn(5, 4), torch.randn(5))


@network()
def outputs_without_an_axis_binary() -> Network:
    bits = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    return Network(OneNumber(), nn.BCEWithLogitsLoss(), torch.randn(5, 4), bits)


class TwoInputs(nn.Module):
    """A vector and a word."""

    def __init__(self) -> None:
        super().__init__()
        self.vector, self.word, self.head = nn.Linear(4, 3), nn.Embedding(5, 3), nn.Linear(3, 3)

    def forward(self, vector: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.vector(vector) * self.word(word)))


def _two_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(5, 4), labels(5, classes=5), labels(5)


@network()
def inputs_in_a_pair() -> Network:
    x, word, y = _two_inputs()
    return Network(TwoInputs(), nn.CrossEntropyLoss(), (x, word), y, lambda m, x: m(*x))


@network()
def inputs_in_a_row() -> Network:
    x, word, y = _two_inputs()
    return Network(
        TwoInputs(), nn.CrossEntropyLoss(), (x, word), y, lambda m, x: m(*x), data=(x, word, y)
    )


@network()
def inputs_in_a_dict() -> Network:
    x, word, y = _two_inputs()
    inputs = {"word": word, "vector": x}
    return Network(
        TwoInputs(),
        nn.CrossEntropyLoss(),
        inputs,
        y,
        lambda m, x: m(**x),
        data={**inputs, "labels": y},
    )


@network()
def inputs_in_a_pair_with_a_dict() -> Network:
    x, word, y = _two_inputs()
    inputs = {"word": word, "vector": x}
    return Network(TwoInputs(), nn.CrossEntropyLoss(), inputs, y, lambda m, x: m(**x))


class Keywords(nn.Module):
    """A model that is called by keyword only."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, *, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.body(x) * scale


@network()
def called_by_keyword() -> Network:
    return Network(
        Keywords(),
        nn.CrossEntropyLoss(),
        torch.randn(5, 4),
        labels(5),
        call=lambda m, x: m(x=x, scale=2.0),
        forward=lambda model, batch: model(x=batch[0], scale=2.0),
    )

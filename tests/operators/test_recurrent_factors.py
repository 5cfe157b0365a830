"""Weights of recurrent layers have factors: traces, diagonals and Gram matrices in a few passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hyperribbon as hr

KINDS = {
    "lstm": lambda: nn.LSTM(3, 4, batch_first=True),
    "lstm, steps first": lambda: nn.LSTM(3, 4),
    "lstm, two layers both ways": lambda: nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True),
    "gru": lambda: nn.GRU(3, 4, batch_first=True),
    "gru, no bias, both ways": lambda: nn.GRU(3, 4, 2, bias=False, bidirectional=True),
    "tanh": lambda: nn.RNN(3, 5, bias=False),
    "relu": lambda: nn.RNN(3, 5, nonlinearity="relu", batch_first=True, bidirectional=True),
}


class Reader(nn.Module):
    """A recurrent layer and a linear one, which reads the mean over the steps."""

    def __init__(self, layer, times=1, has_start=False):
        super().__init__()
        self.layer, self.times = layer, times
        self.width = layer.hidden_size * (2 if layer.bidirectional else 1)
        self.out = nn.Linear(self.width, 3)
        self.start = nn.Parameter(torch.randn(1, 1, self.width) / 2) if has_start else None

    def forward(self, x):
        first = self.layer.batch_first
        x = x if first else x.transpose(0, 1)
        for _ in range(self.times):
            start = (
                None
                if self.start is None
                else self.start.expand(-1, x.shape[0 if first else 1], -1).contiguous()
            )
            x = self.layer(x, start)[0]
        return self.out(x.mean(1 if first else 0))


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(6, 7, 3, dtype=torch.float64, generator=generator)
    return inputs, torch.randint(3, (6,), generator=generator)


def made(layer, **options):
    torch.manual_seed(1)
    return Reader(layer(), **options).double()


def compare(ggn):
    dense = ggn @ torch.eye(ggn.shape[0], dtype=torch.float64)
    scale = float(dense.diagonal().sum())
    torch.testing.assert_close(ggn.diagonal(), dense.diagonal(), rtol=0, atol=1e-13 * scale)
    trace = hr.trace(ggn)
    assert trace.exact
    assert trace.value == pytest.approx(scale, rel=1e-12)
    gram = ggn.gram()
    ours, right = (torch.linalg.eigvalsh(matrix)[-12:] for matrix in (gram, dense))
    torch.testing.assert_close(ours, right, rtol=0, atol=1e-13 * scale)


def understood(ggn):
    return ggn.risk.structured(ggn.risk.probe())


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_has_factors_that_are_right(kind, data):
    ggn = hr.GGN(made(KINDS[kind]), nn.CrossEntropyLoss(), data)
    assert understood(ggn) == set(ggn.space.names)
    compare(ggn)


def test_a_layer_that_is_used_twice_has_the_sum_of_both_uses(data):
    model = made(lambda: nn.GRU(3, 3, batch_first=True), times=2)
    ggn = hr.GGN(model, nn.CrossEntropyLoss(), data)
    assert understood(ggn) == set(ggn.space.names)
    compare(ggn)


@pytest.mark.parametrize("params", ["layer.weight_hh*", "layer.bias*", "layer.weight_ih_l0"])
def test_some_of_the_weights_alone(params, data):
    model = made(lambda: nn.GRU(3, 4, batch_first=True))
    compare(hr.GGN(model, nn.CrossEntropyLoss(), data, params=params))


def test_a_learned_start_goes_the_slow_way_and_is_right(data):
    model = made(lambda: nn.GRU(3, 4, batch_first=True), has_start=True)
    ggn = hr.GGN(model, nn.CrossEntropyLoss(), data)
    assert {"layer.weight_hh_l0", "layer.weight_ih_l0"} <= understood(ggn)
    compare(ggn)


def test_dropout_between_layers_in_evaluation_changes_nothing(data):
    model = made(lambda: nn.LSTM(3, 4, 2, dropout=0.5, batch_first=True)).eval()
    compare(hr.GGN(model, nn.CrossEntropyLoss(), data))

"""Networks that read a sequence step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from zoo.registry import Network, labels, network


class Reader(nn.Module):
    """A recurrent layer and a head on its last output."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.body = kind(2, 4, **options)
        width = options.get("proj_size", 4) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, 3)
        self.first = options.get("batch_first", False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.body(x if self.first else x.transpose(0, 1))
        return self.head(out[:, -1] if self.first else out[-1])


class PackedReader(nn.Module):
    """A recurrent layer on sequences of different lengths, averaged over each one's length."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.body = kind(2, 3, batch_first=True, **options)
        self.head = nn.Linear(6 if options.get("bidirectional") else 3, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.body(packed)[0], batch_first=True)
        return self.head(out.sum(1) / lengths[:, None])


def _read(kind: type[nn.Module], **options: Any) -> Network:
    model = Reader(kind, **options)
    return Network(model, nn.CrossEntropyLoss(), torch.randn(5, 4, 2), labels(5))


def _read_packed(kind: type[nn.Module], **options: Any) -> Network:
    inputs = (torch.randn(4, 5, 2), torch.tensor([3, 5, 1, 4]))
    model = PackedReader(kind, **options)
    return Network(model, nn.CrossEntropyLoss(), inputs, labels(4), lambda m, x: m(*x))


@network()
def lstm() -> Network:
    return _read(nn.LSTM, batch_first=True)


@network()
def gru_sequence_first() -> Network:
    return _read(nn.GRU)


@network()
def rnn_relu() -> Network:
    return _read(nn.RNN, nonlinearity="relu", batch_first=True)


@network()
def lstm_two_layers_two_ways() -> Network:
    return _read(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True)


@network()
def lstm_with_projection() -> Network:
    return _read(nn.LSTM, proj_size=2, batch_first=True)


@network()
def packed_lstm_two_ways() -> Network:
    return _read_packed(nn.LSTM, num_layers=2, bidirectional=True)


@network()
def packed_gru() -> Network:
    return _read_packed(nn.GRU, num_layers=2)


@network()
def packed_rnn_two_ways() -> Network:
    return _read_packed(nn.RNN, bidirectional=True)


class Cells(nn.Module):
    """A cell of torch.nn and a layer of one's own, both used at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.own, self.head = nn.LSTMCell(2, 3), nn.Linear(6, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, hidden = None, x.new_zeros(len(x), 3)
        for step in x.unbind(1):
            state = self.cell(step, state)
            hidden = torch.tanh(self.own(torch.cat([state[0], hidden], 1)))
        return self.head(hidden)


@network()
def cells_in_a_loop() -> Network:
    return Network(Cells(), nn.MSELoss(), torch.randn(4, 3, 2), torch.randn(4, 2))

"""Recurrent layers written out step by step, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from hyperribbon.core.devices.torch_inside import without_onednn
from hyperribbon.operators import GGN, Hessian
from hyperribbon.operators.derivatives.rewritten import recurrent
from hyperribbon.operators.derivatives.rewritten.recurrent import _CELLS
from hyperribbon.operators.derivatives.rewritten.twice import twice_differentiable

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN, "rnn_relu": nn.RNN}


def layer_of(kind, **options):
    torch.manual_seed(0)
    nonlinear = {"nonlinearity": kind[4:]} if kind.startswith("rnn") else {}
    return KINDS[kind](3, 4, **nonlinear, **options).double()


def all_of(result):
    outputs, end = result
    return [outputs, *(end if isinstance(end, tuple) else (end,))]


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"batch_first": True}], ids=str)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "wide lstm"])
def test_outputs_states_and_gradients(kind, bidirectional, layers, options, monkeypatch):
    if kind == "wide lstm":
        kind = "lstm"
        monkeypatch.setattr(recurrent, "_WIDE", 1)
    layer = layer_of(kind, num_layers=layers, bidirectional=bidirectional, **options)
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    count = layers * (2 if bidirectional else 1)
    rows = 5 if options.get("batch_first") else 6
    h = torch.randn(count, rows, 4, dtype=torch.float64, requires_grad=True)
    start = (h, torch.randn_like(h)) if kind == "lstm" else h
    results = []
    for written_out in (False, True):
        if written_out:
            with twice_differentiable():
                found = all_of(layer(x, start))
        else:
            found = all_of(layer(x, start))
        total = sum((tensor * (1 + tensor)).sum() for tensor in found)
        results.append([*found, *torch.autograd.grad(total, [h, *layer.parameters()])])
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_layers_are_written_out(monkeypatch):
    steps = []
    original = _CELLS["gru"]
    monkeypatch.setitem(_CELLS, "gru", lambda *args: steps.append(1) or original(*args))
    with twice_differentiable():
        layer_of("gru")(torch.randn(5, 6, 3, dtype=torch.float64))
    assert len(steps) == 5


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_packed_sequences_dropout_and_projections_are_left_to_torch(kind):
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    packed = pack_padded_sequence(x, torch.tensor([5, 4, 4, 3, 2, 1]))
    layer = layer_of(kind)
    with twice_differentiable():
        found = layer(packed)[0].data
    torch.testing.assert_close(found, layer(packed)[0].data)
    options = {"proj_size": 2} if kind == "lstm" else {}
    layer = layer_of(kind, num_layers=2, dropout=0.5, **options)
    results = []
    for rewritten in (False, True):
        torch.manual_seed(1)
        if rewritten:
            with twice_differentiable():
                results.append(layer(x)[0])
        else:
            results.append(layer(x)[0])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"batch_first": True}], ids=str)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_second_derivatives_from_all_steps_at_once(bidirectional, layers, options, monkeypatch):
    """Against torch's own kernels, of outputs and both states, singly and in blocks."""
    monkeypatch.setattr(recurrent, "_WIDE", 1)
    layer = layer_of("lstm", num_layers=layers, bidirectional=bidirectional, **options)
    x = torch.randn(5, 6, 3, dtype=torch.float64, requires_grad=True)
    rows = 5 if options.get("batch_first") else 6
    h = torch.randn(layers * (1 + bidirectional), rows, 4, dtype=torch.float64, requires_grad=True)
    c = torch.randn_like(h, requires_grad=True)
    leaves = [x, h, c, *layer.parameters()]
    along = [torch.randn(3, *leaf.shape, dtype=torch.float64) for leaf in leaves]
    results = []
    for written_out in (False, True):
        with twice_differentiable() if written_out else without_onednn():
            found = all_of(layer(x, (h, c)))
            total = sum((tensor**3 * (1 + tensor)).sum() for tensor in found)
            slopes = torch.autograd.grad(total, leaves, create_graph=True)
            first = [block[0] for block in along]
            curved = torch.autograd.grad(slopes, leaves, first, retain_graph=True)
            blocks = torch.autograd.grad(slopes, leaves, along, is_grads_batched=True)
        results.append([*slopes, *curved, *blocks])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_outputs_may_be_written_into(monkeypatch):
    monkeypatch.setattr(recurrent, "_WIDE", 1)
    layer = layer_of("lstm")
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    with twice_differentiable():
        outputs = layer(x)[0]
        total = outputs.mul_(2.0).sum()
    for ours, theirs in zip(
        torch.autograd.grad(total, list(layer.parameters())),
        torch.autograd.grad(2 * layer(x)[0].sum(), list(layer.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_wide_layers_in_operators(monkeypatch):
    """Products with both ways to differentiate a layer are the same."""
    torch.manual_seed(0)

    class LastStep(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 4, 2, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    model, loss = LastStep().double(), nn.CrossEntropyLoss()
    data = torch.randn(7, 5, 3, dtype=torch.float64), torch.randint(3, (7,))
    vectors = torch.randn(sum(p.numel() for p in model.parameters()), 3, dtype=torch.float64)
    for kind in (Hessian, GGN):
        expected = kind(model, loss, data) @ vectors
        monkeypatch.setattr(recurrent, "_WIDE", 1)
        operator = kind(model, loss, data)
        torch.testing.assert_close(operator @ vectors, expected)
        torch.testing.assert_close(operator @ vectors[:, 0], expected[:, 0])
        monkeypatch.undo()

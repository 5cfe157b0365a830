"""Recurrent layers written out step by step, against torch's own."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from hyperribbon.core.devices.torch_private import without_onednn
from hyperribbon.operators import Hessian
from hyperribbon.operators.derivatives import recurrence
from hyperribbon.operators.derivatives.replacements import twice_differentiable

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
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_states_and_gradients(kind, bidirectional, layers, options):
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


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_written_out(kind, monkeypatch):
    layers, original = [], recurrence._Evaluation
    monkeypatch.setattr(recurrence, "_Evaluation", lambda *a: layers.append(1) or original(*a))
    with twice_differentiable():
        layer_of(kind)(torch.randn(5, 6, 3, dtype=torch.float64))
    assert layers == [1]


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


READ = {
    "all": lambda found: found,
    "outputs": lambda found: found[:1],
    "the last output": lambda found: [found[0][-1]],
    "the last states": lambda found: found[1:],
    "the last of the states": lambda found: found[-1:],
}


def curved(layer, read, leaves, x, start):
    """Return gradients of what is read, and products with its second derivatives."""
    found = read(all_of(layer(x, start)))
    total = sum((tensor**3 * (1 + tensor)).sum() for tensor in found)
    slopes = torch.autograd.grad(total, leaves, create_graph=True)
    generator = torch.Generator().manual_seed(1)
    along = [
        torch.randn(3, *leaf.shape, dtype=torch.float64, generator=generator) for leaf in leaves
    ]
    first = [block[0] for block in along]
    with torch.no_grad():
        singly = torch.autograd.grad(slopes, leaves, first, retain_graph=True)
        blocks = torch.autograd.grad(slopes, leaves, along, is_grads_batched=True)
    return *slopes, *singly, *blocks


def compare(layer, read, leaves, x, start):
    with without_onednn():
        theirs = curved(layer, read, leaves, x, start)
    with twice_differentiable():
        ours = curved(layer, read, leaves, x, start)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def inputs_of(layer, kind, rows=6):
    x = torch.randn(5, 6, 3, dtype=torch.float64, requires_grad=True)
    count = layer.num_layers * (1 + layer.bidirectional)
    h = torch.randn(count, rows, 4, dtype=torch.float64, requires_grad=True)
    return x, (h, torch.randn_like(h, requires_grad=True)) if kind == "lstm" else h


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"batch_first": True}], ids=str)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(kind, bidirectional, layers, options):
    """Against torch's own kernels, of outputs and states, singly and in blocks."""
    layer = layer_of(kind, num_layers=layers, bidirectional=bidirectional, **options)
    x, start = inputs_of(layer, kind, 5 if options.get("batch_first") else 6)
    starts = start if kind == "lstm" else (start,)
    compare(layer, READ["all"], [x, *starts, *layer.parameters()], x, start)


@pytest.mark.parametrize("names", ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "x", "start"])
@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_of_parts_by_parts(kind, read, names):
    """What is not read, or not differentiated by, is left out of the recurrences."""
    layer = layer_of(kind, num_layers=2)
    x, start = inputs_of(layer, kind)
    starts = list(start) if kind == "lstm" else [start]
    own = [weight for name, weight in layer.named_parameters() if name.startswith(names)]
    leaves = {"x": [x], "start": starts[:1]}.get(names, own)
    for tensor in (x, *starts, *layer.parameters()):
        tensor.requires_grad_(any(tensor is leaf for leaf in leaves))
    compare(layer, READ[read], leaves, x, start)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_may_be_written_into(kind):
    layer = layer_of(kind)
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


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_are_freed_without_the_garbage_collector(kind, monkeypatch):
    """A layer that held what it returned would be held by it in turn."""
    layer, x, held = layer_of(kind), torch.randn(5, 6, 3, dtype=torch.float64), []
    original = recurrence._Evaluation

    def watched(*given):
        evaluated = original(*given)
        held.append(weakref.ref(evaluated))
        return evaluated

    monkeypatch.setattr(recurrence, "_Evaluation", watched)
    gc.collect()
    gc.disable()
    try:
        with twice_differentiable():
            outputs = layer(x)[0]
            weight = layer.weight_hh_l0
            slopes = torch.autograd.grad(outputs.sin().sum(), weight, create_graph=True)
            with torch.no_grad():
                torch.autograd.grad(slopes, weight, [torch.ones_like(weight)], retain_graph=True)
        assert held[0]() is not None
        del outputs, slopes
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", KINDS)
def test_layers_in_operators(kind):
    """Products against a dense matrix from torch's own kernels."""
    model = nn.ModuleList([layer_of(kind, num_layers=2), nn.Linear(4, 3).double()])
    inputs, labels = torch.randn(7, 5, 3, dtype=torch.float64), torch.randint(3, (7,))

    def forward(parts, batch):
        return parts[1](parts[0](batch[0].transpose(0, 1))[0][-1]), batch[1]

    weights = list(model.parameters())
    with without_onednn():
        value = nn.functional.cross_entropy(*forward(model, (inputs, labels)))
        slopes = torch.autograd.grad(value, weights, create_graph=True)
        flat = torch.cat([slope.flatten() for slope in slopes])
        rows = [torch.autograd.grad(entry, weights, retain_graph=True) for entry in flat]
    dense = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    H = Hessian(model, nn.CrossEntropyLoss(), (inputs, labels), forward=forward)
    vectors = torch.randn(len(flat), 3, dtype=torch.float64)
    torch.testing.assert_close(H @ vectors, dense @ vectors, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(H @ vectors[:, 0], dense @ vectors[:, 0], rtol=1e-9, atol=1e-11)

"""Attention that is written out, against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import hyperribbon as hr
from hyperribbon.operators.derivatives.recording import CallRecorder
from hyperribbon.operators.derivatives.replacements import twice_differentiable

HIDDEN = torch.tensor([[True, False, True, True, True]] * 3 + [[False] * 5])
CALLS = {
    "plain": {},
    "scaled": {"scale": 0.3},
    "causal": {"is_causal": True},
    "hidden": {"attn_mask": HIDDEN},
    "added": {"attn_mask": torch.randn(2, 1, 4, 5).double()},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.parametrize("name", list(CALLS))
def test_values_and_two_derivatives(name):
    torch.manual_seed(0)
    heads = 3 if name != "grouped" else 1
    shapes = ((2, 4, 3, 6), (2, 5, heads, 6), (2, 5, heads, 2))
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    results = []
    if name == "grouped" and "enable_gqa" not in F.scaled_dot_product_attention.__doc__:
        pytest.skip("torch 2.4 knows no groups")
    for written_out in (False, True):
        query, key, value = (leaf.transpose(1, 2) for leaf in leaves)
        if written_out:
            with twice_differentiable():
                found = F.scaled_dot_product_attention(query, key, value, **CALLS[name])
        else:
            with sdpa_kernel(SDPBackend.MATH):
                found = F.scaled_dot_product_attention(query, key, value, **CALLS[name])
        slopes = torch.autograd.grad((found**3).sum(), leaves, create_graph=True)
        total = sum((slope**2).sum() for slope in slopes)
        results.append([found, *slopes, *torch.autograd.grad(total, leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12, equal_nan=True)
        if ours.isnan().any():  # torch 2.4 where all is hidden: there is no slope
            break


def _ahead(length):
    return nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)


LATE = torch.tensor([[False] * 4, [False, False, True, True], [False, False, False, True]])
LAYERS = {
    "plain": {"need_weights": False},
    "shares": {},
    "shares of heads": {"average_attn_weights": False},
    "added": {"attn_mask": _ahead(4), "need_weights": False},
    "hidden": {"attn_mask": _ahead(4) < 0, "need_weights": False},
    "causal by name": {"attn_mask": _ahead(4), "is_causal": True, "need_weights": False},
    "causal with shares": {"attn_mask": _ahead(4), "is_causal": True},
    "each head": {"attn_mask": torch.randn(6, 4, 4).double(), "need_weights": False},
    "padded": {"key_padding_mask": LATE, "need_weights": False},
    "padded and causal": {"key_padding_mask": LATE, "attn_mask": _ahead(4) < 0},
}


@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("batch_first", [True, False])
def test_layers_of_attention_are_opened_and_stay_the_same(name, batch_first):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 2, batch_first=batch_first).double().eval()
    x = torch.randn(3, 4, 6).double()
    x = x if batch_first else x.transpose(0, 1)
    weights = dict(layer.named_parameters())
    expected = layer(x, x, x, **LAYERS[name])
    recorder = CallRecorder(weights, samples=3)
    with twice_differentiable(), recorder:
        found = layer(x, x, x, **LAYERS[name])
    assert recorder.others == set()
    assert {use.name for use in recorder.uses} == set(weights)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-11, atol=1e-12)
    if expected[1] is None:
        assert found[1] is None
    else:
        torch.testing.assert_close(found[1], expected[1], rtol=1e-11, atol=1e-12)
    slopes = [
        torch.autograd.grad((out[0] ** 3).sum(), list(weights.values()))
        for out in (found, expected)
    ]
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 5, "vdim": 7}], ids=str
)
def test_unusual_layers_of_attention_are_left_as_they_are(options):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 2, batch_first=True, **options).eval()
    sizes = (6, options.get("kdim", 6), options.get("vdim", 6))
    inputs = [torch.randn(3, 4, size) for size in sizes]
    weights = dict(layer.named_parameters())
    recorder = CallRecorder(weights, samples=3)
    with twice_differentiable(), recorder:
        found = layer(*inputs)[0]
    assert recorder.others == set(weights)
    torch.testing.assert_close(found, layer(*inputs)[0], rtol=1e-5, atol=1e-6)


def test_a_transformer_layer_has_an_exact_diagonal_by_factors():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.layer(x).mean(1))

    torch.manual_seed(0)
    data = torch.randn(5, 3, 4).double(), torch.randint(3, (5,))
    operator = hr.GGN(Pooled().double().eval(), nn.CrossEntropyLoss(), data)
    chunk = next(iter(operator.risk.chunks()))
    assert operator.risk.structured(chunk) == set(operator.space.names)
    expected = operator.to_dense().diagonal()
    torch.testing.assert_close(operator.diagonal(), expected, rtol=1e-9, atol=1e-13)

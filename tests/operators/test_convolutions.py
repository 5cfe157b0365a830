"""Convolutions that are differentiated by convolutions, against torch's own derivatives."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hyperribbon as hr
from hyperribbon.operators.derivatives.convolutions import (
    convolve,
    only_needed,
)

CALLS = {
    "plain": (torch.conv2d, (3, 4, 3, 3), {}),
    "strided": (torch.conv2d, (3, 4, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    "dilated": (torch.conv2d, (3, 4, 3, 3), {"dilation": 2, "padding": [2]}),
    "same": (torch.conv2d, (3, 4, 3, 5), {"padding": "same", "dilation": (2, 1)}),
    "same, uneven": (torch.conv2d, (3, 4, 3, 5), {"padding": "same"}),
    "same, even": (torch.conv2d, (3, 4, 2, 2), {"padding": "same"}),
    "valid": (torch.conv2d, (3, 4, 2, 2), {"padding": "valid"}),
    "grouped": (torch.conv2d, (4, 2, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": (torch.conv1d, (4, 1, 3), {"groups": 4, "stride": 2}),
    "line": (torch.conv1d, (3, 4, 3), {"padding": 1}),
    "solid": (torch.conv3d, (3, 4, 2, 1, 2), {"stride": 2}),
    "back": (
        torch.conv_transpose2d,
        (4, 3, 3, 3),
        {"stride": 2, "output_padding": 1, "dilation": 2},
    ),
    "back, grouped": (torch.conv_transpose1d, (4, 3, 3), {"groups": 2, "padding": 1}),
    "back, solid": (torch.conv_transpose3d, (4, 3, 2, 2, 2), {"stride": (1, 2, 1)}),
}


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def derivatives(convolve, x, weight, bias):
    """Outputs, gradients of a curved function of them, and products with its second derivatives."""
    outputs = convolve(x, weight, bias)
    leaves = [x, weight] if bias is None else [x, weight, bias]
    slopes = torch.autograd.grad(outputs.pow(3).sum(), leaves, create_graph=True)
    generator = torch.Generator().manual_seed(3)
    along = [torch.randn(leaf.shape, generator=generator, dtype=torch.float64) for leaf in leaves]
    rows = [torch.stack([v, 2 * v.flip(0)]) for v in along]
    found = [outputs, *slopes, *torch.autograd.grad(slopes, leaves, along, retain_graph=True)]
    found += torch.autograd.grad(slopes, leaves, rows, retain_graph=True, is_grads_batched=True)
    for leaf in leaves[1:]:
        with only_needed([leaf]):
            found += torch.autograd.grad(slopes, [leaf], along, retain_graph=True)
            found += torch.autograd.grad(outputs.sum(), [leaf], retain_graph=True)
    return found


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("name", list(CALLS))
def test_derivatives_are_those_of_torch(name, with_bias):
    torch.manual_seed(0)
    function, shape, options = CALLS[name]
    is_back = "transpose" in function.__name__
    channels = shape[0] if is_back else shape[1] * options.get("groups", 1)
    outs = shape[1] * options.get("groups", 1) if is_back else shape[0]
    x, weight = random(2, channels, *(7,) * (len(shape) - 2)), random(*shape)
    bias = random(outs) if with_bias else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # even kernels need a padded copy
        check(function, options, x, weight, bias)


def check(function, options, x, weight, bias):
    truth = derivatives(lambda *a: function(*a, **options), x, weight, bias)
    found = derivatives(
        lambda x, weight, bias: convolve(function, (x, weight), {"bias": bias, **options}),
        x,
        weight,
        bias,
    )
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_what_is_not_needed_is_not_computed(monkeypatch):
    x, weight, first = random(2, 3, 6, 6).detach(), random(3, 3, 3, 3), random(3, 3, 3, 3)
    hidden = convolve(torch.conv2d, (x, first), {})
    outputs = convolve(torch.conv2d, (hidden, weight), {})
    probe = torch.zeros_like(outputs, requires_grad=True)
    pulled = torch.autograd.grad(outputs, [first, weight], probe, create_graph=True)
    calls = []
    real = torch.ops.aten.convolution_backward
    monkeypatch.setattr(
        torch.ops.aten,
        "convolution_backward",
        lambda *args: calls.append(args[-1]) or real(*args),
    )
    with only_needed([probe]):
        torch.autograd.grad(pulled, [probe], [first, weight], retain_graph=True)
    assert not calls, "J v needs no adjoint"
    with only_needed([weight]):
        torch.autograd.grad(outputs.sum(), [weight], retain_graph=True)
    assert calls == [(False, True, False)]


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh())
        self.head = nn.Linear(3 * 16, 3)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False).flatten(1))


def test_checkpointed_convolutions():
    torch.manual_seed(0)
    model, x, y = Checkpointed().double().eval(), random(5, 2, 4, 4).detach(), torch.arange(5) % 3
    plain = nn.Sequential(model.body, nn.Flatten(), model.head)
    for kind in (hr.Hessian, hr.GGN):
        found = kind(model, nn.CrossEntropyLoss(), (x, y)).to_dense()
        expected = kind(plain, nn.CrossEntropyLoss(), (x, y)).to_dense()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)

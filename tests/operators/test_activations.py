"""Activations whose second derivatives are computed once, against torch's own derivatives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hyperribbon as hr
from hyperribbon.operators.derivatives.rewritten import activations
from hyperribbon.operators.derivatives.rewritten.twice import twice_differentiable

CALLS = {
    "gelu": F.gelu,
    "gelu, by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "silu, by name": lambda x: F.silu(input=x),
    "mish": F.mish,
    "gelu, module": nn.GELU(),
    "silu, in place": lambda x: F.silu(x + 0.0, inplace=True),
}


def derivatives(function, x):
    """Outputs, gradients, and products with second derivatives, singly and in blocks."""
    outputs = function(x)
    (slope,) = torch.autograd.grad(outputs.pow(3).sum(), x, create_graph=True)
    generator = torch.Generator().manual_seed(3)
    along = torch.randn(4, *x.shape, generator=generator, dtype=torch.float64)
    found = [outputs, slope]
    with torch.no_grad():
        for row in (0, 1):
            found += torch.autograd.grad(slope, x, along[row], retain_graph=True)
        found += torch.autograd.grad(slope, x, along, retain_graph=True, is_grads_batched=True)
        found += torch.autograd.grad(outputs, x, along, retain_graph=True, is_grads_batched=True)
    return found


@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name):
    torch.manual_seed(0)
    values = torch.cat([3 * torch.randn(40), torch.tensor([0.0, -30.0, 30.0])]).double()
    x = values.requires_grad_()
    theirs = derivatives(CALLS[name], x)
    with twice_differentiable():
        ours = derivatives(CALLS[name], x)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_bends_are_computed_once(monkeypatch):
    calls = []
    original = activations.slope_and_bend
    monkeypatch.setattr(
        activations, "slope_and_bend", lambda *given: calls.append(1) or original(*given)
    )
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    with twice_differentiable():
        (slope,) = torch.autograd.grad(F.gelu(x).sum(), x, create_graph=True)
        for _ in range(3):
            torch.autograd.grad(slope, x, torch.ones_like(x), retain_graph=True)
    assert calls == [1]


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU, nn.Mish])
def test_a_network_that_is_no_chain(activation):
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.act = nn.Linear(4, 4), nn.Linear(4, 2), activation()

        def forward(self, x):
            return self.last(x + self.act(self.first(self.act(self.first(x)))))

    model, loss = Residual().double(), nn.MSELoss()
    data = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    weights = list(model.parameters())
    value = loss(model(data[0]), data[1])
    slopes = torch.autograd.grad(value, weights, create_graph=True)
    flat = torch.cat([slope.flatten() for slope in slopes])
    rows = [torch.autograd.grad(entry, weights, retain_graph=True) for entry in flat]
    dense = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    torch.testing.assert_close(hr.Hessian(model, loss, data).to_dense(), dense)

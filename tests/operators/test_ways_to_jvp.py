"""J v goes through the graph of Jᵀu, and by forward mode only where that has no derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

import hyperribbon as hr
from hyperribbon.operators.risk.model import ModelFunction


class Cube(torch.autograd.Function):
    """x³ with a backward rule that cannot be differentiated, and a forward rule."""

    slope = 3.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient

    @staticmethod
    def jvp(ctx, along):
        (x,) = ctx.saved_tensors
        return Cube.slope * x**2 * along


class Cubed(nn.Module):
    def __init__(self, cube):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)
        self.cube = cube

    def forward(self, x):
        return self.last(self.cube(self.norm(self.first(x))))


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(12, 4, dtype=torch.float64, generator=generator)
    return inputs, torch.randint(3, (12,), generator=generator)


def twins():
    torch.manual_seed(0)
    model, plain = Cubed(Cube.apply).double(), Cubed(lambda x: x**3).double()
    plain.load_state_dict(model.state_dict())
    return model, plain


@pytest.mark.parametrize("columns", [1, 3])
def test_rules_for_forward_mode_are_used_where_a_gradient_has_no_derivative(data, columns):
    model, plain = twins()
    ours, right = (hr.GGN(m, nn.CrossEntropyLoss(), data) for m in (model, plain))
    vectors = torch.randn(ours.shape[0], columns, dtype=torch.float64)
    torch.testing.assert_close(ours @ vectors, right @ vectors, rtol=1e-10, atol=1e-12)


def test_wrong_rules_for_forward_mode_are_refused(data, monkeypatch):
    model, _ = twins()
    monkeypatch.setattr(Cube, "slope", 2.9)
    with pytest.raises(hr.ArgumentError, match="first derivatives"):
        hr.GGN(model, nn.CrossEntropyLoss(), data)


def test_forward_mode_is_left_alone_where_the_graph_serves(data, monkeypatch):
    def never(*_):
        raise AssertionError("forward mode was tried")

    monkeypatch.setattr(ModelFunction, "jvp", never)
    _, plain = twins()
    ggn = hr.GGN(plain, nn.CrossEntropyLoss(), data)
    assert torch.isfinite(ggn @ torch.ones(ggn.shape[0], dtype=torch.float64)).all()

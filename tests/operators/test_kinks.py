"""Weights at a kink, as in pruned networks: accepted; wrong derivatives: refused."""

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.operators.derivatives.verification import Disagreement, check_jvp

LOSS = nn.CrossEntropyLoss()
DATA = (
    torch.randn(30, 5, generator=torch.Generator().manual_seed(1)).double(),
    torch.arange(30) % 3,
)


def _pruned(strength):
    """Hidden units that see one other unit each, and stand in ReLU's kink wherever that is off."""
    torch.manual_seed(0)
    first, second = nn.Linear(5, 30), nn.Linear(30, 30)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(30, 3)).double()
    with torch.no_grad():
        second.bias[:4] = 0
        second.weight[:4] = 0
        second.weight[range(4), range(4)] = 1.0
        model[4].weight[:, :4] *= strength
    return model


@pytest.mark.parametrize("strength", [1.0, 0.3, 0.1, 0.05, 0.03, 0.02, 0.01, 0.003])
@pytest.mark.parametrize("kind", [hr.Hessian, hr.GGN])
def test_pruned_networks_are_taken_however_much_their_kinks_weigh(strength, kind):
    model = _pruned(strength)
    operator = kind(model, LOSS, DATA)
    v = torch.randn(operator.shape[0], generator=torch.Generator().manual_seed(2)).double()
    if kind is hr.Hessian:
        leaves = list(model.parameters())
        slopes = torch.autograd.grad(LOSS(model(DATA[0]), DATA[1]), leaves, create_graph=True)
        flat = torch.cat([slope.reshape(-1) for slope in slopes])
        curved = torch.autograd.grad(flat @ v, leaves)
        expected = torch.cat([part.reshape(-1) for part in curved])
        torch.testing.assert_close(operator @ v, expected, rtol=1e-9, atol=1e-12)


class Wrong(torch.autograd.Function):
    """ReLU with a slope that is off by a share."""

    share = 0.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return slope * (x > 0) * (1 + Wrong.share)


class Off(nn.Module):
    def forward(self, x):
        return Wrong.apply(x)


@pytest.mark.parametrize("strength", [1.0, 0.1, 0.01, 0.0])
def test_wrong_derivatives_are_refused_beside_kinks(strength, monkeypatch):
    model = _pruned(strength)
    model[1] = model[3] = Off()
    monkeypatch.setattr(Wrong, "share", 0.0)
    hr.Hessian(model, LOSS, DATA)
    monkeypatch.setattr(Wrong, "share", 10.0 if strength == 1 else 0.3)
    with pytest.raises(hr.core.checks.ArgumentError, match="derivatives differ"):
        hr.Hessian(model, LOSS, DATA)


def _slopes(bend, curvature=0.0):
    """Outputs f(h) = a·h + bend·|h|·b + curvature·h² along a direction."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    b = b * a.norm() / b.norm()
    return a, lambda h: {"outputs": 1 + a * h + bend * abs(h) * b + curvature * h**2 * b}


@pytest.mark.parametrize("bend", [0.5, 0.03, 0.01, 0.003, 0.0015])
def test_a_slope_between_the_two_sides_of_a_kink_is_taken(bend):
    a, outputs = _slopes(bend)
    one_side = outputs(1.0)["outputs"] - 1
    for slope in (a, one_side, (a + one_side) / 2):
        check_jvp(slope, outputs, torch.float64)


@pytest.mark.parametrize("off", [0.01, 0.1, 0.5])
@pytest.mark.parametrize(("bend", "curvature"), [(0, 0), (0, 1e3), (1e-4, 0), (1e-3, 0)])
def test_a_slope_outside_is_refused(off, bend, curvature):
    a, outputs = _slopes(bend, curvature)
    with pytest.raises(Disagreement):
        check_jvp(a * (1 + off), outputs, torch.float64)

"""Slopes and bends of the activations that chains know, against autograd.

Operators compare their derivatives with finite differences and take another route where these
differ, so that a wrong slope would only make them slow.
"""

import pytest
import torch
import torch.nn.functional as F

from hyperribbon.operators.derivatives.chains.activations import activation_of

NAMES = (
    "relu",
    "leaky_relu",
    "tanh",
    "sigmoid",
    "gelu",
    "silu",
    "softplus",
    "elu",
    "selu",
    "mish",
    "logsigmoid",
    "softsign",
)


@pytest.mark.parametrize("name", NAMES)
def test_slopes_and_bends_are_those_of_autograd(name):
    function = getattr(F, name) if name not in ("tanh", "sigmoid") else getattr(torch, name)
    z = torch.linspace(-3.1, 2.9, 25, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(function(z).sum(), z, create_graph=True)
    bend = torch.zeros_like(z)
    if slope.requires_grad:
        (bend,) = torch.autograd.grad(slope.sum(), z, materialize_grads=True)
    found = activation_of(name, (z.detach(),), {}).derivatives(z.detach(), function(z).detach())
    torch.testing.assert_close(found[0], slope.detach())
    torch.testing.assert_close(torch.zeros_like(bend) if found[1] is None else found[1], bend)

"""Forward passes that use the number of units, their order or single heads leave these whole."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hyperribbon as hr
from hyperribbon.subnetworks import find_units


class Network(nn.Module):
    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.run(self, x)


class Scaled(nn.Linear):
    """A layer of one's own, with a check that cannot be traced."""

    def forward(self, x):
        if x.shape[0] > 100:
            raise ValueError("too many")
        return F.linear(x, self.weight, self.bias) * self.weight.shape[0] ** -0.5


def merged(net, x):
    y = net.a(x)
    return net.c(net.b(y.view(y.size(0) * y.size(1), -1)).relu()).view(x.size(0), -1).sum(1)


def other_size(net, x):
    y, z = net.a(x).relu(), net.b(x).relu()
    return net.c(z) / y.size(1) + net.d(y)


def unpacked(net, x):
    n, _, h, w = net.a(x).shape
    y = net.a(x).relu()
    return net.b(y.view(n, -1)) / (h * w)


def attended(net, x):
    y, weights = net.a(x, x, x)
    return net.c(net.b(x + y).relu()), weights


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs)


def image():
    return nn.Conv2d(3, 8, 3, padding=1)


IMAGES, ROWS, TOKENS = (5, 3, 8, 8), (7, 6), (5, 8, 8)
KEPT = {
    "mean over rows alone": (
        lambda n, x: n.c(n.b(n.a(x).relu().mean(2)).relu()).sum(1),
        {"a": image(), "b": linear(8, 6), "c": linear(6, 4)},
        IMAGES,
        {"a"},
    ),
    "channels become samples": (
        merged,
        {"a": image(), "b": linear(64, 6), "c": linear(6, 4)},
        IMAGES,
        {"a"},
    ),
    "divided by the number of channels": (
        lambda n, x: n.c(n.b(n.a(x).relu() / n.a(x).size(1)).mean((2, 3))),
        {"a": image(), "b": nn.Conv2d(8, 6, 1), "c": linear(6, 4)},
        IMAGES,
        {"a"},
    ),
    "scaled by the number of features": (
        lambda n, x: n.c(n.b(n.a(x).relu() * n.a(x).shape[-1] ** -0.5).relu()),
        {"a": linear(6, 12), "b": linear(12, 9), "c": linear(9, 4)},
        ROWS,
        {"a"},
    ),
    "the size of another branch": (
        other_size,
        {"a": linear(6, 12), "b": linear(6, 9), "c": linear(9, 4), "d": linear(12, 4)},
        ROWS,
        {"a"},
    ),
    "number of entries": (
        lambda n, x: n.c(n.b(n.a(x).relu() / n.a(x).numel()).relu()),
        {"a": linear(6, 12), "b": linear(12, 9), "c": linear(9, 4)},
        ROWS,
        {"a"},
    ),
    "a new tensor as wide as the layer": (
        lambda n, x: n.c(n.b(n.a(x) + torch.arange(12, dtype=x.dtype, device=x.device)).relu()),
        {"a": linear(6, 12), "b": linear(12, 9), "c": linear(9, 4)},
        ROWS,
        {"a"},
    ),
    "features in a dict of outputs": (
        lambda n, x: {"features": n.b(n.a(x).relu()), "out": [n.c(n.b(n.a(x).relu()))]},
        {"a": linear(6, 12), "b": linear(12, 9), "c": linear(9, 4)},
        ROWS,
        {"b"},
    ),
    "a layer of one's own": (
        lambda n, x: n.c(n.b(n.a(x).relu()).relu()),
        {"a": Scaled(6, 12), "b": linear(12, 9), "c": linear(9, 4)},
        ROWS,
        {"a"},
    ),
    "weights of attention": (
        attended,
        {"a": nn.MultiheadAttention(8, 4, batch_first=True), "b": linear(8, 9), "c": linear(9, 4)},
        TOKENS,
        {"a"},
    ),
}


def tensors(tree):
    if torch.is_tensor(tree):
        return [tree]
    return [
        t for part in (tree.values() if isinstance(tree, dict) else tree) for t in tensors(part)
    ]


@torch.no_grad()
@pytest.mark.parametrize("name", KEPT)
def test_units_whose_removal_would_change_more_stay(name):
    run, layers, shape, whole = KEPT[name]
    model = Network(run, **copy.deepcopy(layers)).double().eval()
    inputs = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert whole <= find_units(model).whole.keys()
    masked = copy.deepcopy(model)
    mask = hr.select(model, fraction=0.5, granularity="unit", scope="layer")
    masked.load_state_dict(hr.prune(model, mask))
    small = hr.shrink(model, mask)
    for one, other in zip(tensors(masked(inputs)), tensors(small(inputs)), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_sizes_that_stay_do_no_harm():
    model = Network(unpacked, a=image(), b=linear(512, 4)).eval()
    mask = hr.select(model, fraction=0.5, granularity="channel")
    inputs = torch.randn(IMAGES, generator=torch.Generator().manual_seed(0))
    assert hr.shrink(model, mask, inputs=inputs).a.out_channels == 4


def test_shrinking_draws_no_random_numbers():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(16, 4)})
    mask = hr.select(model, fraction=0.5, granularity="head")
    before = torch.get_rng_state()
    hr.shrink(model, mask)
    assert torch.equal(torch.get_rng_state(), before)

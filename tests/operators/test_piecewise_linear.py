"""Exact traces and diagonals of Hessians where models are piecewise linear in every weight."""

import time
import warnings

import pytest
import torch
from torch import nn

import hyperribbon as hr

GENERATOR = torch.Generator("cpu").manual_seed(0)
IMAGES = torch.randn(5, 2, 8, 8, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.arange(5) % 3


class Residual(nn.Module):
    """Two convolutions with batch norm around a skip, then pooling and a head."""

    def __init__(self, activation=None, inplace=False):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm, self.skip = nn.BatchNorm2d(3), nn.Conv2d(2, 3, 1)
        self.norm.running_var += 0.5
        self.activation = activation or nn.ReLU(inplace=inplace)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        y = self.second(self.activation(self.norm(self.first(x))))
        y = self.activation(y + self.skip(x))
        return self.head(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))


class Branches(nn.Module):
    """Two branches that are multiplied: linear in each weight, though not in all together."""

    def __init__(self, tied=False):
        super().__init__()
        self.one = nn.Linear(128, 4)
        self.two = self.one if tied else nn.Linear(128, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(torch.relu(self.one(x)) * self.two(x))


class Unseen(torch.autograd.Function):
    """A square that hides from the trace of operations."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def square(x):
    return x * x


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    compiled_square = torch.jit.script(square)
    """Its product is seen, but not that gradients come from it."""


class Call(nn.Module):
    def __init__(self, function, *layers):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x):
        return self.function(x, *self.layers)


def write(into, values):
    """Write values into the first columns of a tensor."""
    into[:, : values.shape[1]] = values
    return into


def flat(width=4, activation=None):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(128, width), activation or nn.ReLU(), nn.Linear(width, 3)
    )


def pool(kind):
    return nn.Sequential(nn.Conv2d(2, 2, 3), kind, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))


PIECEWISE_LINEAR = {
    "ReLU chain": flat(),
    "leaky": flat(activation=nn.LeakyReLU(0.2)),
    "residual with batch norm": Residual(),
    "in place": Residual(inplace=True),
    "max pooling": pool(nn.MaxPool2d(2)),
    "average pooling": pool(nn.AvgPool2d(2)),
    "parametric": flat(activation=nn.PReLU()),
    "shrinking": flat(activation=nn.Softshrink(0.1)),
    "threshold": flat(activation=nn.Threshold(0.1, 0.0)),
    "maxout": Call(
        lambda x, a, b: b(a(x.flatten(1)).view(-1, 4, 2).max(2)[0]),
        *(nn.Linear(128, 8), nn.Linear(4, 3)),
    ),
    "where": Call(
        lambda x, a, b: (lambda y: b(torch.where(y > 0, y, 0.2 * y)))(a(x.flatten(1))),
        *(nn.Linear(128, 4), nn.Linear(4, 3)),
    ),
    "product of branches": Branches(),
    "concatenated": Call(
        lambda x, a, b, c: c(torch.cat([torch.relu(a(x)), b(x).abs()], dim=1).flatten(1)),
        nn.Conv2d(2, 2, 3),
        nn.Conv2d(2, 2, 3),
        nn.Linear(144, 3),
    ),
    "transposed": Call(
        lambda x, a, b: b(torch.relu(a(x)).mean(dim=(2, 3))),
        nn.ConvTranspose2d(2, 3, 3),
        nn.Linear(3, 3),
    ),
    "sorted, masked, counted down": Call(
        lambda x, a, b: (lambda y: b((1 - y.sort(1)[0].cumsum(1)) * (y > 0)))(a(x.flatten(1))),
        *(nn.Linear(128, 4), nn.Linear(4, 3)),
    ),
    "written into zeros": Call(
        lambda x, a, b: b(write(torch.zeros(len(x), 6).double(), torch.relu(a(x.flatten(1))))),
        *(nn.Linear(128, 4), nn.Linear(6, 3)),
    ),
    "one expert for each sample": Call(
        lambda x, r, a, b: (lambda y: torch.where(r(y).argmax(1, keepdim=True) == 1, a(y), b(y)))(
            x.flatten(1)
        ),
        *(nn.Linear(128, 2), nn.Linear(128, 3), nn.Linear(128, 3)),
    ),
    "used twice in a sum": Call(
        lambda x, a, b: b(torch.relu(a(x) + a(x.flip(-1))).amax(dim=(2, 3))),
        nn.Conv2d(2, 3, 3),
        nn.Linear(3, 3),
    ),
}


def normalise_each(x):
    """Instance norm, written as batch norm of one sample with many channels."""
    as_one = x.reshape(1, -1, *x.shape[2:])
    return nn.functional.batch_norm(as_one, None, None, training=True).reshape(x.shape)


CURVED = {
    "instance norm": Call(
        lambda x, a, b: b(torch.relu(normalise_each(a(x))).mean(dim=(2, 3))),
        nn.Conv2d(2, 3, 3),
        nn.Linear(3, 3),
    ),
    "tanh": flat(activation=nn.Tanh()),
    "hardswish": flat(activation=nn.Hardswish()),
    "gated linear unit": Call(
        lambda x, a, b: b(nn.functional.glu(a(x.flatten(1)))), nn.Linear(128, 8), nn.Linear(4, 3)
    ),
    "squeeze and excite": Call(
        lambda x, a, b, c: (
            lambda y: c(
                (y * nn.functional.hardsigmoid(b(y.mean((2, 3))))[..., None, None]).mean((2, 3))
            )
        )(torch.relu(a(x))),
        *(nn.Conv2d(2, 3, 3), nn.Linear(3, 3), nn.Linear(3, 3)),
    ),
    "GELU": flat(activation=nn.GELU()),
    "ELU": flat(activation=nn.ELU()),
    "layer norm": nn.Sequential(nn.Flatten(), nn.Linear(128, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    "tied branches": Branches(tied=True),
    "attention": Call(
        lambda x, a, b: b(a(x.flatten(2), x.flatten(2), x.flatten(2))[0].flatten(1)),
        nn.MultiheadAttention(64, 2, batch_first=True),
        nn.Linear(128, 3),
    ),
    "used twice in a row": Call(
        lambda x, a, b, c: c(torch.relu(b(torch.relu(b(a(x.flatten(1))))))),
        nn.Linear(128, 4),
        nn.Linear(4, 4),
        nn.Linear(4, 3),
    ),
    "square": Call(lambda x, a, b: b(a(x.flatten(1)) ** 2), nn.Linear(128, 4), nn.Linear(4, 3)),
    "square of what was written": Call(
        lambda x, a, b: (lambda y: b(y * write(torch.zeros(len(y), 4).double(), y)))(
            a(x.flatten(1))
        ),
        *(nn.Linear(128, 4), nn.Linear(4, 3)),
    ),
    "absolute value of complex numbers": Call(
        lambda x, a, b, c: c((a(x.flatten(1)) + 1j * b(x.flatten(1)).to(torch.complex128)).abs()),
        *(nn.Linear(128, 4), nn.Linear(128, 4), nn.Linear(4, 3)),
    ),
    "compiled square": nn.Sequential(flat(), nn.ReLU(), Call(compiled_square)),
    "hidden square": Call(
        lambda x, a, b: b(Unseen.apply(a(x.flatten(1)))), nn.Linear(128, 4), nn.Linear(4, 3)
    ),
    "quotient": Call(
        lambda x, a, b: b(a(x.flatten(1))) / (1 + a(x.flatten(1)).sum(1, keepdim=True) ** 2),
        nn.Linear(128, 4),
        nn.Linear(4, 3),
    ),
    "softplus": flat(activation=nn.Softplus()),
}


def prepare(model):
    model = model.double()
    model(IMAGES)  # lazy layers
    generator = torch.Generator("cpu").manual_seed(3)
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator).double()
    return model.eval()


@pytest.mark.parametrize("name", PIECEWISE_LINEAR)
def test_trace_and_diagonal_are_those_of_the_dense_hessian(name):
    model = prepare(PIECEWISE_LINEAR[name])
    hessian = hr.Hessian(model, nn.CrossEntropyLoss(), (IMAGES, LABELS))
    assert hessian.has_exact_trace
    dense = hessian.to_dense().diagonal()
    scale = dense.abs().max()
    assert (hessian.diagonal() - dense).abs().max() <= 1e-10 * scale
    found = hr.trace(hessian)
    assert found.exact and found.value == pytest.approx(float(dense.sum()), rel=1e-10)


@pytest.mark.parametrize("name", CURVED)
def test_models_with_curvature_of_their_own_are_never_taken_for_such(name):
    model = prepare(CURVED[name])
    hessian = hr.Hessian(model, nn.CrossEntropyLoss(), (IMAGES, LABELS))
    assert not hessian.has_exact_trace


def test_batch_norm_in_training_mode_is_curved():
    model = prepare(Residual())
    assert not hr.Hessian(
        model, nn.CrossEntropyLoss(), (IMAGES, LABELS), mode="train"
    ).has_exact_trace


class Block(nn.Module):
    """A residual block of He et al. (2016)."""

    def __init__(self, width, out, stride):
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.skip = nn.Conv2d(width, out, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.second(torch.relu(self.norms[0](self.first(x))))
        return torch.relu(self.norms[1](y) + self.skip(x))


@pytest.mark.slow
def test_the_trace_of_a_resnet_20_takes_at_most_twelve_gradients():
    torch.manual_seed(0)
    blocks = [Block(16, 16, 1) for _ in range(3)]
    for width in (16, 32):
        blocks += [Block(width, 2 * width, 2)] + [Block(2 * width, 2 * width, 1) for _ in range(2)]
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    model = nn.Sequential(*stem, *blocks, *head).eval()
    data = torch.randn(64, 3, 32, 32), torch.arange(64) % 10
    loss, weights = nn.CrossEntropyLoss(), list(model.parameters())
    hessian = hr.Hessian(model, loss, data)
    assert hessian.has_exact_trace

    def seconds(work):
        begun = time.process_time()
        work()
        return time.process_time() - begun

    def gradient():
        torch.autograd.grad(loss(model(data[0]), data[1]), weights)

    hessian.trace(), gradient()
    one = min(seconds(gradient) for _ in range(5))
    assert min(seconds(hessian.trace) for _ in range(3)) <= 12 * one

"""Random layers: each takes a shape without the sample axis and gives a module and a new shape.

Shapes are tagged by what the axes mean: "vector" (d,), "signal" (c, t), "image" (c, h, w),
"sequence" (t, d).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import nn
from torch.nn.utils import parametrizations

from zoo.fuzz_activations import activation
from zoo.fuzz_modules import (
    Attention,
    Branches,
    ByFunction,
    Function,
    Gate,
    Last,
    Places,
    Reader,
    Residual,
    Stopped,
    Tied,
    Twice,
)

__all__ = ["WRONG_TWICE", "Layer", "Shape", "random_layer"]


WRONG_TWICE = "torch differentiates it twice wrongly"
"""Why weight norm may be refused: its second derivatives in torch are not right."""


@dataclass(frozen=True)
class Shape:
    """What the axes of a tensor mean, and how long they are, without the samples."""

    kind: str
    sizes: tuple[int, ...]


@dataclass
class Layer:
    """A module, the shape behind it, and what is special about it.

    Attributes:
        module: The layer.
        shape: Of its outputs.
        may_be_refused: Why hyperribbon may say no to it.
        stops: Whether it stops gradients, so that differences of the gradient are no derivatives.
    """

    module: nn.Module
    shape: Shape
    may_be_refused: str = ""
    stops: bool = False


Maker = Callable[[Random, Shape], Layer | None]
_MAKERS: dict[str, list[Maker]] = {"vector": [], "signal": [], "image": [], "sequence": []}


def _layer(*kinds: str) -> Callable[[Maker], Maker]:
    def enter(make: Maker) -> Maker:
        for kind in kinds:
            _MAKERS[kind].append(make)
        return make

    return enter


def random_layer(rng: Random, shape: Shape) -> Layer:
    """Return a random layer for a shape."""
    while True:
        layer = rng.choice(_MAKERS[shape.kind])(rng, shape)
        if layer is not None:
            return layer


@_layer("vector", "signal", "image", "sequence")
@_layer("vector", "signal", "image", "sequence")
def _activation(rng: Random, shape: Shape) -> Layer:
    return Layer(activation(rng), shape)


@_layer("vector", "sequence")
@_layer("vector", "sequence")
def _linear(rng: Random, shape: Shape) -> Layer:
    width, out = shape.sizes[-1], rng.randint(2, 5)
    kinds = [
        lambda: nn.Linear(width, out, bias=rng.random() < 0.7),
        lambda: ByFunction(width, out, rng.choice(["linear", "matmul", "einsum", "addmm"])),
    ]
    return Layer(rng.choice(kinds)(), Shape(shape.kind, (*shape.sizes[:-1], out)))


@_layer("vector")
def _reparametrised(rng: Random, shape: Shape) -> Layer:
    width, out = shape.sizes[0], rng.randint(2, 5)
    linear = nn.Linear(width, out)
    if rng.random() < 0.5:
        return Layer(parametrizations.spectral_norm(linear), Shape("vector", (out,)))
    return Layer(parametrizations.weight_norm(linear), Shape("vector", (out,)), WRONG_TWICE)


@_layer("vector", "sequence")
def _tied(rng: Random, shape: Shape) -> Layer:
    width = shape.sizes[-1]
    if rng.random() < 0.5:
        return Layer(Tied(width, rng.randint(2, 4), activation(rng)), shape)
    return Layer(Twice(nn.Linear(width, width), activation(rng)), shape)


@_layer("vector", "sequence")
def _gate(rng: Random, shape: Shape) -> Layer:
    width, out = shape.sizes[-1], rng.randint(2, 4)
    module = rng.choice(
        [
            lambda: Gate(width, out, torch.sigmoid),
            lambda: Gate(width, out, lambda x: torch.softmax(x, -1)),
            lambda: nn.Sequential(nn.Linear(width, 2 * out), nn.GLU(-1)),
        ]
    )()
    return Layer(module, Shape(shape.kind, (*shape.sizes[:-1], out)))


@_layer("vector", "signal", "image", "sequence")
def _residual(rng: Random, shape: Shape) -> Layer:
    width = shape.sizes[-1] if shape.kind in ("vector", "sequence") else shape.sizes[0]
    inner = {
        "vector": lambda: nn.Linear(width, width),
        "sequence": lambda: nn.Linear(width, width),
        "signal": lambda: nn.Conv1d(width, width, 3, padding=1),
        "image": lambda: nn.Conv2d(width, width, 3, padding=1, bias=False),
    }[shape.kind]()
    return Layer(Residual(nn.Sequential(inner, activation(rng))), shape)


@_layer("vector")
def _stopped(rng: Random, shape: Shape) -> Layer:
    width = shape.sizes[0]
    how = rng.choice(["detach", "no_grad"])
    module = Stopped(nn.Linear(width, width), nn.Linear(width, width), how)
    return Layer(
        module, shape, "a gradient is stopped, so that it is not the derivative", stops=True
    )


@_layer("vector")
def _branches(rng: Random, shape: Shape) -> Layer:
    width, out = shape.sizes[0], rng.randint(2, 3)
    module = Branches(nn.Linear(width, out), nn.Sequential(nn.Linear(width, out), activation(rng)))
    return Layer(module, Shape("vector", (2 * out,)))


@_layer("vector", "sequence")
def _norm_of_features(rng: Random, shape: Shape) -> Layer | None:
    width = shape.sizes[-1]
    if width < 3:
        return None
    kinds: list[Callable[[], nn.Module]] = [
        lambda: nn.LayerNorm(width),
        lambda: nn.LayerNorm(width, elementwise_affine=False),
        lambda: nn.RMSNorm(width),
        lambda: nn.Softmax(-1),
    ]
    if shape.kind == "vector":
        kinds += [lambda: nn.BatchNorm1d(width)]
        kinds += [lambda: nn.GroupNorm(2, width)] if width == 4 else []
    return Layer(rng.choice(kinds)(), shape)


@_layer("signal", "image")
def _norm_of_channels(rng: Random, shape: Shape) -> Layer | None:
    channels, rest = shape.sizes[0], shape.sizes[1:]
    count = 1
    for size in rest:
        count *= size
    if count < 3:
        return None
    image = shape.kind == "image"
    kinds: list[Callable[[], nn.Module]] = [
        lambda: (nn.BatchNorm2d if image else nn.BatchNorm1d)(channels),
        lambda: (nn.InstanceNorm2d if image else nn.InstanceNorm1d)(channels, affine=True),
        lambda: nn.GroupNorm(1, channels),
        lambda: nn.GroupNorm(channels, channels),
        lambda: nn.LocalResponseNorm(2, alpha=0.5),
        lambda: nn.LayerNorm([channels, *rest]),
    ]
    return Layer(rng.choice(kinds)(), shape)


@_layer("signal", "image")
@_layer("signal", "image")
def _convolution(rng: Random, shape: Shape) -> Layer | None:
    channels, rest = shape.sizes[0], shape.sizes[1:]
    if min(rest) < 3:
        return None
    one = shape.kind == "signal"
    plain, back = (nn.Conv1d, nn.ConvTranspose1d) if one else (nn.Conv2d, nn.ConvTranspose2d)
    options = {"stride": rng.choice([1, 1, 2]), "bias": rng.random() < 0.7}
    kind = rng.choice(["plain", "depthwise", "dilated", "same", "transposed", "circular", "one"])
    module = {
        "plain": lambda: plain(channels, rng.randint(2, 4), rng.choice([2, 3]), **options),
        "depthwise": lambda: plain(channels, 2 * channels, 3, padding=1, groups=channels),
        "dilated": lambda: plain(channels, 2, 2, dilation=2, bias=options["bias"]),
        "same": lambda: plain(channels, 3, rng.choice([2, 3, 4]), padding="same"),
        "transposed": lambda: back(channels, 2, 2, **options),
        "circular": lambda: plain(channels, 2, 3, padding=1, padding_mode="circular"),
        "one": lambda: plain(channels, rng.randint(2, 4), 1),
    }[kind]()
    return _measured(module, shape, limit=90)


@_layer("signal", "image")
def _pool(rng: Random, shape: Shape) -> Layer | None:
    rest = shape.sizes[1:]
    if min(rest) < 2:
        return None
    one = shape.kind == "signal"
    module = rng.choice(
        [
            lambda: (nn.MaxPool1d if one else nn.MaxPool2d)(2),
            lambda: (nn.AvgPool1d if one else nn.AvgPool2d)(2, stride=1),
            lambda: (nn.AdaptiveAvgPool1d if one else nn.AdaptiveAvgPool2d)(2),
            lambda: (nn.AdaptiveMaxPool1d if one else nn.AdaptiveMaxPool2d)(1),
            lambda: (nn.LPPool1d if one else nn.LPPool2d)(2, 2),
        ]
    )()
    return _measured(module, shape)


@_layer("image")
def _image_reshaped(rng: Random, shape: Shape) -> Layer:
    if rng.random() < 0.5:
        return _measured(nn.Flatten(), shape, "vector")
    return _measured(Function(lambda x: x.flatten(2).transpose(1, 2)), shape, "sequence")


@_layer("signal")
def _signal_reshaped(rng: Random, shape: Shape) -> Layer:
    if rng.random() < 0.5:
        return _measured(nn.Flatten(), shape, "vector")
    return _measured(Function(lambda x: x.transpose(1, 2)), shape, "sequence")


@_layer("sequence")
def _sequence_reshaped(rng: Random, shape: Shape) -> Layer:
    kind, function = rng.choice(
        [
            ("vector", lambda x: x.flatten(1)),
            ("vector", lambda x: x.mean(1)),
            ("vector", lambda x: x[:, -1]),
            ("vector", lambda x: x.amax(1)),
            ("signal", lambda x: x.transpose(1, 2)),
            ("sequence", lambda x: x.flip(1)),
            ("sequence", lambda x: x.cumsum(1)),
            ("sequence", lambda x: x[:, torch.arange(x.shape[1]).roll(1)] - x),
        ]
    )
    return _measured(Function(function), shape, kind)


@_layer("vector")
def _vector_reshaped(rng: Random, shape: Shape) -> Layer | None:
    width = shape.sizes[0]
    functions: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = [
        ("vector", lambda x: x.flip(1)),
        ("vector", lambda x: torch.cat([x, x[:, :1]], 1)),
        ("vector", lambda x: x.gather(1, x.detach().argsort(1))),
        ("vector", lambda x: x.sort(1).values),
        ("vector", lambda x: x - x.mean(1, keepdim=True)),
        ("vector", lambda x: torch.einsum("ni,nj->nij", x, x).flatten(1)[:, : 2 * width]),
        ("vector", lambda x: torch.fft.rfft(x).abs()),
    ]
    if width % 2 == 0 and width > 2:
        functions += [
            ("sequence", lambda x: x.unflatten(1, (2, -1))),
            ("signal", lambda x: x.reshape(len(x), 2, -1)),
        ]
    kind, function = rng.choice(functions)
    return _measured(Function(function), shape, kind)


@_layer("sequence")
@_layer("sequence")
def _reading(rng: Random, shape: Shape) -> Layer:
    width, out = shape.sizes[1], rng.randint(2, 3)
    kind = rng.choice([nn.LSTM, nn.GRU, nn.RNN])
    two = rng.random() < 0.3
    module = Reader(kind(width, out, batch_first=True, bidirectional=two))
    return Layer(module, Shape("sequence", (shape.sizes[0], out * (2 if two else 1))))


@_layer("sequence")
@_layer("sequence")
def _attention(rng: Random, shape: Shape) -> Layer:
    width = shape.sizes[1]
    if rng.random() < 0.5:
        return Layer(Residual(Attention(width, causal=rng.random() < 0.5)), shape)
    module = nn.MultiheadAttention(width, 1, batch_first=True, bias=rng.random() < 0.5)
    return Layer(Last(module), shape)


@_layer("sequence")
def _places(rng: Random, shape: Shape) -> Layer:
    return Layer(Places(shape.sizes), shape)


def _measured(
    module: nn.Module, shape: Shape, kind: str | None = None, limit: int = 60
) -> Layer | None:
    """Return the module with the shape it gives, or None when that is too large."""
    with torch.no_grad():
        sizes = tuple(module.double().eval()(torch.randn(2, *shape.sizes).double()).shape[1:])
    count = 1
    for size in sizes:
        count *= size
    return Layer(module, Shape(kind or shape.kind, sizes)) if 1 <= count <= limit else None

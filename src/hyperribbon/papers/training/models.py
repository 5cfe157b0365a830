"""Small reference architectures, initialized from a seed or an explicit generator."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_choice, validate
from hyperribbon.core.generators import torch_generator
from hyperribbon.papers.training.initialization import Init, build

Seed = int | torch.Generator
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "erf": lambda: _Erf(),
    "linear": nn.Identity,
}


@validate(
    widths=checks.list_of(checks.count), dtype=checks.instance(torch.dtype, "Give torch.float32.")
)
def mlp(
    widths: Sequence[int],
    activation: str = "relu",
    seed: Seed = 0,
    *,
    init: Init = "torch",
    bias: bool = True,
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    """Return a model: a fully connected network with layers layer1, layer2 and so on.

    Args:
        widths: Input size, hidden sizes, output size, such as (784, 256, 256, 256, 10).
        activation: "relu", "tanh", "gelu", "silu", "sigmoid", "softplus", "erf", or "linear".
        seed: A seed, or a generator to draw from.
        init: Initialization; see `hyperribbon.papers.training.initialization.initialize`.
        bias: Whether the layers have biases.
        dtype: Type of the weights (always drawn in float32, so all types start alike).

    Raises:
        ArgumentError: There are fewer than two widths.

    >>> [name for name, _ in mlp((4, 3, 2)).named_parameters()]
    ['layer1.weight', 'layer1.bias', 'layer2.weight', 'layer2.bias']
    """
    check_choice("activation", activation, _ACTIVATIONS)
    if len(widths) < 2:
        raise ArgumentError("widths", widths, "expected two or more widths", "Give (784, 10).")

    def make() -> nn.Module:
        modules: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for number in range(1, len(widths)):
            modules[f"layer{number}"] = nn.Linear(widths[number - 1], widths[number], bias=bias)
            if number < len(widths) - 1:
                modules[f"{activation}{number}"] = _ACTIVATIONS[activation]()
        return nn.Sequential(modules)

    return build(make, _generator(seed), init).to(dtype)  # type: ignore[return-value]


@validate(inputs=checks.count, outputs=checks.count)
def linear(inputs: int, outputs: int, seed: Seed = 0, *, init: Init = "torch") -> nn.Sequential:
    """Return a linear (softmax-regression) model."""
    return mlp((inputs, outputs), seed=seed, init=init)


@validate(shape=checks.image, classes=checks.count, width=checks.positive)
def all_convolutional(
    shape: tuple[int, int, int], classes: int, seed: Seed = 0, *, width: float = 1.0
) -> nn.Module:
    """Return an all-convolutional model: strided convolutions and global average pooling.

    Args:
        shape: (channels, height, width) of an image.
        classes: Number of outputs.
        seed: A seed, or a generator to draw from.
        width: Factor on the numbers of channels, 16 and 32, rounded to multiples of four.
    """
    few, many = _scale(16, width), _scale(32, width)

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(shape[0], few, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(few, few, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(few, many, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(many, many, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(many, classes, 1),
            _Mean(-2, -1),
        )

    return build(make, _generator(seed), "kaiming")


@validate(shape=checks.image, classes=checks.count, width=checks.positive)
def conv_mixer(
    shape: tuple[int, int, int], classes: int, seed: Seed = 0, *, width: float = 1.0
) -> nn.Module:
    """Return a ConvMixer model: patch embedding, then two depthwise and pointwise convolutions.

    Patches are 4×4 pixels, or 2×2 in images with an edge below 16.

    Args:
        shape: (channels, height, width) of an image.
        classes: Number of outputs.
        seed: A seed, or a generator to draw from.
        width: Factor on the number of channels, 32, rounded to a multiple of four.
    """
    size, patch = _scale(32, width), 4 if min(shape[1:]) >= 16 else 2

    def block() -> nn.Module:
        depthwise = nn.Sequential(
            nn.Conv2d(size, size, 5, padding=2, groups=size), nn.GELU(), nn.GroupNorm(1, size)
        )
        pointwise = nn.Sequential(nn.Conv2d(size, size, 1), nn.GELU(), nn.GroupNorm(1, size))
        return nn.Sequential(_Residual(depthwise), pointwise)

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(shape[0], size, patch, stride=patch),
            nn.GELU(),
            nn.GroupNorm(1, size),
            block(),
            block(),
            _Mean(-2, -1),
            nn.Linear(size, classes),
        )

    return build(make, _generator(seed))


@validate(shape=checks.image, classes=checks.count, patch=checks.count, width=checks.positive)
def vision_transformer(
    shape: tuple[int, int, int],
    classes: int,
    seed: Seed = 0,
    *,
    patch: int | None = None,
    width: float = 1.0,
) -> nn.Module:
    """Return a small vision-transformer model (pre-norm, learned positions, token mean).

    Two blocks with two attention heads on tokens of size 32.

    Args:
        shape: (channels, height, width) of an image.
        classes: Number of outputs.
        seed: A seed, or a generator to draw from.
        patch: Edge of a patch, a divisor of height and width; by default the first of 7, 8, 4, 2
            and 1 that is.
        width: Factor on the size of tokens, 32, rounded to a multiple of four.

    Raises:
        ArgumentError: The patch does not divide the image.
    """
    channels, rows, columns = shape
    if patch is None:
        patch = next(size for size in (7, 8, 4, 2, 1) if not rows % size and not columns % size)
    if rows % patch or columns % patch:
        raise ArgumentError("patch", patch, f"it does not divide {shape}", "Choose a divisor.")
    size, tokens = _scale(32, width), (rows // patch) * (columns // patch)

    def block() -> nn.Module:
        feed_forward = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size)
        )
        attention = nn.Sequential(nn.LayerNorm(size), _SelfAttention(size, heads=2))
        return nn.Sequential(_Residual(attention), _Residual(feed_forward))

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, size, patch, stride=patch),
            nn.Flatten(2),
            _Positions(tokens, size),
            block(),
            block(),
            nn.LayerNorm(size),
            _Mean(-2),
            nn.Linear(size, classes),
        )

    return build(make, _generator(seed))


@validate(shape=checks.image, classes=checks.count, width=checks.positive)
def wide_resnet(
    shape: tuple[int, int, int], classes: int, seed: Seed = 0, *, width: float = 1.0
) -> nn.Module:
    """Return a small wide residual model (pre-activation, group norm, two stages).

    Args:
        shape: (channels, height, width) of an image.
        classes: Number of outputs.
        seed: A seed, or a generator to draw from.
        width: Factor on the numbers of channels, 16 and 32, rounded to multiples of four.
    """
    few, many = _scale(16, width), _scale(32, width)

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(shape[0], few, 3, padding=1, stride=2),
            _ResidualBlock(few, few, stride=1),
            _ResidualBlock(few, many, stride=2),
            nn.GroupNorm(4, many),
            nn.ReLU(),
            _Mean(-2, -1),
            nn.Linear(many, classes),
        )

    return build(make, _generator(seed))


def _fully_connected(
    shape: tuple[int, int, int], classes: int, seed: Seed, *, width: float = 1.0
) -> nn.Module:
    size = _scale(128, width)
    return mlp((math.prod(shape), size, size, classes), "relu", seed)


def _linear_image(
    shape: tuple[int, int, int], classes: int, seed: Seed, *, width: float = 1.0
) -> nn.Module:
    return linear(math.prod(shape), classes, seed)


ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    "linear": _linear_image,
    "fully_connected": _fully_connected,
    "all_convolutional": all_convolutional,
    "conv_mixer": conv_mixer,
    "vision_transformer": vision_transformer,
    "wide_resnet": wide_resnet,
}


@validate(shape=checks.image, classes=checks.count, width=checks.positive)
def make_architecture(
    name: str, shape: tuple[int, int, int], classes: int, seed: Seed = 0, *, width: float = 1.0
) -> nn.Module:
    """Return a model by its architecture's name, for images of shape (channels, height, width).

    Args:
        name: Key of `ARCHITECTURES`.
        shape: (channels, height, width) of an image.
        classes: Number of outputs.
        seed: A seed, or a generator to draw from.
        width: Factor on its hidden units or channels; a linear model ignores it.
    """
    check_choice("name", name, ARCHITECTURES)
    return ARCHITECTURES[name](shape, classes, seed, width=width)


def _scale(units: int, width: float) -> int:
    """Return `width` times as many units of a model, a multiple of four (for groups and heads)."""
    return max(4, 4 * round(units * width / 4))


def _generator(seed: Seed) -> torch.Generator:
    return seed if isinstance(seed, torch.Generator) else torch_generator(seed, "model")


class _Erf(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.erf(inputs)


class _Mean(nn.Module):
    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mean(dim=self.dims)


class _Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.inner(inputs)


class _ResidualBlock(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels_in == channels_out
            else nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.conv1(F.relu(self.norm1(inputs)))
        return self.shortcut(inputs) + self.conv2(F.relu(self.norm2(hidden)))


class _Positions(nn.Module):
    """(n, width, tokens) to (n, tokens, width), plus learned position embeddings."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.empty(tokens, width))

    def draw(self, generator: torch.Generator) -> None:
        self.positions.normal_(0, 0.02, generator=generator)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.transpose(-2, -1) + self.positions


class _SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        split = self.project_in(inputs).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = split.movedim(-3, 0).transpose(-3, -2)
        weights = (queries @ keys.transpose(-2, -1) / keys.shape[-1] ** 0.5).softmax(-1)
        return self.project_out((weights @ values).transpose(-3, -2).flatten(-2))

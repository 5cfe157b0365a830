"""Weight initialization from an explicit generator, never the global random state."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from torch import nn

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_choice, check_positive, validate
from hyperribbon.core.devices.torch_private import (
    Convolution,
    NormWithStatistics,
    fan_in_and_fan_out,
)

Init = str | float | tuple[float, float]
_GAUSSIAN_GAINS = {"lecun": 1.0, "kaiming": 2.0}
_SCHEMES = ("torch", "glorot", *_GAUSSIAN_GAINS)


def build(
    make: Callable[[], nn.Module], generator: torch.Generator, init: Init = "torch"
) -> nn.Module:
    """Return the model `make()` with an initialization drawn from `generator`.

    The module is built on the meta device first, so its constructors draw no random numbers.

    Args:
        make: Constructs the module from torch layers.
        generator: Source of every random weight.
        init: As for `initialize`.
    """
    with torch.device("meta"):
        model = make()
    model = model.to_empty(device=generator.device)
    initialize(model, generator, init)
    return model


@validate(
    model=checks.torch_module, generator=checks.instance(torch.Generator, "Give torch.Generator().")
)
@torch.no_grad()
def initialize(model: nn.Module, generator: torch.Generator, init: Init = "torch") -> None:
    """Apply an initialization to every weight of a model, in place.

    Args:
        model: Made of linear, convolutional, normalisation and embedding layers; other modules
            with parameters of their own must have a method `draw(generator)`.
        generator: Source of every random weight.
        init: "torch": uniform on ±1/√fan_in for weights and biases, as torch layers start;
            "lecun", "kaiming", "glorot": Gaussian with variance 1/fan_in, 2/fan_in,
            2/(fan_in + fan_out), biases zero; a number s: Gaussian of standard deviation s, biases
            zero; a pair (σ_w, σ_b): Gaussian, variances σ_w²/fan_in and σ_b² (mean field).

    Raises:
        ArgumentError: A module's parameters are of an unknown kind, or `init` is.
    """
    _check(init)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Convolution):
            _draw_layer(module.weight, module.bias, generator, init)
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(generator=generator)
        elif isinstance(module, nn.LayerNorm | nn.GroupNorm | NormWithStatistics):
            module.reset_parameters()
        elif hasattr(module, "draw"):
            module.draw(generator)  # type: ignore[operator]
        elif next(module.parameters(recurse=False), None) is not None:
            reason = "no initialization rule for its parameters"
            remedy = "Give the module a method draw(generator)."
            raise ArgumentError(
                f"model.{name}" if name else "model", type(module).__name__, reason, remedy
            )


def _draw_layer(
    weight: torch.Tensor, bias: torch.Tensor | None, generator: torch.Generator, init: Init
) -> None:
    fan_in, fan_out = fan_in_and_fan_out(weight)
    bias_scale = 0.0
    if init == "torch":
        bound = 1 / sqrt(fan_in)
        weight.uniform_(-bound, bound, generator=generator)
        if bias is not None:
            bias.uniform_(-bound, bound, generator=generator)
        return
    if isinstance(init, tuple):
        scale, bias_scale = init[0] / sqrt(fan_in), init[1]
    elif init == "glorot":
        scale = sqrt(2 / (fan_in + fan_out))
    elif isinstance(init, str):
        scale = sqrt(_GAUSSIAN_GAINS[init] / fan_in)
    else:
        scale = init
    weight.normal_(0, scale, generator=generator)
    if bias is not None:
        bias.normal_(0, bias_scale, generator=generator) if bias_scale else bias.zero_()


def _check(init: Init) -> None:
    if isinstance(init, str):
        check_choice("init", init, _SCHEMES)
    elif isinstance(init, tuple):
        if len(init) != 2:
            reason = "expected a pair (σ_w, σ_b)"
            raise ArgumentError("init", init, reason, "Give (1.0, 0.1).")
        for value in init:
            check_positive("init", value, zero=True)
    else:
        check_positive("init", init)

"""Random functions of single numbers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
import torch.nn.functional as F
from torch import nn

from zoo.fuzz_modules import Function

__all__ = ["activation"]

_PLAIN: list[Callable[[], nn.Module]] = [
    nn.ReLU,
    lambda: nn.ReLU(inplace=True),
    nn.Tanh,
    nn.GELU,
    lambda: nn.GELU(approximate="tanh"),
    nn.SiLU,
    nn.ELU,
    nn.Softplus,
    nn.LeakyReLU,
    nn.PReLU,
    nn.Hardtanh,
    nn.ReLU6,
    nn.Mish,
    nn.Sigmoid,
    nn.Softsign,
    nn.Hardswish,
    nn.LogSigmoid,
    lambda: nn.Dropout(0.4),
    lambda: Function(F.relu),
    lambda: Function(torch.sin),
    lambda: Function(lambda x: x * torch.sigmoid(1.7 * x)),
    lambda: Function(lambda x: 0.3 * x**2 - x),
    lambda: Function(lambda x: x.clamp(min=-0.5)),
    lambda: Function(lambda x: torch.where(x > 0, x, 0.1 * x**2)),
    lambda: Function(lambda x: torch.maximum(x, 0.2 * x)),
    lambda: Function(lambda x: x.abs().sqrt().add(1).log()),
]


def activation(rng: Random) -> nn.Module:
    """Return a random function of single numbers."""
    return rng.choice(_PLAIN)()

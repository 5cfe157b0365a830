"""Elementwise activations with their first two derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["Activation", "activation_of", "slope_and_bend"]

Derivatives = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True)
class Activation:
    """An elementwise function.

    Attributes:
        derivatives: Function of (z, φ(z)) that returns φ′ and φ″ (None where it vanishes).
        from_output: Whether φ(z) alone is enough, so that the function may work in place.
    """

    derivatives: Callable[[torch.Tensor, torch.Tensor], Derivatives]
    from_output: bool = False


def activation_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Activation | None:
    """Return the activation that a torch call computes, or None when it is not a known one."""
    options = dict(kwargs)
    options.pop("inplace", None)
    options.pop("_stacklevel", None)
    extra = [value for value in args[1:] if not isinstance(value, bool)]
    if name == "relu" and not extra:
        return Activation(lambda z, a: ((a > 0).to(a.dtype), None), from_output=True)
    if name == "leaky_relu":
        slope = options.get("negative_slope", extra[0] if extra else 0.01)
        return Activation(lambda z, a: (torch.where(z > 0, 1.0, slope).to(z.dtype), None))
    if name == "tanh" and not extra:
        return Activation(_tanh, from_output=True)
    if name == "sigmoid" and not extra:
        return Activation(_sigmoid, from_output=True)
    if name in ("gelu", "silu", "softplus", "elu", "selu", "mish", "logsigmoid", "softsign"):
        function = getattr(F, name)
        return Activation(lambda z, a: slope_and_bend(lambda t: function(t, *extra, **options), z))
    return None


def _tanh(z: torch.Tensor, a: torch.Tensor) -> Derivatives:
    slope = 1 - a.square()
    return slope, -2 * a * slope


def _sigmoid(z: torch.Tensor, a: torch.Tensor) -> Derivatives:
    slope = a * (1 - a)
    return slope, slope * (1 - 2 * a)


def slope_and_bend(
    function: Callable[[torch.Tensor], torch.Tensor], z: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return φ′(z) and φ″(z) of an elementwise function, by autograd."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(leaf).sum(), leaf, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), leaf, materialize_grads=True)
    return slope.detach(), bend

"""Smooth activations whose second derivatives are computed once for all products.

For y = φ(x) with slope φ' and bend φ'', what flows back is φ'∘g, and its derivatives along v are
φ'∘v in g and φ''∘g∘v in x: one multiplication each. torch's own second derivatives of these
activations evaluate exponentials again in every product.
"""

# pyright: reportIncompatibleMethodOverride=false
# torch gives `backward` as many gradients as `forward` has outputs.
from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hyperribbon.core.devices.torch_inside import is_transformed, unwatched
from hyperribbon.operators.derivatives.rewritten.convolutions import needed_by

__all__ = ["SLOW_TWICE", "rewritten_activation"]

SLOW_TWICE = ("gelu", "silu", "mish")
"""Activations whose second derivative torch puts together from many operations."""


def rewritten_activation(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Return what an activation returns."""
    rest = {name: value for name, value in kwargs.items() if name not in ("input", "inplace")}
    x = args[0] if args else kwargs["input"]
    is_plain = (
        len(args) < 2
        and not kwargs.get("inplace")
        and x.requires_grad
        and torch.is_grad_enabled()
        and not is_transformed()
        and not torch.is_autocast_enabled(x.device.type)
    )
    return _Activation.apply(x, partial(func, **rest)) if is_plain else func(*args, **kwargs)


class _Point:
    """Where an activation was evaluated."""

    def __init__(self, x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._x, self._function = x.detach(), function

    @cached_property
    def slope(self) -> torch.Tensor:
        """φ'(x)."""
        with torch.enable_grad():
            leaf = self._x.detach().requires_grad_()
            return torch.autograd.grad(self._function(leaf).sum(), leaf)[0]

    def bend(self) -> torch.Tensor:
        """Return φ''(x)."""
        return slope_and_bend(self._function, self._x)[1]


class _Activation(torch.autograd.Function):
    @staticmethod
    @unwatched
    def forward(
        ctx: Any, x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.point = _Point(x, function)
        return function(x)

    @staticmethod
    @unwatched
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            return _Gradient.apply(g, *ctx.saved_tensors, ctx.point), None
        return g * ctx.point.slope, None


class _Gradient(torch.autograd.Function):
    @staticmethod
    @unwatched
    def forward(ctx: Any, g: torch.Tensor, x: torch.Tensor, point: _Point) -> torch.Tensor:
        ctx.point, ctx.g, ctx.bent = point, g.detach(), None
        return g * point.slope

    @staticmethod
    @unwatched
    @once_differentiable
    def backward(ctx: Any, v: torch.Tensor) -> Any:
        in_g, in_x, _ = needed_by(ctx)
        if in_x and ctx.bent is None:
            ctx.bent, ctx.g = ctx.point.bend().mul_(ctx.g), None
        return v * ctx.point.slope if in_g else None, v * ctx.bent if in_x else None, None


def slope_and_bend(
    function: Callable[[torch.Tensor], torch.Tensor], z: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return φ′(z) and φ″(z) of an elementwise function, by autograd."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(leaf).sum(), leaf, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), leaf, materialize_grads=True)
    return slope.detach(), bend

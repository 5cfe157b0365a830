"""Convolutions whose second derivatives cost no more than they must.

y = W * x is linear in the kernel W and in the input x, so with the adjoints W* and x* its
derivatives are convolutions again:

    first:   g ↦ (W* g, x* g)                            in x and in W
    second:  (v, V) ↦ W * v + V * x,  V* g,  v* g        in g, in x and in W

torch's own second derivative computes all three whatever is asked for, the last one by a
convolution of channels with channels that no kernel is made for. Here each is computed when it is
asked for, by the kernels of the first derivative.
"""

# pyright: reportIncompatibleMethodOverride=false
# torch gives `backward` as many gradients as `forward` has outputs.
from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hyperribbon.core.devices.torch_private import is_differentiated, is_transformed

_ASKED = threading.local()


@contextmanager
def only_needed(inputs: Sequence[Any]) -> Generator[None]:
    """Let convolutions' backward passes differentiate by these leaves only."""
    before = getattr(_ASKED, "leaves", None)
    _ASKED.leaves = {id(tensor) for tensor in inputs}  # edges of a graph are no leaves
    try:
        yield
    finally:
        _ASKED.leaves = before


def convolve(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Return what torch's convolutions return, in every dimension, transposed or not."""
    is_transposed = "transpose" in func.__name__
    names = ("stride", "padding", "output_padding", "groups", "dilation")
    if not is_transposed:
        names = ("stride", "padding", "dilation", "groups")
    call: dict[str, Any] = {"bias": None, "stride": 1, "padding": 0, "output_padding": 0}
    call |= {"groups": 1, "dilation": 1}
    call |= dict(zip(("input", "weight", "bias", *names), args, strict=False))
    call |= kwargs
    inputs: torch.Tensor = call["input"]
    weight: torch.Tensor = call["weight"]
    bias: torch.Tensor | None = call["bias"]
    axes = weight.ndim - 2
    dilation: int | Sequence[int] = call["dilation"]
    reach = [dilation] * axes if isinstance(dilation, int) else dilation
    margins = [(size - 1) * d for size, d in zip(weight.shape[2:], reach, strict=False)]
    if call["padding"] == "same" and not any(margin % 2 for margin in margins):
        call["padding"] = [margin // 2 for margin in margins]
    elif call["padding"] == "valid":
        call["padding"] = 0
    if (
        isinstance(call["padding"], str)
        or inputs.ndim != weight.ndim
        or inputs.dtype != weight.dtype
        or not torch.is_grad_enabled()
        or is_transformed()
        or torch.is_autocast_enabled(inputs.device.type)
    ):
        return func(*args, **kwargs)
    sizes: dict[str, list[int]] = {
        key: [value] * axes if isinstance(value, int) else list(value) * (axes // len(value))
        for key, value in call.items()
        if key in ("stride", "padding", "dilation", "output_padding")
    }
    settings = (
        sizes["stride"],
        sizes["padding"],
        sizes["dilation"],
        is_transposed,
        sizes["output_padding"],
        call["groups"],
    )
    result: torch.Tensor = _Convolution.apply(inputs, weight, settings)
    if bias is not None:
        result = result + bias.view(-1, *(1,) * axes)
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, settings: tuple[Any, ...]
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings = settings
        return torch.convolution(x, weight, None, *settings)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needed = needed_inputs(ctx)
        if torch.is_grad_enabled():
            slopes = _Gradient.apply(g, x, weight, ctx.settings, needed)
        else:
            slopes = _gradient(g, x, weight, ctx.settings, needed)
        return *slopes, None


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        g: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        settings: tuple[Any, ...],
        needed: list[bool],
    ) -> Any:
        ctx.save_for_backward(g, x, weight)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return _gradient(g, x, weight, settings, needed)

    @staticmethod
    def backward(ctx: Any, v: torch.Tensor | None, kernel: torch.Tensor | None) -> Any:
        g, x, weight = ctx.saved_tensors
        of_g, of_x, of_weight = needed_inputs(ctx)[:3]
        along = in_x = in_weight = None
        if of_g and v is not None:
            along = torch.convolution(v, weight, None, *ctx.settings)
        if of_g and kernel is not None:
            moved = torch.convolution(x, kernel, None, *ctx.settings)
            along = moved if along is None else along + moved
        if of_x and kernel is not None:
            in_x = _gradient(g, x, kernel, ctx.settings, [True, False])[0]
        if of_weight and v is not None:
            in_weight = _gradient(g, v, weight, ctx.settings, [False, True])[1]
        return along, in_x, in_weight, None, None


def _gradient(
    g: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    settings: tuple[Any, ...],
    needed: list[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return a convolution's gradients W* g and x* g, each where it is needed."""
    found = torch.ops.aten.convolution_backward(
        g, x, weight, None, *settings, (needed[0], needed[1], False)
    )
    return found[0], found[1]


def needed_inputs(ctx: Any) -> list[bool]:
    """Return by which inputs of a convolution the present backward pass differentiates."""
    leaves = getattr(_ASKED, "leaves", None)
    nodes = iter([node for node, _ in ctx.next_functions if node is not None])
    needed: list[bool] = []
    for may_be in ctx.needs_input_grad:
        if may_be:  # those that are not have no node, or none that is said
            node = next(nodes)
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                may_be = leaves is None or id(leaf) in leaves
            else:
                may_be = is_differentiated(node)
        needed.append(bool(may_be))
    return needed

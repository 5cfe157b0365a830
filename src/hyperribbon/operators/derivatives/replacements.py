"""Operations that are replaced by equal ones which can be differentiated twice, and cheaply.

Some kernels have no second derivative on some devices (fused attention, recurrent layers of
oneDNN), a wrong one (weight norm) or a slow one (batch norm with fixed statistics). While a model
is evaluated here, each of them is computed in another way; what it computes stays the same up to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.torch_private import keeps_other_tensors
from hyperribbon.operators.derivatives.convolutions import convolve
from hyperribbon.operators.derivatives.recurrent_layers import RECURRENT, run_recurrent


@contextmanager
def twice_differentiable() -> Generator[None]:
    """Evaluate models with replacements that have second derivatives, also inside `no_grad()`.

    Backward passes run inside it too, where attention in checkpointed parts is evaluated again.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(cast(AbstractContextManager[Any], sdpa_kernel(SDPBackend.MATH)))
        stack.enter_context(_Replacing())
        yield


class _Replacing(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(getattr(func, "__name__", ""))
        if replacement is None or keeps_other_tensors():  # checkpoints evaluate it again, as it is
            return func(*args, **kwargs)
        return replacement(func, args, kwargs)


def _batch_norm(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Replacement of batch norm with fixed statistics: x·s + t with one s and t per channel."""
    names = ("input", "mean", "variance", "weight", "bias", "training", "momentum", "eps")
    renamed = {"running_mean": "mean", "running_var": "variance"}
    call: dict[str, Any] = dict(zip(names, args, strict=False))
    call |= {renamed.get(key, key): value for key, value in kwargs.items()}
    inputs, mean = call["input"], call["mean"]
    if call.get("training") or mean is None or mean.dtype != inputs.dtype:
        return func(*args, **kwargs)
    scale = (call["variance"] + call.get("eps", 1e-5)).rsqrt()
    if call.get("weight") is not None:
        scale = scale * call["weight"]
    shift = -mean * scale
    if call.get("bias") is not None:
        shift = shift + call["bias"]
    shape = (1, -1, *(1,) * (inputs.ndim - 2))
    return torch.addcmul(shift.view(shape), inputs, scale.view(shape))


def _instance_norm(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Replacement of instance norm, whose kernel's derivative is wrong on some layouts."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats")
    call: dict[str, Any] = {**dict(zip((*names, "momentum", "eps"), args, strict=False)), **kwargs}
    inputs = call["input"]
    if not call.get("use_input_stats", True) or inputs.ndim < 3:
        return func(*args, **kwargs)
    axes = tuple(range(2, inputs.ndim))
    centred = inputs - inputs.mean(axes, keepdim=True)
    scale = (centred.square().mean(axes, keepdim=True) + call.get("eps", 1e-5)).rsqrt()
    shape = (1, -1, *(1,) * len(axes))
    normal = centred * scale
    if call.get("weight") is not None:
        normal = normal * call["weight"].view(shape)
    return normal if call.get("bias") is None else normal + call["bias"].view(shape)


def _weight_norm(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Replacement of weight norm, v·g/‖v‖: the kernel's second derivative is wrong."""
    call: dict[str, Any] = {"dim": 0, **dict(zip(("v", "g", "dim"), args, strict=False)), **kwargs}
    v, dim = call["v"], call["dim"]
    others = [axis for axis in range(v.ndim) if dim == -1 or axis != dim % v.ndim]
    length = v.square().sum(others, keepdim=dim != -1).sqrt()
    return v * (call["g"] / length)


def _embedding(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Replacement of F.embedding: rows of a table, with gradients that are dense.

    Rows for padding have no derivative in reverse mode; nor here in forward mode.

    Returns:
        What the kernel returns.

    Raises:
        ArgumentError: The embedding scales its gradients by the batch.
    """
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")
    call: dict[str, Any] = dict(zip((*names, "sparse"), args, strict=False))
    call |= {**kwargs, "sparse": False}
    if call.get("scale_grad_by_freq"):
        raise ArgumentError(
            "model",
            "scale_grad_by_freq=True",
            "an embedding scales its gradients by the batch, so they are not those of the loss",
            "Evaluate it with scale_grad_by_freq=False; its outputs are the same.",
        )
    rows, padding = func(**call), call.get("padding_idx")
    if padding is None or (padding == -1 and func is torch.embedding):
        return rows
    skipped = (call["input"] == padding % len(call["weight"])).unsqueeze(-1)
    return torch.where(skipped, rows.detach(), rows)


def _embedding_bag(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Replacement of embedding bags, whose kernel has no second derivative."""
    names = ("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode")
    names += ("sparse", "per_sample_weights", "include_last_offset", "padding_idx")
    call: dict[str, Any] = {"mode": "mean", **dict(zip(names, args, strict=False)), **kwargs}
    special = call.get("max_norm") is not None or call.get("scale_grad_by_freq")
    if call["input"].ndim != 2 or special or call["mode"] not in ("sum", "mean"):
        return func(*args, **kwargs)
    indices, weight, padding = call["input"], call["weight"], call.get("padding_idx")
    counted = torch.ones_like(indices, dtype=weight.dtype)
    if padding is not None:
        counted = (indices != padding % len(weight)).to(weight.dtype)
    factors = call.get("per_sample_weights")
    factors = counted if factors is None else counted * factors
    total = (torch.nn.functional.embedding(indices, weight) * factors.unsqueeze(2)).sum(1)
    return total if call["mode"] == "sum" else total / counted.sum(1, keepdim=True).clamp(min=1)


def _hardsigmoid(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Replacement of hardsigmoid, min(max(x + 3, 0), 6)/6, without a second derivative in torch."""
    inputs = args[0] if args else kwargs["input"]
    return torch.nn.functional.hardtanh(inputs + 3, 0.0, 6.0) / 6


_PLAIN_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")

_REPLACEMENTS: dict[str, Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]] = {
    **dict.fromkeys((*_PLAIN_CONVOLUTIONS, *_TRANSPOSED), convolve),
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "_weight_norm": _weight_norm,
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    "hardsigmoid": _hardsigmoid,
    **dict.fromkeys(RECURRENT, run_recurrent),
}

"""How layers that are understood make the gradients of their parameters, sample by sample.

A rule takes the arguments of a call and returns, for each parameter that it understands, what turns
(its name, what flows back into the output (n, m, …)) into a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from hyperribbon.operators.derivatives.factors import Explicit, Factor, Lookup, Outer

_PATCH_BYTES = 2**20  # inputs of a convolution that are unfolded at once: they stay in the cache

ADDITIONS = ("add", "__add__", "__radd__", "add_", "__iadd__")
"""Names of what adds two tensors."""

Maker = Callable[[str, torch.Tensor], Factor]
"""Returns the gradients of a parameter, from its name and what flows back (n, m, …)."""


@dataclass(frozen=True)
class RowMaker:
    """Makes the gradients of a parameter from what flows back, m times (n, …).

    For large outputs, which take long to stack.
    """

    make: Callable[[str, list[torch.Tensor]], Factor]


AnyMaker = TypeVar("AnyMaker", bound=Maker | RowMaker)
Rule = Callable[[tuple[Any, ...], dict[str, Any]], Mapping[int, Maker | RowMaker]]


def _bound(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _linear(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    call = _bound(("input", "weight", "bias"), args, kwargs)
    weight = _weight_of(call["input"].detach())
    if weight is None:
        return {}
    return _makers(call, weight=weight, bias=lambda name, back: _shift(name, back, back.shape[-1:]))


def _matrix_product(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    """Rule of a matrix product: inputs times a weight (in, out)."""
    if kwargs or len(args) != 2 or not _is_matrix(args[1]):
        return {}
    make = _weight_of(args[0].detach(), is_transposed=True)
    return {} if make is None else {id(args[1]): make}


def _matrix_product_and_shift(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    """Rule of torch.addmm: a matrix product with a bias, the linear layer of GPT-2."""
    if kwargs or len(args) != 3:
        return {}
    shift, makers = args[0], _matrix_product(args[1:], {})
    if isinstance(shift, torch.Tensor) and shift.ndim == 1:
        makers[id(shift)] = _shifting(tuple(shift.shape))
    return makers


def _is_matrix(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 2


def _weight_of(inputs: torch.Tensor, is_transposed: bool = False) -> Maker | None:
    """Return the gradient rule of the weight that inputs (n, …, in) are multiplied by."""
    if inputs.ndim < 2:
        return None
    right = inputs.flatten(1, -2) if inputs.ndim > 2 else inputs.unsqueeze(1)

    def make(name: str, back: torch.Tensor) -> Factor:
        left = back.flatten(2, -2) if back.ndim > 3 else back.unsqueeze(2)
        return Outer(name, left, right, is_transposed=is_transposed).compact()

    return make


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, RowMaker]:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    call = _bound(names, args, kwargs)
    kernel, inputs = call["weight"], call["input"].detach()
    spatial = kernel.ndim - 2
    if spatial not in (1, 2) or inputs.ndim != kernel.ndim:
        return {}
    sizes = kernel.shape[2:]
    dilation, stride = (_tuple(call.get(key, 1), spatial) for key in ("dilation", "stride"))
    groups = call.get("groups", 1)
    padding = _padding(call.get("padding", 0), sizes, dilation)

    along = (1,) * (2 - spatial)
    window = {"dilation": (*along, *dilation), "stride": (*along, *stride)}

    def unfold(some: torch.Tensor) -> torch.Tensor:
        padded = F.pad(some, padding)
        padded = padded.unsqueeze(2) if spatial == 1 else padded
        return F.unfold(padded, (*along, *sizes), **window)

    def weight(name: str, rows: list[torch.Tensor]) -> Factor:
        count, width, positions = len(inputs), kernel[0].numel() * groups, rows[0][0, 0].numel()
        written = count * len(rows) * kernel.numel()
        if groups == 1 and written > positions * count * (len(rows) * len(kernel) + width):
            left = torch.stack(rows, dim=1).flatten(3).transpose(2, 3)
            return Outer(name, left, unfold(inputs).transpose(1, 2))
        step = max(1, _PATCH_BYTES // (positions * width * inputs.element_size()))
        blocks = []
        for start in range(0, count, step):
            some = slice(start, start + step)
            right = unfold(inputs[some]).unflatten(1, (groups, -1))
            left = torch.stack([row[some] for row in rows], dim=1).flatten(3)
            left = left.unflatten(2, (groups, -1))
            blocks.append(torch.einsum("njgot,ngit->njgoi", left, right))
        return Explicit(name, torch.cat(blocks))

    def bias(name: str, rows: list[torch.Tensor]) -> Factor:
        return Explicit(name, torch.stack([_sum_positions(row) for row in rows], dim=1))

    return _makers(call, weight=RowMaker(weight), bias=RowMaker(bias))


def _embedding(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")
    call = _bound(names, args, kwargs)
    if call.get("max_norm") is not None or call.get("scale_grad_by_freq"):
        return {}
    indices, size = call["input"], call["weight"].shape
    padding = call.get("padding_idx")

    def weight(name: str, back: torch.Tensor) -> Factor:
        left = back.reshape(*back.shape[:2], -1, size[1])
        read = indices.reshape(len(indices), -1)
        if padding is not None:
            left = left * (read != padding % size[0])[:, None, :, None]
        return Lookup(name, left, read, size[0])

    return _makers(call, weight=weight)


def shared_rows_rule(args: tuple[Any, ...], kwargs: dict[str, Any], samples: int) -> Maker:
    """Return the gradient rule of a table of which all samples read the same rows.

    It is for what flows back into these rows from each sample, (n, m, *shape of the rows).
    """
    call = _bound(("input", "weight"), args, kwargs)
    read = call["input"].reshape(1, -1).expand(samples, -1)
    return _embedding((read, *args[1:]), {**kwargs, **({} if args else {"input": read})})[
        id(call["weight"])
    ]


def _expansion(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    """Rule of a parameter that every sample is given: a class token."""
    return {id(args[0]): _shifting(tuple(args[0].shape))}


def _after_norm(
    normalize: Callable[..., torch.Tensor], names: tuple[str, ...], is_per_channel: bool = False
) -> Rule:
    """Return the rule of the weight and bias after a normalisation, per channel or last axes."""

    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, RowMaker]:
        call = _bound(("input", *names), args, kwargs)
        shape, inputs = tuple(call.get("normalized_shape", ())), call["input"].detach()
        if call.get("training") or inputs.ndim <= len(shape):
            return {}
        options = {key: call[key] for key in names if key in call and key not in _AFFINE}

        def total(row: torch.Tensor) -> torch.Tensor:
            return _sum_positions(row) if is_per_channel else sum_to(row[:, None], shape)[:, 0]

        def bias(name: str, rows: list[torch.Tensor]) -> Factor:
            return Explicit(name, torch.stack([total(row) for row in rows], dim=1))

        def weight(name: str, rows: list[torch.Tensor]) -> Factor:
            normal = normalize(inputs, **options)
            return Explicit(name, torch.stack([total(row * normal) for row in rows], dim=1))

        return _makers(call, weight=RowMaker(weight), bias=RowMaker(bias))

    return rule


_AFFINE = ("weight", "bias")
_STATISTICS = ("running_mean", "running_var")
_layer_norm = _after_norm(F.layer_norm, ("normalized_shape", *_AFFINE, "eps"))
_rms_norm = _after_norm(F.rms_norm, ("normalized_shape", "weight", "eps"))
_group_norm = _after_norm(F.group_norm, ("num_groups", *_AFFINE, "eps"), is_per_channel=True)
_batch_norm = _after_norm(
    F.batch_norm, (*_STATISTICS, *_AFFINE, "training", "momentum", "eps"), is_per_channel=True
)


def _addition(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    """Rule of a parameter added to something with samples: a position code, a class token."""
    return {id(own): _shifting(tuple(own.shape)) for own, _ in _shared(args, kwargs)}


def _multiplication(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    """Rule of a parameter that multiplies something with samples: a gain, a norm's weight."""
    return {id(own): _scaling(own, other) for own, other in _shared(args, kwargs)}


def _shared(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield for a rule the factor or summand that all samples share, and the other one."""
    if len(args) != 2 or kwargs or not all(isinstance(a, torch.Tensor) for a in args):
        return
    for own, other in (args, args[::-1]):
        is_shared = own.ndim < other.ndim or (own.ndim == other.ndim and own.shape[0] == 1)
        if is_shared and other.ndim > 0:
            yield own, other


def _makers(call: dict[str, Any], **makers: AnyMaker) -> dict[int, AnyMaker]:
    return {id(call[key]): maker for key, maker in makers.items() if call.get(key) is not None}


def _scaling(own: torch.Tensor, other: torch.Tensor) -> Maker:
    shape, other = tuple(own.shape), other.detach()
    return lambda name, back: _shift(name, back * other.unsqueeze(1), shape)


def _shifting(shape: tuple[int, ...]) -> Maker:
    return lambda name, back: _shift(name, back, shape)


def _shift(name: str, back: torch.Tensor, shape: tuple[int, ...]) -> Factor:
    """Rule of a parameter that is broadcast to a layer's output and added."""
    return Explicit(name, sum_to(back, shape))


def sum_to(back: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the rule's gradient (n, m, *shape) of a tensor that was broadcast."""
    count, rows = back.shape[:2]
    flat = back.flatten(0, 1).unsqueeze(1)
    target = (1,) * (flat.ndim - 1 - len(shape)) + tuple(shape)
    return flat.sum_to_size(flat.shape[0], *target).reshape(count, rows, *shape)


def _sum_positions(row: torch.Tensor) -> torch.Tensor:
    """Return the rule's gradient (n, C) of a shift of channels (n, C, …)."""
    return row.flatten(2).sum(2) if row.ndim > 2 else row


def _tuple(value: Any, length: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values if len(values) == length else values * length


def _padding(padding: Any, sizes: tuple[int, ...], dilation: tuple[int, ...]) -> list[int]:
    """Return F.pad's list for the rule of a padded convolution, last axis first."""
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, sizes, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        each = _tuple(0 if padding == "valid" else padding, len(sizes))
        pairs = [(p, p) for p in each]
    return [side for pair in reversed(pairs) for side in pair]


RULES: dict[str, Rule] = {
    "linear": _linear,
    "addmm": _matrix_product_and_shift,
    "matmul": _matrix_product,
    "__matmul__": _matrix_product,
    "mm": _matrix_product,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "embedding": _embedding,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "expand": _expansion,
    **dict.fromkeys(ADDITIONS, _addition),
    "mul": _multiplication,
    "__mul__": _multiplication,
    "__rmul__": _multiplication,
}
"""By the name of the function that is called."""

BY_POSITION: tuple[Rule, ...] = (
    _linear,
    _matrix_product,
    _matrix_product_and_shift,
    _embedding,
    _layer_norm,
    _rms_norm,
    _addition,
    _multiplication,
)
"""Rules of operations that treat all axes between the first and the last alike."""

"""Watching a forward pass: where each parameter is used, on what input, with what output.

The calls are seen by a torch function mode, so modules carry no hook, functional code is seen too,
and a parameter that meets an unknown operation is known to have done so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from hyperribbon.core.checks import is_listed
from hyperribbon.core.devices.torch_inside import tree_leaves
from hyperribbon.core.devices.typed import unflattened
from hyperribbon.operators.derivatives.factors import Explicit, Factor, Lookup, Outer

__all__ = ["CallRecorder", "Use"]


@dataclass(frozen=True)
class Use:
    """One use of one parameter by a layer that is understood.

    Attributes:
        name: The parameter.
        edge: The layer's output in the graph (fixed before any change in place).
        shape: Shape of the output.
        positions: Rows of the output that belong to one sample: more than one where the layer was
            given the positions of all samples below each other.
        factor: Function from (name, what flows back (n, m, …)) to the per-sample gradients.
    """

    name: str
    edge: GradientEdge
    shape: torch.Size
    positions: int
    factor: Callable[[str, torch.Tensor], Factor]

    def by_sample(self, flowed: torch.Tensor) -> torch.Tensor:
        """Return what flows back into the output, (m, *shape), as (m, n, …)."""
        return flowed if self.positions == 1 else _unfolded(flowed, 1, self.positions)


class CallRecorder(TorchFunctionMode):
    """Collects the uses of given parameters while a model runs.

    Args:
        weights: The parameters by name.
        samples: Number of samples that the model runs on.

    Attributes:
        uses: What was understood.
        others: Names of parameters that some other operation used.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], samples: int) -> None:
        super().__init__()
        self._samples = samples
        self._names = {id(tensor): name for name, tensor in weights.items()}
        self.uses: list[Use] = []
        self.others: set[str] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        present = {
            self._names[id(leaf)]: leaf
            for leaf in tree_leaves((args, kwargs))
            if id(leaf) in self._names
        }
        if present and _carries_gradient(result):
            found, positions = self._understood(getattr(func, "__name__", ""), args, kwargs, result)
            for name, tensor in present.items():
                if id(tensor) in found and _reaches_once(tensor, args, kwargs):
                    edge, make = get_gradient_edge(result), found[id(tensor)]
                    self.uses.append(Use(name, edge, result.shape, positions, make))
                else:
                    self.others.add(name)
        return result

    def _understood(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> tuple[dict[int, Maker], int]:
        """Return what makes gradients of the parameters of a call, and its rows a sample."""
        rule = _RULES.get(name)
        if rule is None or not isinstance(result, torch.Tensor) or result.ndim == 0:
            return {}, 1
        positions, rest = divmod(len(result), self._samples)
        if positions <= 1 or rest:
            return rule(args, kwargs), 1
        if rule not in _BY_POSITION:
            return {}, 1

        def unfolded(value: Any) -> Any:
            is_data = isinstance(value, torch.Tensor) and id(value) not in self._names
            if not is_data or value.ndim == 0 or len(value) != len(result):
                return value
            return _unfolded(value.detach(), 0, positions)

        together = {key: unfolded(value) for key, value in kwargs.items()}
        return rule(tuple(map(unfolded, args)), together), positions


Maker = Callable[[str, torch.Tensor], Factor]


def _unfolded(tensor: torch.Tensor, dim: int, positions: int) -> torch.Tensor:
    """Return a tensor with an axis of samples and one of positions in place of their product."""
    return unflattened(tensor, dim, (tensor.shape[dim] // positions, positions))


def _carries_gradient(result: Any) -> bool:
    return any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(result)
    )


def _reaches_once(tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return sum(leaf is tensor for leaf in tree_leaves((args, kwargs))) == 1


def _bound(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _linear(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    call = _bound(("input", "weight", "bias"), args, kwargs)
    weight = _weight_of(call["input"].detach())
    if weight is None:
        return {}
    return _makers(call, weight=weight, bias=lambda name, back: _shift(name, back, back.shape[-1:]))


def _matrix_product(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    """Inputs times a weight (in, out), the transpose of what linear layers keep."""
    if kwargs or len(args) != 2 or not _is_matrix(args[1]):
        return {}
    make = _weight_of(args[0].detach(), is_transposed=True)
    return {} if make is None else {id(args[1]): make}


def _matrix_product_and_shift(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    """The same with a bias that is added: torch.addmm, the linear layer of GPT-2."""
    if kwargs or len(args) != 3:
        return {}
    shift, makers = args[0], _matrix_product(args[1:], {})
    if isinstance(shift, torch.Tensor) and shift.ndim == 1:
        makers[id(shift)] = _shifting(tuple(shift.shape))
    return makers


def _is_matrix(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 2


def _weight_of(inputs: torch.Tensor, is_transposed: bool = False) -> Maker | None:
    """Return what makes the gradients of the weight that inputs (n, …, in) are multiplied by."""
    if inputs.ndim < 2:
        return None
    right = inputs.flatten(1, -2) if inputs.ndim > 2 else inputs.unsqueeze(1)

    def make(name: str, back: torch.Tensor) -> Factor:
        left = back.flatten(2, -2) if back.ndim > 3 else back.unsqueeze(2)
        return Outer(name, left, right, is_transposed=is_transposed).compact()

    return make


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
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

    def weight(name: str, back: torch.Tensor) -> Factor:
        padded = F.pad(inputs, padding)
        if spatial == 1:
            padded = padded.unsqueeze(2)
        along = (1,) * (2 - spatial)
        patches = F.unfold(
            padded, (*along, *sizes), dilation=(*along, *dilation), stride=(*along, *stride)
        )
        left = back.flatten(3).transpose(2, 3)
        if groups == 1:
            return Outer(name, left, patches.transpose(1, 2)).compact()
        right = unflattened(patches, 1, (groups, -1))
        split = unflattened(left, 3, (groups, -1))
        return Explicit(name, torch.einsum("njtgo,ngit->njgoi", split, right))

    return _makers(call, weight=weight, bias=lambda name, back: _channel_sum(name, back))


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


def _trailing_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    """Layer norm and RMS norm: weight and bias over the last axes."""
    call = _bound(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs)
    shape, inputs = tuple(call["normalized_shape"]), call["input"].detach()
    if inputs.ndim <= len(shape):
        return {}
    eps = call.get("eps", 1e-5)

    def weight(name: str, back: torch.Tensor) -> Factor:
        return _shift(name, back * F.layer_norm(inputs, shape, eps=eps).unsqueeze(1), shape)

    return _makers(call, weight=weight, bias=lambda name, back: _shift(name, back, shape))


def _batch_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    names = (
        "input",
        "running_mean",
        "running_var",
        "weight",
        "bias",
        "training",
        "momentum",
        "eps",
    )
    call = _bound(names, args, kwargs)
    if call.get("training"):
        return {}
    inputs, eps = call["input"].detach(), call.get("eps", 1e-5)

    def weight(name: str, back: torch.Tensor) -> Factor:
        mean, variance = call["running_mean"], call["running_var"]
        normal = F.batch_norm(inputs, mean, variance, None, None, False, 0.0, eps)
        return _channel_sum(name, back * normal.unsqueeze(1))

    return _makers(call, weight=weight, bias=lambda name, back: _channel_sum(name, back))


def _group_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    call = _bound(("input", "num_groups", "weight", "bias", "eps"), args, kwargs)
    inputs, groups, eps = call["input"].detach(), call["num_groups"], call.get("eps", 1e-5)

    def weight(name: str, back: torch.Tensor) -> Factor:
        normal = F.group_norm(inputs, groups, eps=eps)
        return _channel_sum(name, back * normal.unsqueeze(1))

    return _makers(call, weight=weight, bias=lambda name, back: _channel_sum(name, back))


def _addition(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Maker]:
    """A parameter added to something with samples: a position code, a class token."""
    if len(args) != 2 or kwargs or not all(isinstance(a, torch.Tensor) for a in args):
        return {}
    makers: dict[int, Maker] = {}
    for own, other in (args, args[::-1]):
        shared = own.ndim < other.ndim or (own.ndim == other.ndim and own.shape[0] == 1)
        if shared and other.ndim > 0:
            shape = tuple(own.shape)
            makers[id(own)] = _shifting(shape)
    return makers


def _makers(call: dict[str, Any], **makers: Maker) -> dict[int, Maker]:
    return {id(call[key]): maker for key, maker in makers.items() if call.get(key) is not None}


def _shifting(shape: tuple[int, ...]) -> Maker:
    return lambda name, back: _shift(name, back, shape)


def _shift(name: str, back: torch.Tensor, shape: tuple[int, ...]) -> Factor:
    """Gradients of a parameter that was broadcast to the layer's output and added."""
    count, rows = back.shape[:2]
    flat = back.flatten(0, 1).unsqueeze(1)
    target = (1,) * (flat.ndim - 1 - len(shape)) + tuple(shape)
    summed = flat.sum_to_size(flat.shape[0], *target)
    return Explicit(name, summed.reshape(count, rows, *shape))


def _channel_sum(name: str, back: torch.Tensor) -> Factor:
    return Explicit(name, back.flatten(3).sum(3) if back.ndim > 3 else back)


def _tuple(value: Any, length: int) -> tuple[int, ...]:
    values = tuple(value) if is_listed(value) else (value,)
    return values if len(values) == length else values * length


def _padding(padding: Any, sizes: tuple[int, ...], dilation: tuple[int, ...]) -> list[int]:
    """Return F.pad's list, last axis first."""
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, sizes, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        each = _tuple(0 if padding == "valid" else padding, len(sizes))
        pairs = [(p, p) for p in each]
    return [side for pair in reversed(pairs) for side in pair]


_RULES: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], dict[int, Maker]]] = {
    "linear": _linear,
    "addmm": _matrix_product_and_shift,
    "matmul": _matrix_product,
    "__matmul__": _matrix_product,
    "mm": _matrix_product,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "embedding": _embedding,
    "layer_norm": _trailing_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "add": _addition,
    "__add__": _addition,
    "__radd__": _addition,
}

# Rules of operations that treat all axes between the first and the last alike.
_BY_POSITION = (
    _linear,
    _matrix_product,
    _matrix_product_and_shift,
    _embedding,
    _trailing_norm,
    _addition,
)

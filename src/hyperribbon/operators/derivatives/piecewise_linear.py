"""Recognises models that are piecewise linear in every single weight, from their operations.

There the model's own curvature has a zero diagonal, so the Hessian has the diagonal and the trace
of the Gauss-Newton matrix for any convex loss. Convolutions, skips, pooling, batch norm in
evaluation mode and piecewise linear activations keep it; products of two tensors keep it as long as
no weight enters both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hyperribbon.core.devices.torch_private import (
    StorageWeakRef,
    as_one_operation,
    tree_leaves,
)
from hyperribbon.operators.derivatives.recurrent_layers import RECURRENT

_SHAPES = (
    "__get__ __getitem__ __setitem__ broadcast_to channel_shuffle chunk clone column_stack concat "
    "concatenate contiguous cat diagonal expand expand_as flatten flip gather hsplit hstack "
    "index_put index_select masked_fill moveaxis movedim narrow permute pixel_shuffle "
    "pixel_unshuffle ravel repeat reshape roll select split squeeze stack swapaxes t "
    "take_along_dim tensor_split tile to transpose type unbind unflatten unfold unsqueeze view "
    "view_as vstack float double"
)
_SUMS = (
    "add sub subtract __rsub__ rsub neg sum cumsum mean pad interpolate fold index_add scatter_add "
    "dropout alpha_dropout feature_dropout avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"
)
_KINKS = (
    "abs amax amin clamp clamp_max clamp_min clip hardshrink hardsigmoid hardtanh leaky_relu max "
    "maximum median min minimum relu relu6 rrelu softshrink sort threshold _threshold topk where "
    "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices "
    "max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"
)
_MULTIPLICATIONS = (
    "mul multiply matmul mm bmm mv dot einsum tensordot linear bilinear addmm baddbmm addcmul "
    "prelu embedding embedding_bag batch_norm conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d"
)
_PIECEWISE_LINEAR = frozenset(f"{_SHAPES} {_SUMS} {_KINKS}".split(" "))
_PRODUCTS = frozenset(_MULTIPLICATIONS.split(" "))
_QUOTIENTS = frozenset({"div", "divide", "true_divide"})
_DATA_DEPENDENT = ("__bool__", "item", "__int__", "__float__", "tolist", "numpy", "__index__")

_Names = frozenset[str]


def is_piecewise_linear(
    forward: Callable[[], torch.Tensor], weights: Mapping[str, torch.Tensor]
) -> bool:
    """Run a model and return whether it is piecewise linear in every single weight.

    Args:
        forward: Evaluates the model on a batch at the weights.
        weights: The parameters that hold the coordinates; they require gradients.

    Returns:
        True where every operation that a weight reaches is known to keep it so.
    """
    tracer = _Tracer(weights)
    with torch.enable_grad(), tracer:
        outputs = forward()
    return not tracer.broken and isinstance(outputs, torch.Tensor) and tracer.knows(outputs)


class _Tracer(TorchFunctionMode):
    """Follows which weights each tensor depends on, by the memory that it lies in."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._names: dict[StorageWeakRef, _Names] = {
            _place(tensor): frozenset({name}) for name, tensor in weights.items()
        }
        self._seen = set(self._names)  # whose gradients come from operations that were seen
        self.broken = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if self.broken:
            return func(*args, **kwargs)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        reached = [self._names.get(_place(x), frozenset()) for x in given]
        known = all(self.knows(x) for x in given)
        call = partial(func, *args, **kwargs)
        result = as_one_operation(call) if name in RECURRENT else call()
        self.broken = not known or not self._follow(name, args, kwargs, given, reached, result)
        return result

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor that carries gradients came from operations that were seen."""
        return not tensor.requires_grad or _place(tensor) in self._seen

    def _follow(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[torch.Tensor],
        reached: list[_Names],
        result: Any,
    ) -> bool:
        """Note which weights a result depends on; return whether it is still piecewise linear."""
        weights = frozenset[str]().union(*reached)
        changed = args[0] if name == "__setitem__" else result
        made = [x for x in tree_leaves(changed) if isinstance(x, torch.Tensor)]
        shared = {_place(x) for x in given}
        for tensor in made:
            place = _place(tensor)
            before = self._names.get(place, frozenset()) if place in shared else frozenset()
            if torch.is_grad_enabled() or before:
                # Comparisons and indices depend on no weight: they are piecewise constant.
                is_constant = not (tensor.is_floating_point() or tensor.is_complex())
                self._names[place] = before if is_constant else before | weights
            else:  # the inside of a custom autograd function is not followed
                self._names.pop(place, None)
        if not made:
            return name not in _DATA_DEPENDENT or not weights
        moved = [tensor for tensor in made if tensor.requires_grad]
        self._seen.update(map(_place, moved))
        if not weights or not moved:
            return True
        if any(tensor.is_complex() for tensor in moved):  # whose absolute values are curved
            return False
        plain = name.removesuffix("_") if not name.startswith("__") else name
        if plain in _PRODUCTS:
            disjoint = sum(map(len, reached)) == len(weights)
            return disjoint and not (plain == "batch_norm" and _is_training(args, kwargs))
        if plain in _QUOTIENTS:
            return len(reached) < 2 or not reached[1]
        return plain in _PIECEWISE_LINEAR


def _place(tensor: torch.Tensor) -> StorageWeakRef:
    """Return the memory by which piecewise linearity follows a tensor and its views.

    An address would not do: an operation that is not seen may be given freed memory.
    """
    return StorageWeakRef(tensor.untyped_storage())


def _is_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a batch_norm uses statistics of its batch, and so is not piecewise linear."""
    return bool(kwargs.get("training", args[5] if len(args) > 5 else False))

"""Recognises models that are piecewise linear in every single weight, from their operations.

There the model's own curvature has a zero diagonal, so the Hessian has the diagonal and the trace
of the Gauss-Newton matrix. Chains of linear layers and piecewise linear activations are recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hyperribbon.core.devices.torch_inside import seen_whole, tree_leaves
from hyperribbon.operators.derivatives.recurrent_rules import RECURRENT

__all__ = ["is_piecewise_linear"]

_RESHAPES = ("flatten", "reshape", "view")
_ACTIVATIONS = ("relu", "relu_", "leaky_relu", "leaky_relu_", "hardtanh", "relu6", "threshold")
_UNCHANGED = ("dropout", "alpha_dropout")
_DATA_DEPENDENT = ("__bool__", "item", "__int__", "__float__", "tolist", "numpy", "__index__")


def is_piecewise_linear(
    forward: Callable[[], torch.Tensor], weights: Mapping[str, torch.Tensor]
) -> bool:
    """Run a model and return whether it is a chain of linear and piecewise linear layers.

    Args:
        forward: Evaluates the model on a batch at the weights.
        weights: The parameters that hold the coordinates.

    Returns:
        True where it is, and each weight is used once.
    """
    tracer = _Tracer(weights)
    with torch.no_grad(), tracer:
        outputs = forward()
    return (
        not tracer.broken and outputs is tracer.current and sorted(tracer.used) == sorted(weights)
    )


class _Tracer(TorchFunctionMode):
    """Follows one tensor through a forward pass as long as the pass is a chain."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in weights.items()}
        self.current: torch.Tensor | None = None
        self.used: list[str] = []
        self.broken = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        call = partial(func, *args, **kwargs)
        result = seen_whole(call) if name in RECURRENT else call()
        if not self.broken:
            self.broken = not self._follow(name, args, kwargs, result)
        return result

    def _follow(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> bool:
        """Add one operation to the chain; return whether it is one."""
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not isinstance(result, torch.Tensor):
            holds_tensors = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result))
            return not holds_tensors and name not in _DATA_DEPENDENT
        if name == "clone" and self.current is None:  # of a batch that the model may write into
            return True
        if not args or (self.current is not None and args[0] is not self.current):
            return False
        if name == "linear":
            weights = [self._names[id(x)] for x in tensors[1:] if id(x) in self._names]
            self.used += weights
        elif len(tensors) != 1 or not (
            name in _ACTIVATIONS
            or (name in _RESHAPES and len(result) == len(tensors[0]))
            or (name in _UNCHANGED and result is tensors[0])
        ):
            return False
        self.current = result
        return True

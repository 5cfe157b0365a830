"""What hyperribbon asks of torch beyond its public names, in one place.

Each question to torch's engine has an answer for versions that do not know it: the one that is
right, if slower. The base classes of layers, trees of tensors and dispatch modes have no public
names to fall back on; they are the same from torch 2.4 to 2.15.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.init import _calculate_fan_in_and_fan_out as fan_in_and_fan_out
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormWithStatistics
from torch.nn.modules.conv import _ConvNd as Convolution
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
)
from torch.utils._pytree import (
    register_pytree_node,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)
from torch.utils._pytree import tree_map as _tree_map
from torch.utils.flop_counter import flop_registry

__all__ = [
    "BatchNorm",
    "Convolution",
    "Dropout",
    "FlopCounter",
    "InstanceNorm",
    "NormWithStatistics",
    "StorageWeakRef",
    "TorchDispatchMode",
    "fan_in_and_fan_out",
    "is_differentiated",
    "is_transformed",
    "keeps_other_tensors",
    "register_pytree_node",
    "as_one_operation",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
    "without_function_modes",
    "without_fallback_warnings",
    "without_onednn",
]


Given = ParamSpec("Given")
Returned = TypeVar("Returned")

BatchNorm = _BatchNorm
Dropout = _DropoutNd
InstanceNorm = _InstanceNorm
tree_map: Callable[[Callable[[Any], Any], Any], Any] = _tree_map


class FlopCounter(TorchDispatchMode):
    """Counts operations as torch's FlopCounterMode does, without loading torch's compiler.

    Attributes:
        flops: Operations so far, of matrix products, convolutions and attention.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count an operation and run it, by torch's private dispatch mode."""
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        self.flops += 0 if count is None else count(*args, **(kwargs or {}), out_val=result)
        return result


def is_transformed() -> bool:
    """Whether a function transform (vmap, grad, …) is at work, by torch's private interface."""
    ask = getattr(torch._C, "_are_functorch_transforms_active", None)
    return True if ask is None else ask()


def without_function_modes(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Let no torch function mode see a function's calls, by torch's private switch."""

    @wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return run


def as_one_operation(function: Callable[[], Returned]) -> Returned:
    """Run a function as one operation for torch's private dispatch modes with `see_whole`."""
    see = getattr(_get_current_dispatch_mode(), "see_whole", None)
    if see is None:
        return function()
    with _pop_mode_temporarily():
        result = function()
    see(result)
    return result


def is_differentiated(node: Any) -> bool:
    """Whether the running backward pass goes through a node, by torch's private graph task."""
    ask = getattr(torch._C, "_will_engine_execute_node", None)
    return True if ask is None else ask(node)


def keeps_other_tensors() -> bool:
    """Whether hooks replace the tensors saved for backward passes, by torch's private interface."""
    return _own_hooks.depth > 0 if _ask_hooks is None else _ask_hooks(True) is not None


class _Depth(threading.local):
    depth = 0


def _count_hooks(kind: Any, own: _Depth) -> None:
    """Count by torch's private interface, per thread, the hooks on saved tensors in force.

    Args:
        kind: `torch.autograd.graph.saved_tensors_hooks`, which checkpoints derive theirs from.
        own: Where the count is kept.
    """
    enter, leave = kind.__enter__, kind.__exit__

    def entered(self: Any) -> Any:
        found = enter(self)
        own.depth += 1
        return found

    def left(self: Any, *error: Any) -> Any:
        own.depth -= 1
        return leave(self, *error)

    kind.__enter__, kind.__exit__ = entered, left


_own_hooks = _Depth()
_ask_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # type: ignore
if _ask_hooks is None:  # torch 2.4 cannot be asked
    _count_hooks(torch.autograd.graph.saved_tensors_hooks, _own_hooks)


@contextmanager
def without_onednn() -> Generator[None]:
    """Let torch use its own kernels, by a private switch: the public one warns."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def without_fallback_warnings() -> Generator[None]:
    """Silence vmap where it takes operations one by one, by a private switch of torch."""
    switch = getattr(torch._C._functorch, "_set_vmap_fallback_warning_enabled", None)  # type: ignore
    if switch is None:
        yield
        return
    switch(False)
    try:
        yield
    finally:
        switch(True)

"""A private copy of the user's module, so that nothing that runs here reaches theirs.

The copy has modules of its own and tensors of its own; everything else (configurations, functions,
classes) it shares with the user's. What a forward pass sets or swaps is set in the copy.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.processes import ALONE, Processes

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)
_SHARDING = "__composable_api"  # what `fully_shard` and its kin remember a module by
_SCALARS = (bool, int, float, str, type(None))
Tensors = Callable[[torch.Tensor], torch.Tensor]


def unwrapped(model: nn.Module, processes: Processes) -> nn.Module:
    """Return the module inside DistributedDataParallel, for a private copy without collectives.

    Raises:
        ArgumentError: The parameters are sharded and there is no process group.
    """
    while isinstance(model, DistributedDataParallel):
        model = cast(nn.Module, model.module)
    if processes is ALONE and _is_sharded(model):
        reason = "its parameters are sharded over processes and no process group is given"
        remedy = "Give process_group=True, on every rank."
        raise ArgumentError("model", type(model).__name__, reason, remedy)
    return model


def unsharded(model: nn.Module) -> nn.Module:
    """Return the model for a private copy: whole parameters, no hooks that gather them.

    FSDP2 (`fully_shard`) and tensor parallelism keep parameters as DTensors and move them in hooks
    that cannot be differentiated twice. The copy shares everything else with the model, which is
    not touched. A plain model is returned as it is. Collective when the parameters are sharded.
    """
    return _Copier(lambda tensor: tensor).module(model) if _is_sharded(model) else model


def private_copy(model: nn.Module, tensors: Tensors) -> nn.Module:
    """Return a private copy of a module, which shares none of its modules and tensors.

    Args:
        model: Any module; tensors that layers share stay shared in the copy.
        tensors: Gives the copy's tensor for each parameter and buffer.

    Raises:
        ArgumentError: The model has parts in TorchScript, whose weights cannot be replaced.
    """
    scripted = [
        name or "model"
        for name, module in model.named_modules()
        if isinstance(module, torch.jit.ScriptModule)
    ]
    if scripted:
        raise ArgumentError(
            "model",
            ", ".join(scripted[:5]),
            "it is compiled by TorchScript, where weights cannot be replaced and derivatives of "
            "second order are not reliable",
            "Give the Python module it was made from, before torch.jit.script or torch.jit.trace.",
        )
    return _Copier(tensors).module(model)


class _Copier:
    """One copy in the making: every module and tensor that was met, and what stands for it."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._known: dict[int, Any] = {}
        self._alive: list[Any] = []  # ids stay unique while what they name is kept

    def module(self, module: nn.Module) -> nn.Module:
        """Return the private copy of a module with everything below it."""
        if id(module) in self._known:
            return self._known[id(module)]
        if type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules:
            return self._uncompile(module)
        copy = cast(nn.Module, object.__new__(_plain_class(type(module))))
        self._remember(module, copy)
        own = copy.__dict__
        for key, value in module.__dict__.items():
            if isinstance(value, _SCALARS):
                own[key] = value
            elif key in ("_parameters", "_buffers"):
                own[key] = {name: self._tensor(tensor) for name, tensor in value.items()}
            elif key == "_modules":
                own[key] = {
                    name: None if child is None else self.module(child)
                    for name, child in value.items()
                }
            elif key in _HOOKS:
                own[key] = type(value)()
                for place, hook in value.items():
                    if not _is_distributed(hook):
                        own[key][place] = self._value(hook)
            elif key != "_compiled_call_impl" and not str(key).startswith(_SHARDING):
                own[key] = self._value(value)
        return copy

    def _uncompile(self, module: nn.Module) -> nn.Module:
        """Return for a private copy what torch.compile has wrapped, run as it was written."""
        copy = _Uncompiled()
        self._remember(module, copy)
        copy._modules["_orig_mod"] = self.module(module._modules["_orig_mod"])  # type: ignore[arg-type]
        copy.training = module.training
        return copy

    def _tensor(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None:
            return None
        if id(tensor) not in self._known:
            self._remember(tensor, self._tensors(_whole(tensor)))
        return self._known[id(tensor)]

    def _value(self, value: Any, depth: int = 0) -> Any:
        """Return an attribute's private copy with the modules and tensors in it replaced."""
        if id(value) in self._known:
            return self._known[id(value)]
        if isinstance(value, nn.Module):
            return self.module(value)
        if isinstance(value, torch.Tensor):
            return value.detach().clone() if depth == 0 else value
        if isinstance(value, types.MethodType):
            owner = self._value(value.__self__, depth) if depth < 3 else value.__self__
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if type(value) is functools.partial:
            parts = [self._value(part, depth + 1) for part in (value.func, *value.args)]
            keywords = {key: self._value(v, depth + 1) for key, v in value.keywords.items()}
            return functools.partial(*parts, **keywords)
        if depth > 3 or type(value) not in (list, tuple, set, dict) or not value:
            return value
        # A container that holds modules is made anew; others may be shared with hooks and stay.
        items: list[Any] = list(value.values() if isinstance(value, dict) else value)
        copies = [self._value(item, depth + 1) for item in items]
        if all(copy is item for copy, item in zip(copies, items, strict=True)):
            return value
        if isinstance(value, dict):
            return dict(zip(value, copies, strict=True))
        rebuilt: Any = type(cast(object, value))
        return rebuilt(copies)

    def _remember(self, original: Any, copy: Any) -> None:
        self._known[id(original)] = copy
        self._alive.append(original)


class _Uncompiled(nn.Module):
    """Stands for the wrapper of torch.compile, whose parameters have its name in front."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._modules["_orig_mod"](*args, **kwargs)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules[name]
        return getattr(self._modules["_orig_mod"], name)


def _is_sharded(model: nn.Module) -> bool:
    return any(_is_dtensor(parameter) for parameter in model.parameters())


def _is_dtensor(tensor: Any) -> bool:
    """Whether a tensor for a private copy is a DTensor, without importing their module."""
    return hasattr(tensor, "full_tensor") and hasattr(tensor, "device_mesh")


def _whole(tensor: Any) -> torch.Tensor:
    """Return a parameter or buffer for a private copy, gathered from the ranks."""
    if not _is_dtensor(tensor):
        return tensor
    whole = tensor.detach().full_tensor()
    if tensor.device_mesh.size() == 1:
        whole = whole.clone()
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(whole, requires_grad=tensor.requires_grad) if is_parameter else whole


def _plain_class(kind: type) -> type:
    """Return the class for a private copy, before torch.distributed put its own in front of it."""
    if not any(base.__module__.startswith("torch.distributed") for base in kind.__mro__):
        return kind
    return next(
        base
        for base in kind.__mro__
        if not base.__module__.startswith("torch.distributed") and "__deepcopy__" not in vars(base)
    )


def _is_distributed(hook: Any) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return home.startswith("torch.distributed")

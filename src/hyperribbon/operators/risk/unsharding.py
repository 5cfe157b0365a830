"""Models that torch.distributed has wrapped or sharded, as plain ones."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.processes import ALONE, Processes

__all__ = ["unsharded", "unwrapped"]

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)


def unwrapped(model: nn.Module, processes: Processes) -> nn.Module:
    """Return the module inside DistributedDataParallel, whose own forward starts collectives.

    Raises:
        ArgumentError: The parameters are sharded and there is no process group.
    """
    while isinstance(model, DistributedDataParallel):
        model = model.module
    if processes is ALONE and _is_sharded(model):
        raise ArgumentError(
            "model",
            type(model).__name__,
            "its parameters are sharded over processes and no process group is given",
            "Give process_group=True, on every rank.",
        )
    return model


def unsharded(model: nn.Module) -> nn.Module:
    """Return the model with whole parameters and without the hooks that gather them.

    FSDP2 (`fully_shard`) and tensor parallelism keep parameters as DTensors and move them in hooks
    that cannot be differentiated twice. The copy shares everything else with the model, which is
    not touched. A plain model is returned as it is. Collective when the parameters are sharded.
    """
    return _copy(model, {}) if _is_sharded(model) else model


def _is_sharded(model: nn.Module) -> bool:
    return any(_is_dtensor(parameter) for parameter in model.parameters())


def _is_dtensor(tensor: Any) -> bool:
    """Whether it is a DTensor; their module takes half as long to import as torch itself."""
    return hasattr(tensor, "full_tensor") and hasattr(tensor, "device_mesh")


def _copy(module: nn.Module, known: dict[int, Any]) -> nn.Module:
    if id(module) in known:
        return known[id(module)]
    copy = object.__new__(_plain_class(type(module)))
    known[id(module)] = copy
    copy.__dict__.update({k: v for k, v in module.__dict__.items() if not _is_state(k)})
    for kind in ("_parameters", "_buffers"):
        tensors = getattr(module, kind)
        copy.__dict__[kind] = {name: _whole(tensor, known) for name, tensor in tensors.items()}
    copy.__dict__["_modules"] = {
        name: None if child is None else _copy(child, known)
        for name, child in module._modules.items()
    }
    for kind in _HOOKS:
        hooks = getattr(module, kind)
        own = ((key, hook) for key, hook in hooks.items() if not _is_distributed(hook))
        copy.__dict__[kind] = OrderedDict(own)
    return copy


def _whole(tensor: Any, known: dict[int, Any]) -> torch.Tensor | None:
    """Return a parameter or buffer gathered; one that layers share stays shared."""
    if not _is_dtensor(tensor):
        return tensor
    if id(tensor) not in known:
        whole = tensor.detach().full_tensor()
        if tensor.device_mesh.size() == 1:
            whole = whole.clone()
        known[id(tensor)] = (
            nn.Parameter(whole, requires_grad=tensor.requires_grad)
            if isinstance(tensor, nn.Parameter)
            else whole
        )
    return known[id(tensor)]


def _plain_class(kind: type) -> type:
    """Return the class before torch.distributed put its own in front of it."""
    return next(
        base
        for base in kind.__mro__
        if not base.__module__.startswith("torch.distributed") and "__deepcopy__" not in vars(base)
    )


def _is_state(key: str) -> bool:
    """Whether an attribute is what `fully_shard` and its kin remember a module by."""
    return str(key).startswith("__composable_api")


def _is_distributed(hook: Any) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return home.startswith("torch.distributed")

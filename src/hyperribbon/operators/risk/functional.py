"""Functions f(params, x) of a tree of tensors, as modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError

__all__ = ["FunctionModel", "as_model"]

_ALONE = "params"  # name of a tensor that is the whole tree


class FunctionModel(nn.Module):
    """The model x -> f(params, x) of a function and a tree of tensors.

    The floating-point tensors become parameters and the others buffers, under the path that leads
    to them: "layer.weight" for params["layer"]["weight"], "0.bias" for params[0]["bias"], "params"
    for a tensor alone. They share the memory of the given tensors, which stay as they are; a tensor
    that stands at two places is one parameter. What is not a tensor is handed on.

    Args:
        function: f(params, x) -> outputs, or f(params, x1, x2, …) and f(params, **inputs) for
            batches with several inputs. It gets a tree of the same kind as `params`.
        params: A tensor, or dicts, lists and tuples of tensors.

    Raises:
        ArgumentError: There is no floating-point tensor, or a key cannot be a parameter's name.
    """

    def __init__(self, function: Callable[..., Any], params: Any) -> None:
        super().__init__()
        self._function = function
        self._seen: dict[int, Any] = {}
        self._tree = self._register((), params)
        del self._seen
        if next(self.parameters(), None) is None:
            reason = "it holds no floating-point tensor to differentiate in"
            remedy = "Give a tensor, or a dict, list or tuple of tensors: f(params, x)."
            raise ArgumentError("params", params, reason, remedy)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return f(params, *inputs, **named)."""
        return self._function(self._filled(self._tree), *inputs, **named)

    def _register(self, path: tuple[str, ...], tree: Any) -> Any:
        """Return the tree with the places of the tensors instead of them."""
        if isinstance(tree, torch.Tensor):
            return self._register_tensor(path or (_ALONE,), tree)
        if isinstance(tree, Mapping):
            return {
                key: self._register((*path, *str(key).split(".")), value)
                for key, value in tree.items()
            }
        if isinstance(tree, list | tuple):
            parts = [self._register((*path, str(i)), value) for i, value in enumerate(tree)]
            return _like(tree, parts)
        return tree

    def _register_tensor(self, path: tuple[str, ...], tensor: torch.Tensor) -> _Place:
        module: nn.Module = self
        *parents, name = path
        try:
            for parent in parents:
                if parent not in module._modules:
                    module.register_module(parent, nn.Module())
                module = module.get_submodule(parent)
            if name in module._parameters or name in module._buffers:
                raise KeyError(f"{name!r} is there already")
            if tensor.is_floating_point():
                shared = self._seen.setdefault(id(tensor), nn.Parameter(tensor.detach()))
                module.register_parameter(name, shared)
            else:
                module.register_buffer(name, self._seen.setdefault(id(tensor), tensor.detach()))
        except (KeyError, AttributeError) as error:
            reason = f"it cannot be the name of a parameter ({error})"
            remedy = (
                "Rename that key; names of nn.Module's own methods and repeated paths are taken."
            )
            raise ArgumentError("params", ".".join(path), reason, remedy) from None
        return _Place(path)

    def _filled(self, tree: Any) -> Any:
        """Return the tree with the tensors that the module holds now."""
        if isinstance(tree, _Place):
            *parents, name = tree.path
            return getattr(self.get_submodule(".".join(parents)), name)
        if isinstance(tree, dict):
            return {key: self._filled(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            return _like(tree, [self._filled(value) for value in tree])
        return tree


@dataclass(frozen=True)
class _Place:
    """The path to a tensor in the module."""

    path: tuple[str, ...]


def as_model(model: Any, params: Any) -> tuple[nn.Module, Any]:
    """Return a module and the choice of its parameters.

    Args:
        model: A module, or a function f(params, x).
        params: The choice of a module's parameters, or the tree of a function's.

    Raises:
        ArgumentError: The model is neither, or a function comes without its tensors.
    """
    if isinstance(model, nn.Module):
        return model, params
    if not callable(model):
        raise ArgumentError(
            "model", model, "it is not a torch.nn.Module or a function", "Give a module."
        )
    if params is None or isinstance(params, str) or callable(params):
        reason = "the model is a function f(params, x), and these are not its tensors"
        remedy = "Give them: params={'w': w, 'b': b}; a list, a tuple or one tensor will do too."
        raise ArgumentError("params", params, reason, remedy)
    return FunctionModel(model, params), None


def _like(tree: list[Any] | tuple[Any, ...], parts: list[Any]) -> Any:
    if isinstance(tree, tuple):
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return parts

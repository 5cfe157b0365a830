"""A model as a function of some of its parameters: evaluated in private, the same every time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.modes import preserve_random_state
from hyperribbon.operators.derivatives.graphs import Nodes, graph_leaves
from hyperribbon.operators.derivatives.linearisation import Block
from hyperribbon.operators.derivatives.replacements import twice_differentiable
from hyperribbon.operators.risk.batches import batch_size, clone, cut, detach, tensors
from hyperribbon.operators.risk.forward import Forward, Packing, as_tensor, call, call_with_labels
from hyperribbon.operators.risk.private_copy import private_copy


class ModelFunction:
    """Outputs and targets of batches at fixed weights, with leaves to differentiate by.

    The weights and buffers are copies: later training does not reach them, and evaluations change
    nothing of the user's model. Buffers that an evaluation changes are put back before the next.

    Args:
        model: Any module.
        names: Parameters that are differentiated by.
        forward: How the model is called on a batch, or None for the usual ways.
        mode: "train", "eval", or None for the mode that each layer is in.
        packs: Whether several outputs are packed into one tensor.
        weights: Values of parameters and buffers to use instead of the model's, by name.
        precision: Precision that floating-point tensors are brought to; None for their own.

    Attributes:
        dtype: Precision of the outputs.
        leaves: The parameters that are differentiated by, as leaf tensors.
        state: All parameters and buffers by name.
        tied: The name in `state` of every parameter, for those that have several.
        packing: How several outputs were packed; None where the model returns one tensor.
        draws: Whether evaluations draw random numbers, which do not change the outputs.
    """

    def __init__(
        self,
        model: nn.Module,
        names: tuple[str, ...],
        forward: Forward | None = None,
        *,
        mode: str | None = None,
        packs: bool = False,
        weights: Mapping[str, torch.Tensor] | None = None,
        precision: torch.dtype | None = None,
    ) -> None:
        self._names, self._forward, given = names, forward, dict(weights or {})
        self._packs = packs
        self.packing: Packing | None = None
        self._needs_grad = self.draws = False
        self._theirs = {id(tensor): name for name, tensor in model.named_parameters()}
        own = self._theirs | {id(tensor): name for name, tensor in model.named_buffers()}
        self.state: dict[str, torch.Tensor] = {}

        def take(tensor: torch.Tensor) -> torch.Tensor:
            name = own.get(id(tensor))
            value = given.get(name, tensor) if name is not None else tensor
            with torch.inference_mode(False):
                copy = value.detach().clone()
                if precision is not None and copy.is_floating_point():
                    copy = copy.to(precision)
                if isinstance(tensor, nn.Parameter):
                    copy = nn.Parameter(copy, requires_grad=name in names)
            if name is not None:
                self.state[name] = copy
            return copy

        self.module = private_copy(model, take)
        if mode is not None:
            self.module.train(mode == "train")
        known = {id(tensor): name for name, tensor in self.state.items()}
        every = self.module.named_parameters(remove_duplicate=False)
        self.tied = {other: known[id(tensor)] for other, tensor in every if id(tensor) in known}
        self.leaves = {name: self.state[name] for name in names}
        self._versions = {name: leaf._version for name, leaf in self.leaves.items()}
        self._buffers = _Buffers(self.module)
        self._writes: bool | None = None
        first = self.leaves[names[0]]
        self.dtype, self._device = first.dtype, first.device.type

    def at(self, weights: Mapping[str, torch.Tensor]) -> ModelFunction:
        """Return the model function at other weights, by name; the others stay."""
        return self._again(weights=weights)

    def in_precision(self, precision: torch.dtype | None) -> ModelFunction:
        """Return the model function in another precision (None: its own)."""
        return self._again(precision=precision)

    def with_forward(self, forward: Forward) -> ModelFunction:
        """Return the model function called in another way."""
        other = copy.copy(self)
        other._forward = forward
        return other

    def _again(self, **changes: Any) -> ModelFunction:
        other = ModelFunction(self.module, self._names, self._forward, packs=self._packs, **changes)
        other._writes, other._needs_grad = self._writes, self._needs_grad
        other.draws = self.draws
        other.packing = self.packing
        return other

    def __call__(
        self, batch: Any, watcher: TorchFunctionMode | None = None
    ) -> tuple[torch.Tensor, Any]:
        """Return a model function's outputs (n, …) and targets, differentiable by the leaves."""
        # A forward pass that differentiates needs third derivatives: torch's own operations.
        kernels = torch.enable_grad() if self._needs_grad else twice_differentiable()
        with kernels, watcher or nullcontext():
            return self.evaluate(batch)

    def evaluate(self, batch: Any) -> tuple[torch.Tensor, Any]:
        """Return the model function's outputs and targets, with the kernels that it asks for.

        Raises:
            ArgumentError: The outputs have no sample axis, or several change their shapes.
        """
        outputs, targets = self._run(lambda some: call(self.module, some, self._forward), batch)
        outputs, packing = as_tensor(outputs, batch, self._forward, packs=self._packs)
        self.packing = self.packing or packing
        if packing is not None and packing != self.packing:
            reason = "the shapes of its outputs differ from batch to batch, beyond the first axis"
            remedy = "Give batches whose samples have one shape, or return one tensor."
            raise ArgumentError("model", packing.shapes, reason, remedy)
        if outputs.ndim == 0 or len(outputs) == 0:
            remedy = "Return shape (n, …)."
            raise ArgumentError("model", outputs, "its output has no sample axis", remedy)
        if outputs.dtype != self.dtype:
            outputs = outputs.to(self.dtype)
        return outputs, targets

    def evaluate_with_labels(self, batch: Any, forward: Forward | None) -> Any:
        """Return a model function's outputs for a batch with its labels, differentiable."""
        with torch.enable_grad():
            return self._run(partial(call_with_labels, self.module, forward=forward), batch)

    def _run(self, evaluate: Callable[[Any], Any], batch: Any) -> Any:
        """Return a model function's outputs for a batch, outside of any autocast around the call.

        Models that differentiate inside their forward pass (forces, physics-informed losses, inner
        steps of meta-learning) fail under no_grad, and are evaluated again with gradients.
        """  # noqa: DOC501 - the model's own RuntimeError passes through
        self._buffers.restore()
        tracks = torch.is_grad_enabled()
        try:
            random = preserve_random_state() if self.draws else nullcontext()
            with (
                torch.set_grad_enabled(tracks or self._needs_grad),
                random,
                torch.autocast(self._device, enabled=False, cache_enabled=False),
                self._writable(batch) as some,
            ):
                found = evaluate(some)
        except RuntimeError:
            if tracks or self._needs_grad:
                raise
            self._needs_grad = True
            try:
                return self._run(evaluate, batch)
            except RuntimeError:
                self._needs_grad = False
                raise
        if tracks:
            return found
        self._needs_grad = self._needs_grad or any(leaf.requires_grad for leaf in tensors(found))
        return detach(found) if self._needs_grad else found

    def jvp(self, batch: Any, v: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the model function's J v of a batch by forward mode, for v by name.

        torch raises a RuntimeError where an operation has no rule for forward mode.
        """
        with twice_differentiable(), torch.no_grad(), forward_ad.dual_level():
            duals = {
                id(leaf): forward_ad.make_dual(leaf.detach(), v[name].to(leaf.dtype))
                for name, leaf in self.leaves.items()
                if name in v
            }
            with _replace_parameters(self.module, duals):
                outputs = self.evaluate(batch)[0]
            along = forward_ad.unpack_dual(outputs).tangent
            return torch.zeros_like(outputs) if along is None else along.detach()

    def reaches_outside(self, nodes: Nodes) -> list[str]:
        """Return the user's parameters that a model function's graph reaches around the copy."""
        reached = (id(leaf) for leaf in graph_leaves(nodes))
        return [self._theirs[leaf] for leaf in reached if leaf in self._theirs]

    def has_changed(self) -> list[str]:
        """Return the model function's leaves that an evaluation has written to."""
        return [name for name, leaf in self.leaves.items() if leaf._version > self._versions[name]]

    @contextmanager
    def _writable(self, batch: Any) -> Generator[Any]:
        """Yield a batch that the model may write into: a copy, when the first call has done so."""
        if self._writes is False:
            yield batch
            return
        copy = clone(batch)
        versions = [tensor._version for tensor in tensors(copy)]
        yield copy
        written = any(
            tensor._version != version
            for tensor, version in zip(tensors(copy), versions, strict=True)
        )
        self._writes = self._writes or written


@contextmanager
def _replace_parameters(module: nn.Module, others: Mapping[int, torch.Tensor]) -> Generator[None]:
    """Let a model's private module hold other tensors for a while, by the ids of its own.

    Each place is changed once, also of modules that have several names (`torch.func` changes those
    twice and gives back the wrong tensor).
    """
    places = [
        (part._parameters, key, tensor)
        for part in module.modules()
        for key, tensor in part._parameters.items()
        if tensor is not None and id(tensor) in others
    ]
    try:
        for owner, key, tensor in places:
            owner[key] = others[id(tensor)]  # type: ignore[assignment]
        yield
    finally:
        for owner, key, tensor in places:
            owner[key] = tensor


class _Buffers:
    """The buffers of a private module, put back when an evaluation has changed them."""

    def __init__(self, module: nn.Module) -> None:
        self._places: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        for part in module.modules():
            for key, tensor in part._buffers.items():
                if tensor is not None:
                    self._places.append((part._buffers, key, tensor.clone()))
        self._seen = [(owner[key], owner[key]._version) for owner, key, _ in self._places]

    def restore(self) -> None:
        """Restore the model's buffers that an evaluation changed."""
        for index, (owner, key, saved) in enumerate(self._places):
            tensor, version = self._seen[index]
            if owner[key] is not tensor or tensor._version != version:
                owner[key] = saved.clone()
                self._seen[index] = owner[key], owner[key]._version


class BatchEvaluation:
    """A batch on which a model is evaluated, in whole or in part."""

    def __init__(self, function: ModelFunction, batch: Any) -> None:
        self._function, self._batch = function, batch
        self.leaves: Mapping[str, torch.Tensor] = function.leaves
        self.count = batch_size(batch)
        self.targets: Any = None

    def outputs(self, samples: slice, watcher: TorchFunctionMode | None = None) -> torch.Tensor:
        """Return a model function's outputs (n, …) of some samples, with a graph."""
        whole = (samples.start, samples.stop) == (0, self.count)
        batch = self._batch if whole else cut(self._batch, samples.start, samples.stop)
        outputs, targets = self._function(batch, watcher)
        if whole:
            self.targets = targets
        return outputs

    def jvp(self, v: Block) -> torch.Tensor:
        """Return a model function's J v (n, …) of some samples by forward mode."""
        return self._function.jvp(self._batch, v)


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
        """Return the function's outputs f(params, *inputs, **named) as a model's forward."""
        return self._function(self._fill(self._tree), *inputs, **named)

    def _register(self, path: tuple[str, ...], tree: Any) -> Any:
        """Register a model function's tensors: return the tree with their places instead."""
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

    def _fill(self, tree: Any) -> Any:
        """Return a model function's tree with the tensors that the module holds now."""
        if isinstance(tree, _Place):
            *parents, name = tree.path
            return getattr(self.get_submodule(".".join(parents)), name)
        if isinstance(tree, dict):
            return {key: self._fill(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            return _like(tree, [self._fill(value) for value in tree])
        return tree


@dataclass(frozen=True)
class _Place:
    """The path to a tensor of a function's parameters in its module."""

    path: tuple[str, ...]


def as_model(model: Any, params: Any) -> tuple[nn.Module, Any]:
    """Return the model that was given as a module and the choice of its parameters.

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
        remedy = "Give them: params={'w': w, 'b': b}; a list, a tuple or one tensor also work."
        raise ArgumentError("params", params, reason, remedy)
    return FunctionModel(model, params), None


def _like(tree: list[Any] | tuple[Any, ...], parts: list[Any]) -> Any:
    if isinstance(tree, tuple):
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return parts

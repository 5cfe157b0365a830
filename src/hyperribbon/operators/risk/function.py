"""A model as a function of some of its parameters: evaluated in private, the same every time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.ambient import preserved_random_state
from hyperribbon.core.devices.torch_inside import tree_leaves, tree_map
from hyperribbon.operators.derivatives.graphs import Nodes, graph_leaves
from hyperribbon.operators.derivatives.rewritten.twice import twice_differentiable
from hyperribbon.operators.risk.batches import copied, tensors
from hyperribbon.operators.risk.calling import Forward, Packing, as_tensor, call, call_with_labels
from hyperribbon.operators.risk.private import private_copy

__all__ = ["ModelFunction"]


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
        leaves: The parameters that are differentiated by, as leaf tensors.
        state: All parameters and buffers by name.
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

        def taken(tensor: torch.Tensor) -> torch.Tensor:
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

        self.module = private_copy(model, taken)
        if mode is not None:
            self.module.train(mode == "train")
        self.leaves = {name: self.state[name] for name in names}
        self._versions = {name: leaf._version for name, leaf in self.leaves.items()}
        self._buffers = _Buffers(self.module)
        self._writes: bool | None = None
        self._device = self.leaves[names[0]].device.type

    def at(self, weights: Mapping[str, torch.Tensor]) -> ModelFunction:
        """Return the same function at other weights, by name; the others stay."""
        return self._again(weights=weights)

    def in_precision(self, precision: torch.dtype | None) -> ModelFunction:
        """Return the same function in another precision (None: its own)."""
        return self._again(precision=precision)

    def with_forward(self, forward: Forward) -> ModelFunction:
        """Return the same function of the same tensors, called in another way."""
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
        """Return outputs (n, …) and targets of a batch, differentiable by the leaves."""
        # A forward pass that differentiates needs third derivatives: torch's own operations.
        kernels = torch.enable_grad() if self._needs_grad else twice_differentiable()
        with kernels, watcher or nullcontext():
            return self.plainly(batch)

    def plainly(self, batch: Any) -> tuple[torch.Tensor, Any]:
        """Return the same with the kernels that the model asks for."""
        outputs, targets = self._evaluate(
            lambda some: call(self.module, some, self._forward), batch
        )
        outputs, packing = as_tensor(outputs, batch, self._forward, packs=self._packs)
        self.packing = self.packing or packing
        if packing is not None and packing != self.packing:
            reason = "the shapes of its outputs differ from batch to batch, beyond the first axis"
            remedy = "Give batches whose samples have one shape, or return one tensor."
            raise ArgumentError("model", packing.shapes, reason, remedy)
        return self._checked(outputs), targets

    def raw(self, batch: Any, forward: Forward | None) -> Any:
        """Return what the model returns for a batch with its labels, differentiable."""
        with torch.enable_grad():
            return self._evaluate(partial(call_with_labels, self.module, forward=forward), batch)

    def _evaluate(self, evaluate: Callable[[Any], Any], batch: Any) -> Any:
        """Return what a function of the batch returns, with gradients where it takes some itself.

        Models that differentiate inside their forward pass (forces, physics-informed losses, inner
        steps of meta-learning) fail under no_grad, and are evaluated again with gradients.
        """  # noqa: DOC501 - the model's own RuntimeError passes through
        self._buffers.restore()
        tracks = torch.is_grad_enabled()
        try:
            random = preserved_random_state() if self.draws else nullcontext()
            with (
                torch.set_grad_enabled(tracks or self._needs_grad),
                random,
                self._uncast(),
                self._guarded(batch) as some,
            ):
                found = evaluate(some)
        except RuntimeError:
            if tracks or self._needs_grad:
                raise
            self._needs_grad = True
            try:
                return self._evaluate(evaluate, batch)
            except RuntimeError:
                self._needs_grad = False
                raise
        if tracks:
            return found
        self._needs_grad = self._needs_grad or any(map(_requires_grad, tree_leaves(found)))
        return tree_map(_detach, found) if self._needs_grad else found

    def jvp(self, batch: Any, v: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return J v of a batch by forward mode, for v by name.

        torch raises a RuntimeError where an operation has no rule for forward mode.
        """
        forward_mode = torch.autograd.forward_ad
        self._buffers.restore()
        with twice_differentiable(), torch.no_grad(), forward_mode.dual_level(), self._uncast():
            duals = {
                id(leaf): forward_ad.make_dual(leaf.detach(), v[name].to(leaf.dtype))
                for name, leaf in self.leaves.items()
                if name in v
            }
            with _holding(self.module, duals), self._guarded(batch) as batch:
                outputs = call(self.module, batch, self._forward)[0]
                outputs = as_tensor(outputs, batch, self._forward, packs=self._packs)[0]
                outputs = self._checked(outputs)
            along = forward_ad.unpack_dual(outputs).tangent
            return torch.zeros_like(outputs) if along is None else along.detach()

    def reaches_outside(self, nodes: Nodes) -> list[str]:
        """Return the user's own parameters that a graph depends on, around the private copy."""
        reached = (id(leaf) for leaf in graph_leaves(nodes))
        return [self._theirs[leaf] for leaf in reached if leaf in self._theirs]

    def has_changed(self) -> list[str]:
        """Return the leaves that an evaluation has written to."""
        return [name for name, leaf in self.leaves.items() if leaf._version > self._versions[name]]

    def _uncast(self) -> torch.autocast:
        """Leave the autocast around a call; one inside the model is a part of it."""
        return torch.autocast(self._device, enabled=False, cache_enabled=False)

    @contextmanager
    def _guarded(self, batch: Any) -> Generator[Any]:
        """Yield a batch that the model may write into: a copy, when the first call has done so."""
        if self._writes is False:
            yield batch
            return
        copy = copied(batch)
        versions = [tensor._version for tensor in tensors(copy)]
        yield copy
        written = any(
            tensor._version != version
            for tensor, version in zip(tensors(copy), versions, strict=True)
        )
        self._writes = self._writes or written

    def _checked(self, outputs: torch.Tensor) -> torch.Tensor:
        if outputs.ndim == 0 or len(outputs) == 0:
            raise ArgumentError(
                "model", outputs, "its output has no sample axis", "Return shape (n, …)."
            )
        wanted = next(iter(self.leaves.values())).dtype
        return outputs if outputs.dtype == wanted else outputs.to(wanted)


def _requires_grad(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _detach(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


@contextmanager
def _holding(module: nn.Module, others: Mapping[int, torch.Tensor]) -> Generator[None]:
    """Let a private module hold other tensors for a while, given by the ids of its own.

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
        """Put back what was changed since the last time."""
        for index, (owner, key, saved) in enumerate(self._places):
            tensor, version = self._seen[index]
            if owner[key] is not tensor or tensor._version != version:
                owner[key] = saved.clone()
                self._seen[index] = owner[key], owner[key]._version

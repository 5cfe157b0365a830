"""Watching a forward pass: where each parameter is used, on what input, with what output.

The calls are seen by a torch function mode, so modules carry no hook, functional code is seen too,
and a parameter that meets an unknown operation is known to have done so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from hyperribbon.core.devices.torch_private import keeps_other_tensors, tree_leaves
from hyperribbon.operators.derivatives.attention import self_attention
from hyperribbon.operators.derivatives.factors import Explicit, Factor
from hyperribbon.operators.derivatives.recurrent_layers import (
    RECURRENT,
    Pass,
    run_recurrent,
    weight_rules,
)
from hyperribbon.operators.derivatives.rules import (
    ADDITIONS,
    BY_POSITION,
    RULES,
    Maker,
    RowMaker,
    shared_rows_rule,
    sum_to,
)

_VIEWS = (
    "__getitem__",
    "unsqueeze",
    "squeeze",
    "view",
    "reshape",
    "flatten",
    "expand",
    "transpose",
    "permute",
    "narrow",
    "contiguous",
    "to",
)


@dataclass(frozen=True)
class Use:
    """A recorded use of a parameter by a layer that is understood.

    Attributes:
        name: The parameter.
        edge: The layer's output in the graph (fixed before any change in place).
        shape: Shape of the output.
        positions: Rows of the output that belong to one sample: more than one where the layer was
            given the positions of all samples below each other.
        factor: Function from (name, what flows back (n, m, …)) to the per-sample gradients; a
            `RowMaker` takes m times (n, …) instead.
        axis: The output's axis of samples.
    """

    name: str
    edge: GradientEdge
    shape: torch.Size
    positions: int
    factor: Maker | RowMaker
    axis: int = 0

    def by_sample(self, flowed: torch.Tensor) -> torch.Tensor:
        """Return what flows back into a recorded call's output, (*shape), as (n, …)."""
        if self.axis:
            return flowed.movedim(self.axis, 0)
        return flowed if self.positions == 1 else _split_positions(flowed, self.positions)

    def make(self, flowed: Iterable[torch.Tensor]) -> Factor:
        """Return the per-sample gradients of a recorded use, from what flows back, m times."""
        back = [self.by_sample(row) for row in flowed]
        if isinstance(self.factor, RowMaker):
            return self.factor.make(self.name, back)
        return self.factor(self.name, torch.stack(back, dim=1))


@dataclass
class _Shared:
    """A recorded tensor that all samples share, made from one parameter: table rows, a slice.

    Attributes:
        tensor: The tensor, kept so that its identity stays its own.
        name: The parameter.
        make: Function from (name, what flows back into it from each sample (n, m, *shape)) to the
            gradients of the parameter.
        use: What the call that made it was taken for, where it was understood.
        is_settled: Whether something has used it.
        is_moved: Whether that was followed, so that nothing else may use it.
    """

    tensor: torch.Tensor
    name: str
    make: Maker
    use: Use | None = None
    is_settled: bool = False
    is_moved: bool = False


class CallRecorder(TorchFunctionMode):
    """Records the calls that use given parameters while a model runs.

    Args:
        weights: The parameters by name.
        samples: Number of samples that the model runs on.

    Attributes:
        uses: What was understood.
        others: Names of parameters that some other operation used.
        has_checkpoints: Whether parts are evaluated again in backward passes.
        skips_unneeded: Whether operations of this package skip derivatives that are not needed.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], samples: int) -> None:
        super().__init__()
        self._samples = samples
        self._names = {id(tensor): name for name, tensor in weights.items()}
        self._made: dict[int, _Shared] = {}
        self.uses: list[Use] = []
        self.others: set[str] = set()
        self.has_checkpoints = self.skips_unneeded = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        is_checkpointed = keeps_other_tensors()  # evaluated again, as it is written
        self.has_checkpoints = self.has_checkpoints or is_checkpointed
        if name.startswith("conv") or name in RECURRENT:
            self.skips_unneeded = True
        if name == "multi_head_attention_forward" and not is_checkpointed:
            with self:  # its linear layers are seen one by one
                result = self_attention(args, kwargs)
            if result is not NotImplemented:
                return result
        if name in RECURRENT and not is_checkpointed:
            passes: list[Pass] = []
            result = run_recurrent(func, args, kwargs, passes)
            if _carries_gradient(result):
                known = [id(weight) for layer in passes for weight in self._record_recurrent(layer)]
                leaves = tree_leaves((args, kwargs))
                self._record_others(leaf for leaf in leaves if id(leaf) not in known)
            return result
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            self._record(name, args, kwargs, result)
        elif _carries_gradient(result):
            self._record_others(tree_leaves((args, kwargs)))
        return result

    def _record_others(self, leaves: Iterable[Any]) -> None:
        """Record the parameters that a call uses without a rule."""
        leaves = list(leaves)
        self.others |= self._present(leaves).keys()
        for shared in (self._made[id(leaf)] for leaf in leaves if id(leaf) in self._made):
            if shared.is_moved:
                self.others.add(shared.name)
            elif not shared.is_settled:
                self._settle(shared, is_moved=False)

    def _record_recurrent(self, layer: Pass) -> Sequence[torch.Tensor]:
        """Record a recurrent layer's weights: what flows back into W x + b makes all of them."""
        if not layer.products.requires_grad:
            return ()
        edge, shape = get_gradient_edge(layer.products), layer.products.shape
        for weight, make in zip(layer.weights, weight_rules(layer), strict=True):
            if id(weight) in self._names:
                self.uses.append(Use(self._names[id(weight)], edge, shape, 1, make, axis=1))
        return layer.weights

    def _record(
        self, called: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor
    ) -> None:
        """Record what a call does with parameters, and with what was made from them."""
        leaves = tree_leaves((args, kwargs))
        for leaf in leaves:
            if id(leaf) in self._made:
                self._follow(self._made[id(leaf)], called, result)
        present = self._present(leaves)
        found, positions = self._apply_rule(called, args, kwargs, result) if present else ({}, 1)
        for name, tensor in present.items():
            if sum(leaf is tensor for leaf in leaves) > 1:
                self.others.add(name)
            elif id(tensor) in found:
                self._use(name, result, found[id(tensor)], positions)
                if called == "embedding":
                    make = shared_rows_rule(args, kwargs, self._samples)
                    self._made[id(result)] = _Shared(result, name, make, self.uses[-1])
            elif called in _VIEWS:
                make = _through_view(result, tensor, lambda own, back: Explicit(own, back))
                self._made[id(result)] = _Shared(result, name, make)
            else:
                self.others.add(name)

    def _follow(self, shared: _Shared, called: str, result: torch.Tensor) -> None:
        """Follow a recorded tensor that all samples share to where samples are added to it."""
        tensor = shared.tensor
        is_spread = tensor.ndim < result.ndim or (tensor.ndim > 0 and len(tensor) == 1)
        if shared.is_settled:
            if shared.is_moved:
                self.others.add(shared.name)
        elif called in ADDITIONS and is_spread and result.shape[:1] == (self._samples,):
            shape, make = tuple(tensor.shape), shared.make
            self._settle(shared, is_moved=True)
            self._use(shared.name, result, lambda own, back: make(own, sum_to(back, shape)))
        elif called in _VIEWS:
            shared.is_settled, shared.is_moved = True, shared.use is None
            make = _through_view(result, tensor, shared.make)
            self._made[id(result)] = _Shared(result, shared.name, make, shared.use)
        else:
            self._settle(shared, is_moved=False)

    def _settle(self, shared: _Shared, is_moved: bool) -> None:
        """Take a recorded use of a shared tensor back where it is followed; else keep it."""
        shared.is_settled, shared.is_moved = True, is_moved
        if is_moved and shared.use is not None:
            self.uses.remove(shared.use)
        elif not is_moved and shared.use is None:
            self.others.add(shared.name)

    def _use(
        self, name: str, result: torch.Tensor, make: Maker | RowMaker, positions: int = 1
    ) -> None:
        edge = get_gradient_edge(result)
        self.uses.append(Use(name, edge, result.shape, positions, make))

    def _present(self, leaves: Iterable[Any]) -> dict[str, torch.Tensor]:
        return {self._names[id(leaf)]: leaf for leaf in leaves if id(leaf) in self._names}

    def _apply_rule(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor
    ) -> tuple[Mapping[int, Maker | RowMaker], int]:
        """Return what makes the gradients of a recorded call's parameters, and its rows."""
        rule = RULES.get(name)
        if rule is None or result.ndim == 0 or (name in _VIEWS and len(result) != self._samples):
            return {}, 1
        positions, rest = divmod(len(result), self._samples)
        if positions <= 1 or rest:
            return rule(args, kwargs), 1
        if rule not in BY_POSITION:
            return {}, 1

        def split(value: Any) -> Any:
            is_data = isinstance(value, torch.Tensor) and id(value) not in self._names
            if not is_data or value.ndim == 0 or len(value) != len(result):
                return value
            return _split_positions(value.detach(), positions)

        together = {key: split(value) for key, value in kwargs.items()}
        return rule(tuple(map(split, args)), together), positions


def _through_view(result: torch.Tensor, source: torch.Tensor, make: Maker) -> Maker:
    """Return what makes a recorded view's gradients, from what flows back into a part of it."""

    def through(name: str, back: torch.Tensor) -> Factor:
        rows = back.flatten(0, 1).reshape(-1, *result.shape)
        (gradients,) = torch.autograd.grad(
            result, source, rows, retain_graph=True, is_grads_batched=True
        )
        return make(name, gradients.unflatten(0, tuple(back.shape[:2])))

    return through


def _split_positions(tensor: torch.Tensor, positions: int) -> torch.Tensor:
    """Return a recorded tensor with samples and positions on axes of their own."""
    return tensor.unflatten(0, (len(tensor) // positions, positions))


def _carries_gradient(result: Any) -> bool:
    return any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(result)
    )

"""Watching a forward pass: where each parameter is used, on what input, with what output.

The calls are seen by a torch function mode, so modules carry no hook, functional code is seen too,
and a parameter that meets an unknown operation is known to have done so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from hyperribbon.core.devices.torch_inside import keeps_other_tensors, tree_leaves
from hyperribbon.core.devices.typed import unflattened
from hyperribbon.operators.derivatives.rewritten.attention import opened_attention
from hyperribbon.operators.derivatives.rules import BY_POSITION, RULES, Maker

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
    factor: Maker

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
        is_attention = getattr(func, "__name__", "") == "multi_head_attention_forward"
        if is_attention and not keeps_other_tensors():  # checkpoints evaluate it again, unopened
            with self:  # its linear layers are seen one by one
                result = opened_attention(args, kwargs)
            if result is not NotImplemented:
                return result
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
        rule = RULES.get(name)
        if rule is None or not isinstance(result, torch.Tensor) or result.ndim == 0:
            return {}, 1
        positions, rest = divmod(len(result), self._samples)
        if positions <= 1 or rest:
            return rule(args, kwargs), 1
        if rule not in BY_POSITION:
            return {}, 1

        def unfolded(value: Any) -> Any:
            is_data = isinstance(value, torch.Tensor) and id(value) not in self._names
            if not is_data or value.ndim == 0 or len(value) != len(result):
                return value
            return _unfolded(value.detach(), 0, positions)

        together = {key: unfolded(value) for key, value in kwargs.items()}
        return rule(tuple(map(unfolded, args)), together), positions


def _unfolded(tensor: torch.Tensor, dim: int, positions: int) -> torch.Tensor:
    """Return a tensor with an axis of samples and one of positions in place of their product."""
    return unflattened(tensor, dim, (tensor.shape[dim] // positions, positions))


def _carries_gradient(result: Any) -> bool:
    return any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(result)
    )


def _reaches_once(tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return sum(leaf is tensor for leaf in tree_leaves((args, kwargs))) == 1

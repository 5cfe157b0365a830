"""Recognises chains of linear layers and elementwise activations in a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from hyperribbon.core.devices.torch_inside import seen_whole, tree_leaves
from hyperribbon.core.devices.typed import norm
from hyperribbon.operators.derivatives.chains.activations import Activation, activation_of
from hyperribbon.operators.derivatives.chains.layer import Layer
from hyperribbon.operators.derivatives.chains.linearisation import ChainLinearisation
from hyperribbon.operators.derivatives.linearisation import Block, Linearisation
from hyperribbon.operators.derivatives.recurrent_rules import RECURRENT
from hyperribbon.operators.derivatives.sums import GradientSums

if TYPE_CHECKING:
    from hyperribbon.operators.risk.losses import Loss

__all__ = ["same_derivatives", "trace_chain"]

_RESHAPES = ("flatten", "reshape", "view")
_CLOSE = 0.3  # how far derivatives may be apart in half precisions; 1000 ε in others
_DATA_DEPENDENT = ("__bool__", "item", "__int__", "__float__", "tolist", "numpy", "__index__")


def trace_chain(
    forward: Callable[[], torch.Tensor],
    weights: Mapping[str, torch.Tensor],
) -> ChainLinearisation | None:
    """Run a model and return its linearisation when it turns out to be a chain, else None.

    Args:
        forward: Evaluates the model on a batch at the weights.
        weights: The parameters that hold the coordinates.

    Returns:
        The linearisation, or None.
    """
    tracer = _Tracer(weights)
    with torch.no_grad(), tracer:
        outputs = forward()
    if tracer.broken or not tracer.layers or outputs is not tracer.current:
        return None
    used = [n for layer in tracer.layers for n in (layer.weight_name, layer.bias_name) if n]
    if len(used) != len(set(used)) or set(used) != set(weights):
        return None
    return ChainLinearisation(tracer.layers, outputs)


def same_derivatives(
    fast: Linearisation, plain: Linearisation, direction: Block, loss: Loss | None, targets: Any
) -> bool:
    """Whether two linearisations of the same samples agree up to rounding."""
    block = {name: tensor.unsqueeze(0) for name, tensor in direction.items()}
    results: list[list[torch.Tensor]] = []
    for point in (fast, plain):
        pushed = point.push(block)
        pulled, curved = GradientSums(), GradientSums()
        point.pull(pushed, pulled, list(direction))
        rows = pulled.named()
        found = [pushed, point.outputs, *(rows[name] for name in direction)]
        if loss is not None:
            point.curve(loss, targets, block, curved)
            rows = curved.named()
            found += [rows[name] for name in direction]
        results.append(found)
    limit = min(1e3 * torch.finfo(fast.outputs.dtype).eps, _CLOSE)
    return all(norm(a - b) <= limit * (norm(b) + limit) for a, b in zip(*results, strict=True))


class _Tracer(TorchFunctionMode):
    """Follows one tensor through a forward pass as long as the pass is a chain."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in weights.items()}
        self.layers: list[Layer] = []
        self.current: torch.Tensor | None = None
        self.broken = False
        self._activated = True

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
            if isinstance(result, torch.Tensor):
                self.broken = not self._follow(name, args, kwargs, result)
            else:
                self.broken = name in _DATA_DEPENDENT or any(
                    isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result)
                )
        return result

    def _follow(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor
    ) -> bool:
        """Add one operation to the chain; return whether it is one."""
        if name == "clone" and self.current is None:  # of a batch that the model may write into
            return True
        if not args or (self.current is not None and args[0] is not self.current):
            return False
        source = args[0]
        if name in _RESHAPES:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)]
            kept = len(tensors) == 1 and result.ndim == 2 and len(result) == len(source)
            self.current = result
            return kept
        if name == "linear":
            return self._add_linear(source, args, kwargs, result)
        if name in ("dropout", "alpha_dropout") and result is source:
            return True
        activation = activation_of(name, args, kwargs)
        if activation is None or self._activated or not self.layers:
            return False
        return self._add_activation(activation, source, result)

    def _add_linear(
        self, source: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor
    ) -> bool:
        call = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
        weight, bias = call["weight"], call.get("bias")
        if source.ndim != 2:
            return False
        names = self._names.get(id(weight)), self._names.get(id(bias))
        self.layers.append(Layer.on_inputs(weight.detach(), *names, source))
        self.current, self._activated = result, False
        return True

    def _add_activation(
        self, activation: Activation, source: torch.Tensor, result: torch.Tensor
    ) -> bool:
        if result is source and not activation.from_output:
            return False
        layer = self.layers[-1]
        layer.slopes, layer.bends = activation.derivatives(source, result)
        self.current, self._activated = result, True
        return True


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)

"""Chains of linear layers and elementwise activations, differentiated by hand.

Such a network (any module whose forward is one) needs matrix products only: activations, slopes and
the back-propagated loss gradient are computed once per batch and reused in every product. The
derivative in the data is skipped, and input features that are zero on the whole batch drop out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from hyperribbon.operators.activations import Activation, activation_of
from hyperribbon.operators.factors import Explicit, Factor, Outer
from hyperribbon.operators.linearisation import Block
from hyperribbon.operators.losses import Loss

__all__ = ["ChainLinearisation", "trace_chain"]

_RESHAPES = ("flatten", "reshape", "view")
_DATA_DEPENDENT = ("__bool__", "item", "__int__", "__float__", "tolist", "numpy", "__index__")


@dataclass
class Layer:
    """One linear layer and what follows it, on one batch.

    Attributes:
        weight: W (d_out, d_in).
        weight_name: Its name when it is a coordinate.
        bias_name: The bias's name when it is a coordinate.
        inputs: What flows in, (n, d_in).
        slopes: φ′ at the pre-activations, (n, d_out), or None for the identity.
        bends: φ″, or None where it vanishes.
        columns: Input features that are not zero on the whole batch, or None for all.
    """

    weight: torch.Tensor
    weight_name: str | None
    bias_name: str | None
    inputs: torch.Tensor
    slopes: torch.Tensor | None = None
    bends: torch.Tensor | None = None
    columns: torch.Tensor | None = None


def trace_chain(
    forward: Callable[[], torch.Tensor], weights: Mapping[str, torch.Tensor]
) -> ChainLinearisation | None:
    """Run a model and return its linearisation when it turns out to be a chain, else None.

    Args:
        forward: Evaluates the model on a batch at the weights.
        weights: The parameters that hold the coordinates.
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


class _Tracer(TorchFunctionMode):
    """Follows one tensor through a forward pass as long as the pass is a chain."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in weights.items()}
        self.layers: list[Layer] = []
        self.current: torch.Tensor | None = None
        self.broken = False
        self._activated = True

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.broken:
            name = getattr(func, "__name__", "")
            if isinstance(result, torch.Tensor):
                self.broken = not self._follow(name, args, kwargs, result)
            else:
                self.broken = name in _DATA_DEPENDENT or any(
                    isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result)
                )
        return result

    def _follow(self, name: str, args: tuple, kwargs: dict, result: torch.Tensor) -> bool:
        """Add one operation to the chain; return whether it is one."""
        if not args or (self.current is not None and args[0] is not self.current):
            return False
        source = args[0]
        if name in _RESHAPES:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)]
            kept = len(tensors) == 1 and result.ndim == 2 and len(result) == len(source)
            self.current = result
            return kept and self.current is not None
        if name == "linear":
            return self._add_linear(source, args, kwargs, result)
        if name in ("dropout", "alpha_dropout") and result is source:
            return True
        activation = activation_of(name, args, kwargs)
        if activation is None or self._activated or not self.layers:
            return False
        return self._add_activation(activation, source, result)

    def _add_linear(self, source: Any, args: tuple, kwargs: dict, result: torch.Tensor) -> bool:
        call = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
        weight, bias = call["weight"], call.get("bias")
        if source.ndim != 2:
            return False
        first = not self.layers
        names = self._names.get(id(weight)), self._names.get(id(bias))
        layer = Layer(weight.detach(), *names, source)
        if first:
            used = source.any(0)
            if int(used.sum()) < 0.95 * len(used):
                layer.columns = used.nonzero().squeeze(1)
                layer.inputs = source[:, layer.columns]
        self.layers.append(layer)
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


class ChainLinearisation:
    """Derivatives of a chain f = φ_L(W_L … φ_1(W_1 x + b_1) … + b_L) on one batch."""

    def __init__(self, layers: list[Layer], outputs: torch.Tensor) -> None:
        self.outputs = outputs
        self._layers = layers
        self._flow: dict[int, torch.Tensor] | None = None
        holding = [i for i, layer in enumerate(layers) if layer.weight_name or layer.bias_name]
        self._lowest = holding[0]

    @property
    def nbytes(self) -> int:
        """Memory of what is kept, with the loss gradient's flow."""
        tensors = [
            t
            for layer in self._layers
            for t in (layer.inputs, layer.slopes, layer.bends)
            if t is not None
        ]
        flow = sum(layer.weight.shape[0] for layer in self._layers) * len(self.outputs)
        return sum(t.nbytes for t in tensors) + flow * self.outputs.element_size()

    @property
    def is_piecewise_linear(self) -> bool:
        """Whether every φ″ vanishes."""
        return all(layer.bends is None for layer in self._layers)

    def push(self, block: Block) -> torch.Tensor:
        """Return J v, shape (k, n, C)."""
        moved: torch.Tensor | None = None
        for layer in self._layers:
            moved = _apply_slopes(layer, _moved(layer, moved, block))
        return self._filled(moved, block).transpose(0, 1)

    def pull(self, cotangents: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return Jᵀ u for u (k, n, C)."""
        gradients: dict[str, torch.Tensor] = {}
        for position, back in self._backward(cotangents.transpose(0, 1)):
            _add_gradients(self._layers[position], back, gradients)
        return gradients

    def curve(self, loss: Loss, targets: Any, block: Block) -> dict[str, torch.Tensor]:
        """Return ∇²_θ Σ ℓ(f(θ), y) v: a forward and a backward pass of derivatives along v."""
        if self._flow is None:
            slope = loss.gradient(self.outputs, targets).unsqueeze(1)
            self._flow = {position: back[:, 0] for position, back in self._backward(slope)}
        ahead: list[tuple[torch.Tensor | None, torch.Tensor | None]] = []
        moved: torch.Tensor | None = None
        for layer in self._layers:
            tilted = _moved(layer, moved, block)
            ahead.append((moved, tilted))
            bent = layer.bends is not None
            moved = _apply_slopes(layer, tilted.clone() if bent and tilted is not None else tilted)
        pushed = self._filled(moved, block).transpose(0, 1)
        change = loss.curvature(self.outputs, targets, pushed).transpose(0, 1)
        gradients: dict[str, torch.Tensor] = {}
        for position in range(len(self._layers) - 1, self._lowest - 1, -1):
            layer, (before, tilted) = self._layers[position], ahead[position]
            if layer.slopes is not None:
                change = change * layer.slopes.unsqueeze(1)
                if layer.bends is not None and tilted is not None:
                    above = self._above(position, loss, targets)
                    change += (above * layer.bends).unsqueeze(1) * tilted
            _add_gradients(layer, change, gradients)
            if layer.weight_name and before is not None:
                cross = (self._flow[position].T @ before.flatten(1)).unflatten(1, before.shape[1:])
                gradients[layer.weight_name] += cross.transpose(0, 1)
            if position > self._lowest:
                change = change @ layer.weight
                if layer.weight_name:
                    direction = block[layer.weight_name].transpose(0, 1)
                    turned = self._flow[position] @ direction.flatten(1)
                    change += turned.view_as(change)
        return gradients

    def factors(self, rows: torch.Tensor, names: set[str]) -> list[Factor]:
        """Return the per-sample gradients of R f for rows R (m, n, C)."""
        found: list[Factor] = []
        for position, left in self._backward(rows.transpose(0, 1)):
            layer = self._layers[position]
            if layer.weight_name:
                right = _all_inputs(layer)
                found.append(Outer(layer.weight_name, left.unsqueeze(2), right, layer.bias_name))
            if layer.bias_name:
                found.append(Explicit(layer.bias_name, left))
        return found

    def structured(self) -> set[str]:
        """Return all names: every parameter has factors."""
        pairs = ((layer.weight_name, layer.bias_name) for layer in self._layers)
        return {name for pair in pairs for name in pair if name}

    def _backward(self, cotangents: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (position, what flows back into that layer's output (n, k, d)), last first."""
        back = cotangents
        for position in range(len(self._layers) - 1, self._lowest - 1, -1):
            layer = self._layers[position]
            if layer.slopes is not None:
                back = back * layer.slopes.unsqueeze(1)
            yield position, back
            if position > self._lowest:
                back = back @ layer.weight

    def _above(self, position: int, loss: Loss, targets: Any) -> torch.Tensor:
        """Return the loss gradient in the layer's activations."""
        if position == len(self._layers) - 1:
            return loss.gradient(self.outputs, targets)
        assert self._flow is not None
        return self._flow[position + 1] @ self._layers[position + 1].weight

    def _filled(self, moved: torch.Tensor | None, block: Block) -> torch.Tensor:
        if moved is not None:
            return moved
        rows = len(next(iter(block.values())))
        return self.outputs.new_zeros(len(self.outputs), rows, self.outputs.shape[1])


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _moved(layer: Layer, moved: torch.Tensor | None, block: Block) -> torch.Tensor | None:
    """Return the pre-activations' change (n, k, d_out) along v, None for none."""
    tilted = None if moved is None else moved @ layer.weight.T
    if layer.weight_name:
        direction = block[layer.weight_name]
        if layer.columns is not None:
            direction = direction[:, :, layer.columns]
        own = (layer.inputs @ direction.flatten(0, 1).T).unflatten(1, direction.shape[:2])
        tilted = own if tilted is None else tilted.add_(own)
    if layer.bias_name:
        shift = block[layer.bias_name]
        count = len(layer.inputs)
        tilted = shift.expand(count, *shift.shape).clone() if tilted is None else tilted.add_(shift)
    return tilted


def _apply_slopes(layer: Layer, tilted: torch.Tensor | None) -> torch.Tensor | None:
    if tilted is None or layer.slopes is None:
        return tilted
    return tilted.mul_(layer.slopes.unsqueeze(1))


def _add_gradients(layer: Layer, back: torch.Tensor, gradients: dict[str, torch.Tensor]) -> None:
    """Store the gradients (k, …) of a layer's parameters."""
    if layer.weight_name:
        product = (back.flatten(1).T @ layer.inputs).unflatten(0, back.shape[1:])
        if layer.columns is not None:
            full = product.new_zeros(*product.shape[:2], layer.weight.shape[1])
            full[:, :, layer.columns] = product
            product = full
        gradients[layer.weight_name] = product
    if layer.bias_name:
        gradients[layer.bias_name] = back.sum(0)


def _all_inputs(layer: Layer) -> torch.Tensor:
    """Return what flows in, (n, 1, d_in), with the features that dropped out."""
    inputs = layer.inputs
    if layer.columns is not None:
        full = inputs.new_zeros(len(inputs), layer.weight.shape[1])
        full[:, layer.columns] = inputs
        inputs = full
    return inputs.unsqueeze(1)

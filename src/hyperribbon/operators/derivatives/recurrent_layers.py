"""Recurrent layers as operations that can be differentiated twice.

oneDNN's kernels have no second derivative, and those of torch multiply the inputs step by step.
Here all inputs of a layer are multiplied at once, and its recurrence has derivatives of its own.

The gradients of the weights of single samples follow from what flows back into W x_t + b, q_t:

    W: Σ_t q_t x_tᵀ,   U: Σ_t q_t h_{t−1}ᵀ,   b and d: Σ_t q_t.

In a GRU the new state is tanh(x_n + r∘(U_n h + d_n)), so U and d have r∘q there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from hyperribbon.core.devices.torch_private import is_transformed, without_onednn
from hyperribbon.operators.derivatives.factors import Explicit, Factor, Outer
from hyperribbon.operators.derivatives.recurrence import CELLS, recurrent_layer
from hyperribbon.operators.derivatives.rules import Maker

RECURRENT = tuple(CELLS)
"""Names of torch's functions."""

State = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Pass:
    """One pass of an LSTM, GRU or RNN layer in one direction.

    Attributes:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        weights: w, u and, where it has them, the biases b and d, as torch keeps them.
        inputs: x, (T, n, in).
        products: W x + b of all steps, (T, n, gates), in the order in which the layer takes them.
        start: h before the first step, (n, H).
        outputs: h after each step, in the order of the sequence, (T, n, H).
        is_back: Whether the last step comes first.
    """

    kind: str
    weights: Sequence[torch.Tensor]
    inputs: torch.Tensor
    products: torch.Tensor
    start: torch.Tensor
    outputs: torch.Tensor
    is_back: bool

    def states(self) -> torch.Tensor:
        """Return the hidden state before each step of the recurrent layer, (T, n, H)."""
        start, own = self.start.detach().unsqueeze(0), self.outputs.detach()
        return torch.cat([own[1:], start] if self.is_back else [start, own[:-1]])


def run_recurrent(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    passes: list[Pass] | None = None,
) -> Any:
    """Return a recurrent layer's values, as torch.lstm, gru, rnn_tanh, rnn_relu, padded sequences.

    Packed sequences, projections, dropout, several precisions and forward mode go through torch's
    own operations, without oneDNN.

    Args:
        func: The function of torch.
        args: Its arguments.
        kwargs: Its arguments by name.
        passes: A list to which the layers are added, where they are computed here.
    """
    kind = func.__name__
    is_padded = (
        not kwargs
        and len(args) == 9
        and isinstance(args[2], list | tuple)
        and isinstance(args[1], tuple) == (kind == "lstm")
    )
    if not is_padded:
        return _without_onednn(func, args, kwargs)
    inputs, start, weights, has_bias, layers, dropout, training, both_ways, batch_first = args
    directions = 2 if both_ways else 1
    states = start if kind == "lstm" else (start,)
    is_usual = len(weights) == layers * directions * (4 if has_bias else 2)
    is_usual = is_usual and not (dropout and training) and _is_plain(inputs, *states, *weights)
    if not is_usual:
        return _without_onednn(func, args, kwargs)
    hidden: torch.Tensor = inputs.transpose(0, 1) if batch_first else inputs
    each = len(weights) // (layers * directions)
    ends: list[State] = []
    for layer in range(layers):
        ways: list[torch.Tensor] = []
        for direction in range(directions):
            place = layer * directions + direction
            own = weights[place * each : (place + 1) * each]
            begin = tuple(s[place] for s in states)
            done, end = _run(kind, hidden, begin, own, is_back=direction == 1)
            ways.append(done.outputs)
            ends.append(end)
            if passes is not None:
                passes.append(done)
        hidden = ways[0] if len(ways) == 1 else torch.cat(ways, dim=-1)
    hidden = hidden.clone()  # the model may write into it
    hidden = hidden.transpose(0, 1) if batch_first else hidden
    return hidden, *(torch.stack(column) for column in zip(*ends, strict=True))


def _run(
    kind: str, inputs: torch.Tensor, state: State, weights: Sequence[torch.Tensor], is_back: bool
) -> tuple[Pass, State]:
    """Return the outputs of one recurrent layer in one direction, and its last state."""
    w, u = weights[:2]
    b, d = weights[2:] if len(weights) == 4 else (None, None)
    if kind != "gru" and b is not None and d is not None:
        b, d = b + d, None
    products = F.linear(inputs, w, b)
    ordered = products.flip(0) if is_back else products
    outputs, end = recurrent_layer(CELLS[kind], ordered, u, d, state)
    outputs = outputs.flip(0) if is_back else outputs
    return Pass(kind, weights, inputs, products, state[0], outputs, is_back), end


def _is_plain(*tensors: torch.Tensor) -> bool:
    """Whether a recurrent layer's derivatives are those of a backward pass, in one precision."""
    return (
        torch.is_grad_enabled()
        and not is_transformed()
        and not torch.is_autocast_enabled(tensors[0].device.type)
        and len({tensor.dtype for tensor in tensors}) == 1
    )


def _without_onednn(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with without_onednn():
        return func(*args, **kwargs)


def weight_rules(layer: Pass) -> list[Maker]:
    """Return the gradient rules of a recurrent layer's weights, in their order.

    Each is given what flows back into W x + b of all steps, (n, m, T, gates).
    """
    steps_first = layer.inputs.detach()

    def inward(back: torch.Tensor) -> torch.Tensor:
        return _through_reset(layer, back) if layer.kind == "gru" else back

    def w(name: str, back: torch.Tensor) -> Factor:
        return Outer(name, back, steps_first.transpose(0, 1)).compact()

    def u(name: str, back: torch.Tensor) -> Factor:
        return Outer(name, inward(back), layer.states().transpose(0, 1)).compact()

    def b(name: str, back: torch.Tensor) -> Factor:
        return Explicit(name, back.sum(2))

    def d(name: str, back: torch.Tensor) -> Factor:
        return Explicit(name, inward(back).sum(2))

    return [w, u, b, d][: len(layer.weights)]


def _through_reset(layer: Pass, back: torch.Tensor) -> torch.Tensor:
    """Return what flows back into U h + d of a recurrent layer that is a GRU."""
    states = layer.states()
    size = states.shape[2]
    u, *biases = (weight.detach()[:size] for weight in layer.weights[1:])
    own = F.linear(states, u, biases[1] if biases else None)
    reset = (layer.products.detach()[..., :size] + own).sigmoid().transpose(0, 1)
    opened, new = back.split([2 * size, size], dim=-1)
    return torch.cat([opened, new * reset.unsqueeze(1)], dim=-1)

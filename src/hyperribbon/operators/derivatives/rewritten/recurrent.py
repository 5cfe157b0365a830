"""Recurrent layers from matrix products and elementwise functions, step by step.

oneDNN's kernels have no second derivative, and those of torch multiply the inputs step by step.
Here all inputs of a layer are multiplied at once; wide LSTM layers have derivatives of their own,
since a weight gradient a step takes more memory than all else:

    LSTM:  c_t = σ(f)∘c_{t−1} + σ(i)∘tanh(g),  h_t = σ(o)∘tanh(c_t)
    GRU:   h_t = n + σ(z)∘(h_{t−1} − n),        n = tanh(x_n + σ(r)∘h_n)
    RNN:   h_t = tanh or relu of (W x_t + U h_{t−1} + b)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from hyperribbon.core.devices.torch_inside import is_transformed, without_onednn
from hyperribbon.core.devices.typed import split
from hyperribbon.operators.derivatives.rewritten.lstm import lstm_layer

__all__ = ["Pass", "rewritten_recurrence"]

_WIDE = 256  # units from which the gradient of an LSTM's weights is taken from all steps at once

State = tuple[torch.Tensor, ...]
Cell = Callable[[torch.Tensor, State, Any], State]


@dataclass(frozen=True)
class Pass:
    """One layer in one direction.

    Attributes:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        weights: w, u and, where it has them, the biases b and d, as torch keeps them.
        inputs: x, (T, n, in).
        products: W x + b of all steps, (T, n, gates), in the order in which the cell takes them.
        start: h before the first step, (n, H).
        outputs: h after each step, in the order of the sequence, (n, H) each.
        is_back: Whether the last step comes first.
    """

    kind: str
    weights: Sequence[torch.Tensor]
    inputs: torch.Tensor
    products: torch.Tensor
    start: torch.Tensor
    outputs: torch.Tensor | list[torch.Tensor]
    is_back: bool

    def states(self) -> torch.Tensor:
        """Return h before each step, (T, n, H)."""
        start, own = [self.start], list(self.outputs)
        ordered = own[1:] + start if self.is_back else start + own[:-1]
        return torch.stack([state.detach() for state in ordered])


def rewritten_recurrence(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    passes: list[Pass] | None = None,
) -> Any:
    """Return what torch.lstm, gru, rnn_tanh and rnn_relu return for padded sequences.

    Packed sequences, projections and dropout go through torch's own operations, without oneDNN.

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
    if len(weights) != layers * directions * (4 if has_bias else 2) or (dropout and training):
        return _without_onednn(func, args, kwargs)
    hidden: torch.Tensor = inputs.transpose(0, 1) if batch_first else inputs
    states = start if kind == "lstm" else (start,)
    each = len(weights) // (layers * directions)
    ends: list[State] = []
    for layer in range(layers):
        ways: list[torch.Tensor] = []
        for direction in range(directions):
            place = layer * directions + direction
            own = weights[place * each : (place + 1) * each]
            begin = tuple(s[place] for s in states)
            done, end = _run(kind, hidden, begin, own, is_back=direction == 1)
            outputs = done.outputs
            ways.append(outputs if isinstance(outputs, torch.Tensor) else torch.stack(outputs))
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
    """Return one layer in one direction, and its last state."""
    w, u = weights[:2]
    b, d = weights[2:] if len(weights) == 4 else (None, None)
    if kind == "lstm":
        size = u.shape[1]
        w, u, b, d = (_gates_first(tensor, size) for tensor in (w, u, b, d))
    if kind != "gru" and b is not None and d is not None:
        b, d = b + d, None
    products, start = F.linear(inputs, w, b), state[0]
    if kind == "lstm" and u.shape[1] >= _WIDE and _is_plain(products, *state, u):
        found, state = lstm_layer(products.flip(0) if is_back else products, state, u)
        found = found.flip(0) if is_back else found
        return Pass(kind, weights, inputs, products, start, found, is_back), state
    cell, constants = _CELLS[kind], (u.t(), d)
    outputs: list[torch.Tensor] = []
    steps = products.unbind(0)
    for step in reversed(steps) if is_back else steps:
        state = cell(step, state, constants)
        outputs.append(state[0])
    outputs = outputs[::-1] if is_back else outputs
    return Pass(kind, weights, inputs, products, start, outputs, is_back), state


def _gates_first(rows: torch.Tensor | None, size: int) -> Any:
    """Return rows in the order o, i, f, g: those that pass through σ together."""
    if rows is None:
        return None
    i_and_f, g, o = split(rows, [2 * size, size, size])
    return torch.cat([o, i_and_f, g])


def _is_plain(*tensors: torch.Tensor) -> bool:
    """Whether derivatives are those of a backward pass, in one precision."""
    return (
        torch.is_grad_enabled()
        and not is_transformed()
        and not torch.is_autocast_enabled(tensors[0].device.type)
        and len({tensor.dtype for tensor in tensors}) == 1
    )


def _lstm(step: torch.Tensor, state: State, constants: Any) -> State:
    h, c = state
    gates = torch.addmm(step, h, constants[0])
    opened, new = split(gates, [3 * h.shape[1], h.shape[1]], dim=1)
    o, i, f = opened.sigmoid().chunk(3, dim=1)
    c = f * c + i * new.tanh()
    return o * c.tanh(), c


def _gru(step: torch.Tensor, state: State, constants: Any) -> State:
    (h,), (u, d) = state, constants
    size = h.shape[1]
    own: torch.Tensor = h @ u if d is None else torch.addmm(d, h, u)
    x_opened, x_new = split(step, [2 * size, size], dim=1)
    h_opened, h_new = split(own, [2 * size, size], dim=1)
    r, z = (x_opened + h_opened).sigmoid().chunk(2, dim=1)
    new = torch.addcmul(x_new, r, h_new).tanh()
    return (torch.addcmul(new, z, h - new),)


def _tanh(step: torch.Tensor, state: State, constants: Any) -> State:
    return (torch.addmm(step, state[0], constants[0]).tanh(),)


def _relu(step: torch.Tensor, state: State, constants: Any) -> State:
    return (torch.addmm(step, state[0], constants[0]).relu(),)


_CELLS: dict[str, Cell] = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu}


def _without_onednn(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with without_onednn():
        return func(*args, **kwargs)

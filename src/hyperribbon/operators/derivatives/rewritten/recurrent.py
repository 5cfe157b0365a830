"""Recurrent layers as operations that can be differentiated twice.

oneDNN's kernels have no second derivative, and those of torch multiply the inputs step by step.
Here all inputs of a layer are multiplied at once, and its recurrence has derivatives of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from hyperribbon.core.devices.torch_inside import is_transformed, without_onednn
from hyperribbon.operators.derivatives.rewritten.elman import RectifiedLayer, TanhLayer
from hyperribbon.operators.derivatives.rewritten.gru import GRULayer
from hyperribbon.operators.derivatives.rewritten.lstm import LSTMLayer
from hyperribbon.operators.derivatives.rewritten.recurrence import Evaluated, recurrent_layer

__all__ = ["Pass", "rewritten_recurrence"]

State = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Pass:
    """One layer in one direction.

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
        """Return h before each step, (T, n, H)."""
        start, own = self.start.detach().unsqueeze(0), self.outputs.detach()
        return torch.cat([own[1:], start] if self.is_back else [start, own[:-1]])


def rewritten_recurrence(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    passes: list[Pass] | None = None,
) -> Any:
    """Return what torch.lstm, gru, rnn_tanh and rnn_relu return for padded sequences.

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
    """Return one layer in one direction, and its last state."""
    w, u = weights[:2]
    b, d = weights[2:] if len(weights) == 4 else (None, None)
    if kind == "lstm":
        size = u.shape[1]
        w, u, b, d = (_gates_first(tensor, size) for tensor in (w, u, b, d))
    if kind != "gru" and b is not None and d is not None:
        b, d = b + d, None
    products = F.linear(inputs, w, b)
    ordered = products.flip(0) if is_back else products
    outputs, end = recurrent_layer(_LAYERS[kind], ordered, u, d, state)
    outputs = outputs.flip(0) if is_back else outputs
    return Pass(kind, weights, inputs, products, state[0], outputs, is_back), end


def _gates_first(rows: torch.Tensor | None, size: int) -> Any:
    """Return rows in the order o, i, f, g: those that pass through σ together."""
    if rows is None:
        return None
    i_and_f, g, o = rows.split([2 * size, size, size])
    return torch.cat([o, i_and_f, g])


def _is_plain(*tensors: torch.Tensor) -> bool:
    """Whether derivatives are those of a backward pass, in one precision."""
    return (
        torch.is_grad_enabled()
        and not is_transformed()
        and not torch.is_autocast_enabled(tensors[0].device.type)
        and len({tensor.dtype for tensor in tensors}) == 1
    )


_LAYERS: dict[str, type[Evaluated]] = {
    "lstm": LSTMLayer,
    "gru": GRULayer,
    "rnn_tanh": TanhLayer,
    "rnn_relu": RectifiedLayer,
}


def _without_onednn(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with without_onednn():
        return func(*args, **kwargs)

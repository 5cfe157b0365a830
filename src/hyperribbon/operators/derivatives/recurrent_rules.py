"""How recurrent layers make the gradients of their weights, sample by sample.

With a_t = W x_t + b + U h_{t−1} + d and q_t what flows back into a_t, the gradients are

    W: Σ_t q_t x_tᵀ,   U: Σ_t q_t h_{t−1}ᵀ,   b and d: Σ_t q_t,

and q_t is what flows back into W x_t + b. In a GRU the new state is tanh(x_n + r∘(U_n h + d_n)), so
U and d have r∘q there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from hyperribbon.operators.derivatives.factors import Explicit, Factor, Outer
from hyperribbon.operators.derivatives.rewritten.recurrent import Pass
from hyperribbon.operators.derivatives.rules import Maker

__all__ = ["RECURRENT", "makers_of"]

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Names of torch's functions."""

Flow = Callable[[torch.Tensor], torch.Tensor]
"""What flows back into U h + d, from what flows back into W x + b, both (n, m, T, gates)."""


def makers_of(layer: Pass) -> list[Maker]:
    """Return what makes the gradients of the weights of a layer, in their order.

    Each is given what flows back into W x + b of all steps, (n, m, T, gates).
    """
    steps_first = layer.inputs.detach()
    in_order: Flow = _as_torch_keeps_them if layer.kind == "lstm" else lambda back: back

    def inward(back: torch.Tensor) -> torch.Tensor:
        return _through_reset(layer, back) if layer.kind == "gru" else in_order(back)

    def w(name: str, back: torch.Tensor) -> Factor:
        return Outer(name, in_order(back), steps_first.transpose(0, 1)).compact()

    def u(name: str, back: torch.Tensor) -> Factor:
        return Outer(name, inward(back), layer.states().transpose(0, 1)).compact()

    def b(name: str, back: torch.Tensor) -> Factor:
        return Explicit(name, in_order(back).sum(2))

    def d(name: str, back: torch.Tensor) -> Factor:
        return Explicit(name, inward(back).sum(2))

    return [w, u, b, d][: len(layer.weights)]


def _as_torch_keeps_them(back: torch.Tensor) -> torch.Tensor:
    """Return the gates o, i, f, g in the order i, f, g, o."""
    o, others = back.split([back.shape[-1] // 4, 3 * back.shape[-1] // 4], dim=-1)
    return torch.cat([others, o], dim=-1)


def _through_reset(layer: Pass, back: torch.Tensor) -> torch.Tensor:
    """Return what flows back into U h + d of a GRU."""
    states = layer.states()
    size = states.shape[2]
    u, *biases = (weight.detach()[:size] for weight in layer.weights[1:])
    own = F.linear(states, u, biases[1] if biases else None)
    reset = (layer.products.detach()[..., :size] + own).sigmoid().transpose(0, 1)
    opened, new = back.split([2 * size, size], dim=-1)
    return torch.cat([opened, new * reset.unsqueeze(1)], dim=-1)

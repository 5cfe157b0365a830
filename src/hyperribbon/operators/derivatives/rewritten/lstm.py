"""One LSTM layer whose weights get their derivatives from all steps at once.

With a_t = s_t + U h_{t−1} and (o, i, f) = σ(a), g = tanh(a), the layer is c_t = f∘c_{t−1} + i∘g and
h_t = o∘tanh(c_t). What flows back into a is a recurrence that is linear in what comes from outside
(ḣ, ċ, ȧ) and has elementwise coefficients K:

    p_t = ḣ_t + Uᵀ q_{t+1},   r_t = ċ_t + f_{t+1}∘r_{t+1} + k_t∘p_t
    q_t = K_t∘(p, r, r, r)_t + e_t,   with e = ȧ∘(slopes of σ and tanh)

so the derivative in U is Σ_t q_t h_{t−1}ᵀ, one matrix product for all steps. The derivative of
this recurrence is its adjoint, which runs forwards, and products of what both have left behind.
"""

# pyright: reportIncompatibleMethodOverride=false
# torch gives `backward` as many gradients as `forward` has outputs.
from __future__ import annotations

from typing import Any

import torch

from hyperribbon.core.devices.typed import applied
from hyperribbon.operators.derivatives.rewritten.convolutions import needed_by

__all__ = ["lstm_layer"]

Maybe = torch.Tensor | None


def lstm_layer(
    steps: torch.Tensor, state: tuple[torch.Tensor, ...], u: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return the outputs (T, n, H) of a layer, and its last state h, c.

    Args:
        steps: W x + b of all steps, (T, n, 4H), in the order o, i, f, g.
        state: h and c before the first step, (n, H).
        u: The weights of the step before, (4H, H), in the same order.
    """
    outputs, cells, _ = applied(_Layer, steps, *state, u)
    return outputs, (outputs[-1], cells[-1])


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, steps: torch.Tensor, h: torch.Tensor, c: torch.Tensor, u: torch.Tensor
    ) -> Any:
        start, size = (h, c), u.shape[1]
        found: list[tuple[torch.Tensor, ...]] = []
        for step in steps.unbind(0):
            gates = torch.addmm(step, h, u.t())
            gates[:, : 3 * size].sigmoid_()
            gates[:, 3 * size :].tanh_()
            o, i, f, g = gates.chunk(4, dim=1)
            c = torch.addcmul(f * c, i, g)
            h = o * c.tanh()
            found.append((h, c, gates))
        outputs, cells, gates = (torch.stack(column) for column in zip(*found, strict=True))
        ctx.save_for_backward(outputs, cells, gates, *start, u)
        ctx.set_materialize_grads(False)
        return outputs, cells, gates

    @staticmethod
    def backward(ctx: Any, of_h: Maybe, of_c: Maybe, of_gates: Maybe) -> Any:
        outputs, cells, gates, h, c, u = ctx.saved_tensors
        if of_h is None and of_c is None and of_gates is None:
            return None, None, None, None
        o, i, f, g = gates.chunk(4, dim=2)
        opened = gates[..., : 3 * h.shape[1]]
        slopes = torch.cat([opened * (1 - opened), 1 - g * g], dim=2)
        curled, before = cells.tanh(), torch.cat([c.unsqueeze(0), cells[:-1]])
        k = slopes * torch.cat([curled, g, before, i], dim=2)
        k_c = o * (1 - curled * curled)
        e = None if of_gates is None else of_gates * slopes
        if torch.is_grad_enabled():
            nothing = torch.zeros((), dtype=u.dtype, device=u.device)
            outside = (
                nothing.expand_as(like) if part is None else part
                for part, like in ((of_h, k_c), (of_c, k_c), (e, k))
            )
            flowed, in_h, in_c = applied(_Reversed, k, k_c, f, u, *outside)
        else:
            flowed, in_h, in_c = _reversed(k, k_c, f, u, of_h, of_c, e)[0]
        in_u = None
        if needed_by(ctx)[3]:
            earlier = torch.cat([h.unsqueeze(0), outputs[:-1]])
            in_u = _rows(flowed).t() @ _rows(earlier)
        return flowed, in_h, in_c, in_u


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parts: torch.Tensor) -> Any:
        found, p, r = _reversed(*parts)
        ctx.save_for_backward(*parts[:4], found[0], p, r)
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx: Any, along: Maybe, along_h: Maybe, along_c: Maybe) -> Any:
        k, k_c, f, u, flowed, p, r = ctx.saved_tensors
        along = torch.zeros_like(flowed) if along is None else along
        h, c = along_h, along_c
        found: list[tuple[torch.Tensor, ...]] = []
        for t in range(len(flowed)):
            q = along[t] if h is None else torch.addmm(along[t], h, u.t())
            h, *others = (k[t] * q).chunk(4, dim=1)
            inward = others[0] + others[1] + others[2]
            c = inward if c is None else inward + c * f[t]
            h = h + c * k_c[t]
            found.append((q, h, c))
        q, h, c = (torch.stack(column) for column in zip(*found, strict=True))
        in_k, in_k_c, in_f, in_u, in_h, in_c, in_e = needed_by(ctx)
        first_h = torch.zeros_like(p[0]) if along_h is None else along_h
        first_c = torch.zeros_like(p[0]) if along_c is None else along_c
        earlier_h = torch.cat([first_h.unsqueeze(0), h[:-1]]) if in_u else None
        return (
            q * torch.cat([p, r, r, r], dim=2) if in_k else None,
            c * p if in_k_c else None,
            torch.cat([first_c.unsqueeze(0), c[:-1]]) * r if in_f else None,
            _rows(flowed).t() @ _rows(earlier_h) if earlier_h is not None else None,
            h if in_h else None,
            c if in_c else None,
            q if in_e else None,
        )


def _reversed(
    k: torch.Tensor,
    k_c: torch.Tensor,
    f: torch.Tensor,
    u: torch.Tensor,
    of_h: Maybe,
    of_c: Maybe,
    e: Maybe,
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]:
    """Return what flows back into a of all steps, into h and c of the start, and p and r."""
    p: Any = torch.zeros_like(k_c[0])
    r: Any = p
    found: list[tuple[torch.Tensor, ...]] = []
    for t in reversed(range(len(k))):
        p = p if of_h is None else p + of_h[t]
        r = torch.addcmul(r, p, k_c[t])
        r = r if of_c is None else r + of_c[t]
        q = k[t] * torch.cat([p, r, r, r], dim=1)
        q = q if e is None else q + e[t]
        found.append((q, p, r))
        p, r = q @ u, r * f[t]
    flowed, ps, rs = (torch.stack(column[::-1]) for column in zip(*found, strict=True))
    return (flowed, p, r), ps, rs


def _rows(steps: torch.Tensor) -> torch.Tensor:
    """Return samples of all steps below each other."""
    return steps.reshape(-1, steps.shape[2])

"""One LSTM layer and its derivatives.

With a_t = s_t + U h_{t−1}, (o, i, f) = σ(a) and g = tanh(a), the layer is c_t = f∘c_{t−1} + i∘g and
h_t = o∘m_t with m = tanh(c). Let s' be the slopes of σ and tanh, K = s'∘(m, g, c_{t−1}, i) and
k = o∘(1 − m²):

    tangent:   ȧ_t = ṡ_t + U ḣ_{t−1} + U̇ h_{t−1},    (b, j) = K_t∘ȧ_t, of o and of the others
               ċ_t = f_t∘ċ_{t−1} + Σ j,              ḣ_t = b + k_t∘ċ_t
    gradient:  p_t = ∂h_t + Uᵀ q_{t+1},              r_t = f_{t+1}∘r_{t+1} + k_t∘p_t
               q_t = K_t∘(p, r, r, r)_t,             in s it is q, in U it is Σ_t q_t h_{t−1}ᵀ
    second:    ṗ_t = Uᵀ q̇_{t+1} + U̇ᵀ q_{t+1},        ṙ_t = f_{t+1}∘ṙ_{t+1} + k_t∘ṗ_t + z_t
               q̇_t = K_t∘(ṗ, ṙ, ṙ, ṙ)_t + e_t

    e = w∘q∘ȧ + (x_o∘ċ, x_g∘ȧ_g, x_f∘ċ_{t−1}, x_g∘ȧ_i),   w = 1 − 2σ or −2 tanh
    z = x_o∘ȧ_o + x_c∘ċ + (x_f∘ȧ_f)_{t+1}
    x_o = s'_o∘p∘(1 − m²),  x_g = s'_i∘s'_g∘r,  x_f = s'_f∘r,  x_c = −2 k∘m∘p
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from hyperribbon.operators.derivatives.rewritten.recurrence import (
    Evaluated,
    Flow,
    Maybe,
    Moving,
    in_weights,
    pushed,
    steps_of,
)

__all__ = ["LSTMLayer"]

Steps = Sequence[torch.Tensor]


class LSTMLayer(Evaluated):
    """An evaluated LSTM layer; its gates are in the order o, i, f, g, its state is h, c."""

    def __init__(
        self, steps: torch.Tensor, u: torch.Tensor, d: Maybe, start: Sequence[torch.Tensor]
    ) -> None:
        h, c = start
        self.u, size = u, u.shape[1]
        self.states, self.cells = (x.new_empty(len(steps) + 1, *x.shape) for x in (h, c))
        self.states[0], self.cells[0] = h, c
        self.gates = torch.empty_like(steps, memory_format=torch.contiguous_format)
        opened, new = self.gates.split([3 * size, size], dim=2)
        o, i, f = opened.chunk(3, dim=2)
        seen = (steps, self.gates, opened, new, o, i, f, self.cells[1:], self.states[1:])
        across = u.t()
        for step, gate, oif, g, o_t, i_t, f_t, next_c, next_h in zip(*seen, strict=True):
            torch.addmm(step, h, across, out=gate)
            oif.sigmoid_()
            c = torch.mul(f_t, c, out=next_c).addcmul_(i_t, g.tanh_())
            h = torch.mul(o_t, c.tanh(), out=next_h)

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Return the outputs (T, n, H), and the last c."""
        return self.states[1:], self.cells[-1].clone()

    @cached_property
    def by_step(self) -> tuple[Steps, ...]:
        """K, k and f."""
        o, i, f, g = self.gates.chunk(4, dim=2)
        m = self.cells[1:].tanh()
        k_all = self.slopes().mul_(torch.cat([m, g, self.cells[:-1], i], dim=2))
        return k_all.unbind(0), (o * (1 - m * m)).unbind(0), f.unbind(0)

    def slopes(self) -> torch.Tensor:
        """Return s' of all gates."""
        size = self.u.shape[1]
        opened, g = self.gates.split([3 * size, size], dim=2)
        return torch.cat([opened * (1 - opened), 1 - g * g], dim=2)

    def moving(
        self, along: Maybe, along_u: Maybe, along_d: Maybe, along_start: Sequence[Maybe]
    ) -> _Moving:
        """Move along a direction."""
        nothing = torch.zeros_like(self.cells[0])
        h, c = (nothing if part is None else part for part in along_start)
        moving, across = _Moving([], [h], [c]), self.u.t()
        given = steps_of(pushed(along, along_u, self.states[:-1]), len(self.gates))
        for step, k_all, k, f in zip(given, *self.by_step, strict=True):
            a = h @ across if step is None else torch.addmm(step, h, across)
            b, i, j, g = (k_all * a).chunk(4, dim=1)
            c = torch.addcmul(i + j + g, f, c)
            h = torch.addcmul(b, k, c)
            moving.add(a, h, c)
        return moving

    def gradient(
        self, of_ends: Sequence[Maybe], is_u_needed: bool
    ) -> tuple[tuple[Maybe, ...], _Flow]:
        """Return the gradient in the steps, U, d and the start."""
        of_h, of_c = of_ends
        p = torch.zeros_like(self.cells[0])
        carried, found = p if of_c is None else of_c, list[tuple[torch.Tensor, ...]]()
        given = steps_of(of_h, len(self.gates))
        for out, k_all, k, f in reversed([*zip(given, *self.by_step, strict=True)]):
            p = p if out is None else p + out
            r = torch.addcmul(carried, k, p)
            q = k_all * torch.cat([p, r, r, r], dim=1)
            found.append((q, p, r))
            p, carried = q @ self.u, r * f
        q, ps, rs = (list(column[::-1]) for column in zip(*found, strict=True))
        q = torch.stack(q)
        in_u = in_weights(q, self.states[:-1]) if is_u_needed else None
        return (q, in_u, None, p, carried), _Flow(self, q, ps, rs)


class _Moving(Moving):
    """ȧ of each step, and ḣ and ċ before the first one and after each."""

    def __init__(self, a: list[torch.Tensor], h: list[torch.Tensor], c: list[torch.Tensor]) -> None:
        self.a, self.h, self.c = a, h, c

    def add(self, a: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> None:
        """Add a step."""
        self.a.append(a)
        self.h.append(h)
        self.c.append(c)

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Return ḣ of all steps and the last ċ."""
        return torch.stack(self.h[1:]), self.c[-1]


class _Flow(Flow):
    """q (T, n, 4H), and p and r (n, H) of each step."""

    def __init__(
        self, layer: LSTMLayer, q: torch.Tensor, p: list[torch.Tensor], r: list[torch.Tensor]
    ) -> None:
        self.layer, self.q, self.p, self.r = layer, q, p, r

    @cached_property
    def by_step(self) -> tuple[Steps, ...]:
        """w∘q, (x_o, x_g, x_f, x_g), x_o, x_f and x_c."""
        p, r, m = torch.stack(self.p), torch.stack(self.r), self.layer.cells[1:].tanh()
        s_o, s_i, s_f, s_g = self.layer.slopes().chunk(4, dim=2)
        x_g = s_i * s_g * r
        crossed = torch.cat([s_o * p * (1 - m * m), x_g, s_f * r, x_g], dim=2)
        x_o, _, x_f, _ = crossed.chunk(4, dim=2)
        x_c = torch.stack(list(self.layer.by_step[1])).mul_(m).mul_(p).mul_(-2)
        bent = self.layer.gates.mul(-2)
        bent[..., : 3 * m.shape[2]] += 1
        parts = (bent.mul_(self.q), crossed, x_o, x_f, x_c)
        return tuple(part.unbind(0) for part in parts)

    def curved(
        self, moving: _Moving, along_u: Maybe, is_u_needed: bool
    ) -> tuple[torch.Tensor | None, ...]:
        """Return how the gradient moves."""
        layer, found = self.layer, list[torch.Tensor]()
        p = carried = torch.zeros_like(layer.cells[0])
        given = steps_of(None if along_u is None else self.q @ along_u, len(self.q))
        moved = moving.a, moving.c[:-1], moving.c[1:]
        seen = zip(given, *moved, *layer.by_step, *self.by_step, strict=True)
        for out, a, before, after, k_all, k, f, bent, crossed, x_o, x_f, x_c in reversed([*seen]):
            a_o, a_i, a_f, a_g = a.chunk(4, dim=1)
            r = torch.addcmul(carried, x_o, a_o)
            r = torch.addcmul(torch.addcmul(r, x_c, after), k, p)
            e = torch.addcmul(bent * a, crossed, torch.cat([after, a_g, before, a_i], dim=1))
            q = torch.addcmul(e, k_all, torch.cat([p, r, r, r], dim=1))
            found.append(q)
            p = q @ layer.u if out is None else torch.addmm(out, q, layer.u)
            carried = torch.addcmul(x_f * a_f, r, f)
        q, in_u = torch.stack(found[::-1]), None
        if is_u_needed:
            in_u = in_weights(q, layer.states[:-1])
            in_u += in_weights(self.q, torch.stack(moving.h[:-1]))
        return q, in_u, None, p, carried

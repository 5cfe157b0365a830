"""One GRU layer and its derivatives.

With v = U h_{t−1} + d in three parts, (r, z) = σ(s + v), α = s_n + r∘v_n and n = tanh(α), the layer
is h_t = n + z∘(h_{t−1} − n). With the slopes r', z', n' let A = (1 − z)∘n', B = (h_{t−1} − n)∘z'
and C = v_n∘r':

    tangent:   v̇ = U ḣ_{t−1} + U̇ h_{t−1} + ḋ,         ȧ = ṡ + v̇ of r and z
               α̇ = ṡ_n + r∘v̇_n + C∘ȧ_r,                ḣ_t = z∘ḣ_{t−1} + A∘α̇ + B∘ȧ_z
    gradient:  p_t = ∂h_t + z_{t+1}∘p_{t+1} + Uᵀ y_{t+1},    q = (C∘A, B, A)∘p in s
               y = (q_r, q_z, r∘q_n) in v
    second:    ṗ_t = z_{t+1}∘ṗ_{t+1} + (x_z∘ȧ_z)_{t+1} + Uᵀ ẏ_{t+1} + U̇ᵀ y_{t+1}
               q̇_n = A∘ṗ − n'∘x_z∘ȧ_z − 2n∘q_n∘α̇
               q̇_z = B∘ṗ + x_z∘(ḣ_{t−1} − n'∘α̇) + (1 − 2z)∘q_z∘ȧ_z
               q̇_r = C∘q̇_n + x_r∘v̇_n + (1 − 2r)∘q_r∘ȧ_r
               ẏ = (q̇_r, q̇_z, r∘q̇_n + x_r∘ȧ_r),       x_z = z'∘p,  x_r = r'∘q_n
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

__all__ = ["GRULayer"]

Steps = Sequence[torch.Tensor]


class GRULayer(Evaluated):
    """An evaluated GRU layer; its gates are in the order r, z, n, its state is h."""

    def __init__(
        self, steps: torch.Tensor, u: torch.Tensor, d: Maybe, start: Sequence[torch.Tensor]
    ) -> None:
        (h,) = start
        self.u, across, sizes = u, u.t(), [2 * u.shape[1], u.shape[1]]
        self.has_biases = d is not None
        self.states = h.new_empty(len(steps) + 1, *h.shape)
        self.states[0] = h
        self.own = torch.empty_like(steps, memory_format=torch.contiguous_format)
        self.gates = torch.empty_like(self.own)
        s, v, g = (tensor.split(sizes, dim=2) for tensor in (steps, self.own, self.gates))
        seen = zip(self.own, *s, *v, *g, *g[0].chunk(2, dim=2), self.states[1:], strict=True)
        for own, s_opened, s_new, v_opened, v_new, opened, new, r, z, after in seen:
            torch.mm(h, across, out=own) if d is None else torch.addmm(d, h, across, out=own)
            torch.add(s_opened, v_opened, out=opened).sigmoid_()
            torch.addcmul(s_new, r, v_new, out=new).tanh_()
            h = torch.lerp(new, h, z, out=after)

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Return the outputs (T, n, H)."""
        return (self.states[1:],)

    @cached_property
    def by_step(self) -> tuple[Steps, ...]:
        """r, z, A, B and C."""
        r, z, n = self.gates.chunk(3, dim=2)
        a = (1 - z) * (1 - n * n)
        b = (self.states[:-1] - n) * z * (1 - z)
        c = self.own.chunk(3, dim=2)[2] * r * (1 - r)
        return tuple(part.unbind(0) for part in (r, z, a, b, c))

    def moving(
        self, along: Maybe, along_u: Maybe, along_d: Maybe, along_start: Sequence[Maybe]
    ) -> _Moving:
        """Move along a direction."""
        biases = None if along_d is None else along_d.expand(self.own.shape)
        (start,), length, across = along_start, len(self.own), self.u.t()
        h = torch.zeros_like(self.states[0]) if start is None else start
        moving = _Moving([h], [])
        given = steps_of(along, length), steps_of(pushed(biases, along_u, self.states[:-1]), length)
        for step, push, r, z, a, b, c in zip(*given, *self.by_step, strict=True):
            v = h @ across if push is None else torch.addmm(push, h, across)
            v_r, v_z, v_n = v.chunk(3, dim=1)
            s_r, s_z, s_n = (0.0, 0.0, 0.0) if step is None else step.chunk(3, dim=1)
            a_r, a_z = v_r + s_r, v_z + s_z
            alpha = torch.addcmul(r * v_n + s_n, c, a_r)
            before, h = h, torch.addcmul(torch.addcmul(z * h, a, alpha), b, a_z)
            moving.h.append(h)
            moving.parts.append((a_r, a_z, v_n, alpha, before))
        return moving

    def gradient(
        self, of_ends: Sequence[Maybe], is_u_needed: bool
    ) -> tuple[tuple[Maybe, ...], _Flow]:
        """Return the gradient in the steps, U, d and the start."""
        given = steps_of(of_ends[0], len(self.own))
        p, found = torch.zeros_like(self.states[0]), list[tuple[torch.Tensor, ...]]()
        for out, r, z, a, b, c in reversed([*zip(given, *self.by_step, strict=True)]):
            p = p if out is None else p + out
            q_n, q_z = a * p, b * p
            q_r = c * q_n
            y = torch.cat([q_r, q_z, r * q_n], dim=1)
            found.append((torch.cat([q_r, q_z, q_n], dim=1), y, p))
            p = torch.addmm(z * p, y, self.u)
        q, y, ps = (torch.stack(column[::-1]) for column in zip(*found, strict=True))
        return (q, *self.in_own(y, is_u_needed), p), _Flow(self, q, y, ps)

    def in_own(self, y: torch.Tensor, is_u_needed: bool) -> tuple[Maybe, Maybe]:
        """Return what flows into U and d."""
        in_u = in_weights(y, self.states[:-1]) if is_u_needed else None
        return in_u, y.sum((0, 1)) if self.has_biases else None


class _Moving(Moving):
    """ḣ before the first step and after each; ȧ_r, ȧ_z, v̇_n, α̇ and the ḣ before, of each."""

    def __init__(self, h: list[torch.Tensor], parts: list[tuple[torch.Tensor, ...]]) -> None:
        self.h, self.parts = h, parts

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Return ḣ of all steps."""
        return (torch.stack(self.h[1:]),)


class _Flow(Flow):
    """q and y (T, n, 3H), and p (T, n, H)."""

    def __init__(self, layer: GRULayer, q: torch.Tensor, y: torch.Tensor, p: torch.Tensor) -> None:
        self.layer, self.q, self.y, self.p = layer, q, y, p

    @cached_property
    def by_step(self) -> tuple[Steps, ...]:
        """x_r, x_z, n', (1 − 2r)∘q_r, (1 − 2z)∘q_z and −2n∘q_n."""
        r, z, n = self.layer.gates.chunk(3, dim=2)
        q_r, q_z, q_n = self.q.chunk(3, dim=2)
        slopes = r * (1 - r) * q_n, z * (1 - z) * self.p, 1 - n * n
        bends = (1 - 2 * r) * q_r, (1 - 2 * z) * q_z, -2 * n * q_n
        return tuple(part.unbind(0) for part in (*slopes, *bends))

    def curved(
        self, moving: _Moving, along_u: Maybe, is_u_needed: bool
    ) -> tuple[torch.Tensor | None, ...]:
        """Return how the gradient moves."""
        layer, found = self.layer, list[tuple[torch.Tensor, ...]]()
        p = torch.zeros_like(layer.states[0])
        given = steps_of(None if along_u is None else self.y @ along_u, len(self.y))
        seen = zip(given, moving.parts, *layer.by_step, *self.by_step, strict=True)
        for out, (a_r, a_z, v, alpha, before), *coefficients in reversed([*seen]):
            r, z, a, b, c, x_r, x_z, slope, bend_r, bend_z, bend_n = coefficients
            moved = x_z * a_z
            q_n = torch.addcmul(bend_n * alpha, slope, moved, value=-1)
            q_n = torch.addcmul(q_n, a, p)
            apart = torch.addcmul(before, slope, alpha, value=-1)
            q_z = torch.addcmul(torch.addcmul(bend_z * a_z, x_z, apart), b, p)
            q_r = torch.addcmul(torch.addcmul(bend_r * a_r, x_r, v), c, q_n)
            y = torch.cat([q_r, q_z, torch.addcmul(r * q_n, x_r, a_r)], dim=1)
            found.append((torch.cat([q_r, q_z, q_n], dim=1), y))
            moved = torch.addcmul(moved, z, p)
            p = torch.addmm(moved if out is None else moved + out, y, layer.u)
        q, y = (torch.stack(column[::-1]) for column in zip(*found, strict=True))
        in_u, in_d = layer.in_own(y, is_u_needed)
        if in_u is not None:
            in_u = in_u + in_weights(self.y, torch.stack(moving.h[:-1]))
        return q, in_u, in_d, p

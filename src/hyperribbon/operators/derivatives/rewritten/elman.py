"""One layer of a simple recurrent network and its derivatives.

The layer is h_t = φ(a_t) with a_t = s_t + U h_{t−1}, φ the hyperbolic tangent or the rectifier:

    tangent:   ȧ_t = ṡ_t + U ḣ_{t−1} + U̇ h_{t−1},    ḣ_t = φ'_t∘ȧ_t
    gradient:  p_t = ∂h_t + Uᵀ q_{t+1},              q_t = φ'_t∘p_t
    second:    ṗ_t = Uᵀ q̇_{t+1} + U̇ᵀ q_{t+1},        q̇_t = φ'_t∘ṗ_t + φ''_t∘p_t∘ȧ_t

where φ' = 1 − h² and φ''∘p = −2h∘q of the tangent; of the rectifier φ'' is zero.
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

__all__ = ["RectifiedLayer", "TanhLayer"]

Steps = Sequence[torch.Tensor]


class TanhLayer(Evaluated):
    """An evaluated layer with the hyperbolic tangent; its state is h."""

    def __init__(
        self, steps: torch.Tensor, u: torch.Tensor, d: Maybe, start: Sequence[torch.Tensor]
    ) -> None:
        (h,) = start
        self.u, across = u, u.t()
        self.states = h.new_empty(len(steps) + 1, *h.shape)
        self.states[0] = h
        for step, after in zip(steps, self.states[1:], strict=True):
            h = self._activate_(torch.addmm(step, h, across, out=after))

    @staticmethod
    def _activate_(a: torch.Tensor) -> torch.Tensor:
        return a.tanh_()

    def _slopes(self) -> torch.Tensor:
        return 1 - self.states[1:].square()

    def bends(self, q: torch.Tensor) -> torch.Tensor | None:
        """Return φ''∘p, or nothing where it is zero."""
        return -2 * self.states[1:] * q

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Return the outputs (T, n, H)."""
        return (self.states[1:],)

    @cached_property
    def slopes(self) -> Steps:
        """φ' of each step."""
        return self._slopes().unbind(0)

    def moving(
        self, along: Maybe, along_u: Maybe, along_d: Maybe, along_start: Sequence[Maybe]
    ) -> _Moving:
        """Move along a direction."""
        (start,) = along_start
        h = torch.zeros_like(self.states[0]) if start is None else start
        moving, across = _Moving([], [h]), self.u.t()
        given = steps_of(pushed(along, along_u, self.states[:-1]), len(self.slopes))
        for step, slope in zip(given, self.slopes, strict=True):
            a = h @ across if step is None else torch.addmm(step, h, across)
            h = slope * a
            moving.a.append(a)
            moving.h.append(h)
        return moving

    def gradient(
        self, of_ends: Sequence[Maybe], is_u_needed: bool
    ) -> tuple[tuple[Maybe, ...], _Flow]:
        """Return the gradient in the steps, U, d and the start."""
        given = steps_of(of_ends[0], len(self.slopes))
        p, found = torch.zeros_like(self.states[0]), list[torch.Tensor]()
        for out, slope in reversed([*zip(given, self.slopes, strict=True)]):
            found.append(slope * (p if out is None else p + out))
            p = found[-1] @ self.u
        q = torch.stack(found[::-1])
        in_u = in_weights(q, self.states[:-1]) if is_u_needed else None
        return (q, in_u, None, p), _Flow(self, q)


class RectifiedLayer(TanhLayer):
    """An evaluated layer with the rectifier; its state is h."""

    @staticmethod
    def _activate_(a: torch.Tensor) -> torch.Tensor:
        return a.relu_()

    def _slopes(self) -> torch.Tensor:
        return (self.states[1:] > 0).to(self.states.dtype)

    def bends(self, q: torch.Tensor) -> torch.Tensor | None:
        """Return nothing: the second derivative is zero."""
        return None


class _Moving(Moving):
    """ȧ of each step, and ḣ before the first one and after each."""

    def __init__(self, a: list[torch.Tensor], h: list[torch.Tensor]) -> None:
        self.a, self.h = a, h

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Return ḣ of all steps."""
        return (torch.stack(self.h[1:]),)


class _Flow(Flow):
    """q (T, n, H)."""

    def __init__(self, layer: TanhLayer, q: torch.Tensor) -> None:
        self.layer, self.q = layer, q

    @cached_property
    def bends(self) -> Sequence[Maybe]:
        """φ''∘p of each step."""
        return steps_of(self.layer.bends(self.q), len(self.q))

    def curved(
        self, moving: _Moving, along_u: Maybe, is_u_needed: bool
    ) -> tuple[torch.Tensor | None, ...]:
        """Return how the gradient moves."""
        layer, found = self.layer, list[torch.Tensor]()
        p = torch.zeros_like(layer.states[0])
        given = steps_of(None if along_u is None else self.q @ along_u, len(self.q))
        seen = zip(given, moving.a, layer.slopes, self.bends, strict=True)
        for out, a, slope, bent in reversed([*seen]):
            q = slope * p if bent is None else torch.addcmul(bent * a, slope, p)
            found.append(q)
            p = q @ layer.u if out is None else torch.addmm(out, q, layer.u)
        q, in_u = torch.stack(found[::-1]), None
        if is_u_needed:
            in_u = in_weights(q, layer.states[:-1])
            in_u += in_weights(self.q, torch.stack(moving.h[:-1]))
        return q, in_u, None, p

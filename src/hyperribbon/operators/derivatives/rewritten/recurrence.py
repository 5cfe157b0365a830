"""Recurrent layers as one operation each, whose first and second derivatives are written out.

A layer h_t = φ(s_t, U h_{t−1} + d) is differentiated by recurrences that are linear in what moves:
tangents run along the steps, gradients against them, and a product with the second derivative is
the gradient's recurrence once more, along a tangent. Their coefficients depend on the point alone
and are computed once for all products, and U meets all steps in one matrix product.
"""

# pyright: reportIncompatibleMethodOverride=false
# torch gives `backward` as many gradients as `forward` has outputs.
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hyperribbon.core.devices.torch_inside import seen_whole, unwatched
from hyperribbon.operators.derivatives.rewritten.convolutions import needed_by

__all__ = [
    "Evaluated",
    "Flow",
    "Maybe",
    "Moving",
    "in_weights",
    "pushed",
    "recurrent_layer",
    "steps_of",
]

Maybe = torch.Tensor | None


class Moving(ABC):
    """An evaluated layer, moved along a direction in all that it was given."""

    @abstractmethod
    def ends(self) -> tuple[torch.Tensor, ...]:
        """Return how what the layer returned moves."""


class Flow(ABC):
    """What a gradient leaves behind.

    Attributes:
        q: The gradient in the steps, (T, n, gates·H).
    """

    q: torch.Tensor

    @abstractmethod
    def curved(self, moving: Any, along_u: Maybe, is_u_needed: bool) -> tuple[Maybe, ...]:
        """Return how the gradient moves with the layer: in the steps, U, d and the start."""


class Evaluated(ABC):
    """An evaluated layer; tensors that it keeps are its own, not those that it returns.

    Args:
        steps: W x + b of all steps, (T, n, gates·H).
        u: The weights of the step before, (gates·H, H).
        d: Their biases, where they are no part of the steps.
        start: The state before the first step, (n, H) each.
    """

    @abstractmethod
    def __init__(
        self, steps: torch.Tensor, u: torch.Tensor, d: Maybe, start: Sequence[torch.Tensor]
    ) -> None: ...

    @abstractmethod
    def ends(self) -> tuple[torch.Tensor, ...]:
        """Return the outputs (T, n, H), and what the last step hands on besides, (n, H) each."""

    @abstractmethod
    def moving(
        self, along: Maybe, along_u: Maybe, along_d: Maybe, along_start: Sequence[Maybe]
    ) -> Moving:
        """Move along a direction."""

    @abstractmethod
    def gradient(
        self, of_ends: Sequence[Maybe], is_u_needed: bool
    ) -> tuple[tuple[Maybe, ...], Flow]:
        """Return the gradient in the steps, U, d and the start, of what flows into the ends."""


def recurrent_layer(
    kind: type[Evaluated],
    steps: torch.Tensor,
    u: torch.Tensor,
    d: Maybe,
    start: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return the outputs (T, n, H) of a kind of layer, and its last state.

    Arguments are those of `Evaluated`.
    """
    outputs, *others = _Layer.apply(kind, steps, u, d, *start)
    return outputs, (outputs[-1], *others)


class _Layer(torch.autograd.Function):
    @staticmethod
    @unwatched
    def forward(ctx: Any, kind: type[Evaluated], *given: Any) -> Any:
        ctx.save_for_backward(*given)
        steps, u, d, *start = given

        def evaluated() -> tuple[Evaluated, list[Any]]:
            layer = kind(steps, u.detach(), d, start)
            return layer, list(vars(layer).values())

        ctx.layer = seen_whole(evaluated)[0]
        ctx.set_materialize_grads(False)
        return ctx.layer.ends()

    @staticmethod
    @unwatched
    def backward(ctx: Any, *of_ends: Maybe) -> Any:
        given, is_u_needed = ctx.saved_tensors, needed_by(ctx)[2]
        if all(part is None for part in of_ends):
            return None, *(None for _ in given)
        if torch.is_grad_enabled():
            return None, *_Gradient.apply(ctx.layer, is_u_needed, len(of_ends), *of_ends, *given)
        return None, *ctx.layer.gradient(of_ends, is_u_needed)[0]


class _Gradient(torch.autograd.Function):
    @staticmethod
    @unwatched
    def forward(ctx: Any, layer: Evaluated, is_u_needed: bool, ends: int, *given: Any) -> Any:
        found, ctx.flow = layer.gradient(given[:ends], is_u_needed)
        ctx.flow.q = ctx.flow.q.detach()  # what is returned would hold itself through this
        ctx.layer, ctx.ends = layer, ends
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    @unwatched
    @once_differentiable
    def backward(ctx: Any, along: Maybe, along_u: Maybe, along_d: Maybe, *start: Maybe) -> Any:
        moving = ctx.layer.moving(along, along_u, along_d, start)
        _, _, _, *needed = needed_by(ctx)
        in_ends, needed = needed[: ctx.ends], needed[ctx.ends :]
        moved = moving.ends() if any(in_ends) else in_ends
        moved = (part if asked else None for part, asked in zip(moved, in_ends, strict=True))
        if not any(needed):
            return None, None, None, *moved, *(None for _ in needed)
        return None, None, None, *moved, *ctx.flow.curved(moving, along_u, needed[1])


def in_weights(q: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return Σ_t q_t h_tᵀ, summed over samples too."""
    return _rows(q).t() @ _rows(states)


def pushed(along: Maybe, along_u: Maybe, states: torch.Tensor) -> Maybe:
    """Return ṡ_t + U̇ h_t of all steps; nothing where nothing moves."""
    if along_u is None:
        return along
    moved = (_rows(states) @ along_u.t()).view(*states.shape[:2], -1)
    return moved if along is None else along + moved


def _rows(steps: torch.Tensor) -> torch.Tensor:
    """Return samples of all steps below each other."""
    return steps.reshape(-1, steps.shape[2])


def steps_of(tensor: Maybe, length: int) -> Sequence[Maybe]:
    """Return the steps of a tensor (T, …); as many times nothing where there is none."""
    return [None] * length if tensor is None else tensor.unbind(0)

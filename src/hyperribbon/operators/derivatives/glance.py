"""A first look at derivatives: evaluations at shifted weights, in the model's own precision.

Where derivatives agree with it as closely as they must with differences in double precision, those
need not be taken. A look never refuses: what it does not confirm is compared in full. It is not
taken where values jump (rounding, comparisons of activations), as a step that is not tiny averages
over jumps, and straight-through estimators are such averages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from hyperribbon.operators.derivatives.linearisation import Block
from hyperribbon.operators.derivatives.verification import TOTAL, agreement, differing, pieces

__all__ = ["confirms_curvature", "confirms_slopes", "glance_steps"]

# Few kinks lie within a small step; rounding of a few ε/h is less in a larger one. Where one of the
# two is in the way of the first step, it seldom is of the other.
_STEPS = {torch.float64: (1e-7, 1e-6), torch.float32: (3e-5, 3e-4)}
_SLOPE = 1e-3  # between the slope of the loss and its gradient, as in full comparisons


def glance_steps(dtype: torch.dtype, has_kinks: bool) -> tuple[float, ...]:
    """Return steps along a direction, relative to the weights; none where no step decides."""
    steps = _STEPS.get(dtype, ())
    return steps if has_kinks else steps[::-1]


def confirms_slopes(
    pushed: torch.Tensor, ahead: torch.Tensor, here: torch.Tensor, step: float
) -> bool:
    """Whether J v = (f(θ + h·v) − f(θ))/h as closely as differences in double precision must.

    Args:
        pushed: J v.
        ahead: f(θ + h·v).
        here: f(θ).
        step: h.

    Returns:
        True when they agree; False decides nothing.
    """
    if ahead.shape != pushed.shape:
        return False
    estimate = (ahead.double() - here.double()) / step
    gap, size = float((estimate - pushed).norm()), float(estimate.norm())
    return gap <= agreement(pushed.dtype) * size


def confirms_curvature(
    curved: Block, direction: Block, here: Block, ahead: Mapping[str, torch.Tensor], step: float
) -> bool:
    """Whether ∇²ℓ v is the change of the gradient along v, and the gradient that of the loss.

    With g the gradient, g(θ + h·v) − g(θ) = h ∇²ℓ v for each parameter, and
    ℓ(θ + h·v) − ℓ(θ) = h ⟨g, v⟩ + h²/2 ⟨v, ∇²ℓ v⟩.

    Args:
        curved: ∇²ℓ v by name.
        direction: v by name.
        here: g(θ) by name, and ℓ(θ) as `TOTAL`.
        ahead: The same at θ + h·v.
        step: h.

    Returns:
        True when both agree; False decides nothing.
    """
    norms: dict[str, float] = {}
    gaps: dict[str, float] = {}
    slope = bend = scale = 0.0
    for name, along in direction.items():
        size = gap = 0.0
        for v, product, before, after in pieces(along, curved[name], here[name], ahead[name]):
            estimate = (after - before).div_(step)
            size = math.hypot(size, float(estimate.norm()))
            gap = math.hypot(gap, float(estimate.sub_(product).norm()))
            term = torch.mul(before, v, out=estimate)
            slope, scale = slope + float(term.sum()), scale + float(term.norm(1))
            bend += float(torch.dot(v, product))
        norms[name], gaps[name] = size, gap
    close = agreement(next(iter(curved.values())).dtype)
    if not math.isfinite(sum(gaps.values())) or differing(norms, gaps, close)[1]:
        return False
    change = (float(ahead[TOTAL]) - float(here[TOTAL])) / step
    return abs(change - slope - step / 2 * bend) <= _SLOPE * scale

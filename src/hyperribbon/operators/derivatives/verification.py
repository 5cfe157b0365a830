"""Fast derivatives against slow ones: finite differences, adjoints, and gradients one by one.

Finite differences are taken in float64 where the model runs there: kinks of the model are then so
rarely crossed, and rounding is so small, that a right derivative agrees to several digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.derivatives.linearisation import Block, Linearisation
from hyperribbon.operators.derivatives.sums import GradientSums

if TYPE_CHECKING:
    from hyperribbon.operators.risk.losses import Loss

__all__ = [
    "FIRST_STEP",
    "TOTAL",
    "Disagreement",
    "Shifted",
    "check_curvature",
    "check_slopes",
    "reached_direction",
    "right_factors",
    "same_derivatives",
    "some_direction",
    "some_slopes",
]

_STEPS = (1e-7, 1e-6, 1e-8, 1e-5, 1e-4, 1e-3)  # of differences in float64, relative to the weights
_COARSE_STEPS = (1e-3, 1e-4, 1e-2)  # in lower precisions
_AGREE = {torch.float64: 1e-3, torch.float32: 2e-2}
_COARSE = 0.3  # agreement of products in half precisions
_PIECE = 2**17  # entries that are compared at once, in the processor's cache

FIRST_STEP = _STEPS[0]
"""The step along a direction that is tried first."""

TOTAL = "the loss itself"
"""Name under which the loss stands beside its gradients."""

Shifted = Callable[[float], Mapping[str, torch.Tensor]]
"""Returns named results at weights θ + h·v, for h."""


class Disagreement(ArgumentError):
    """Derivatives that are not those of the function."""


def some_direction(leaves: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a random direction in proportion to the weights, always the same."""
    generator = torch.Generator("cpu").manual_seed(0)
    sizes = {name: _mean_square(leaf) for name, leaf in leaves.items()}
    overall = max(sizes.values())
    direction = {}
    for name, leaf in leaves.items():
        drawn = torch.randn(leaf.shape, generator=generator, dtype=torch.float32, device="cpu")
        direction[name] = drawn.mul_(max(sizes[name], 0.01 * overall, 1e-6) ** 0.5).to(leaf)
    return direction


def _mean_square(tensor: torch.Tensor) -> float:
    norm = torch.linalg.vector_norm(
        tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
    )
    return float(norm) ** 2 / max(tensor.numel(), 1)


def some_slopes(point: Linearisation, names: Sequence[str]) -> tuple[torch.Tensor, Block]:
    """Return random cotangents u (1, n, …), always the same, and Jᵀu by name."""
    generator = torch.Generator("cpu").manual_seed(1)
    shape = 1, *point.outputs.shape
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    seeds, sums = drawn.to(point.outputs), GradientSums()
    point.pull(seeds, sums, names)
    return seeds, sums.named()


def reached_direction(leaves: Mapping[str, torch.Tensor], slopes: Block) -> dict[str, torch.Tensor]:
    """Return a direction that does not move the weights which no gradient reaches.

    By no_grad() or detach(), or because they are padding: the derivatives are those that training
    sees. Nothing is returned where no gradient reaches any.
    """
    direction = some_direction(leaves)
    reached = False
    for name, along in direction.items():
        along.masked_fill_(slopes[name][0] == 0, 0.0)
        reached = reached or bool(along.any())
    return direction if reached else {}


def check_slopes(
    point: Linearisation,
    direction: Block,
    slopes: tuple[torch.Tensor, Block],
    shifted: Shifted,
    precision: torch.dtype,
) -> None:
    """Compare J v with finite differences of the outputs, and Jᵀu with J v.

    Args:
        point: The derivatives on a few samples.
        direction: v by name.
        slopes: u and Jᵀu.
        shifted: Outputs under the name "outputs" at weights shifted along v.
        precision: Precision that the shifted outputs are computed in.

    Raises:
        Disagreement: They differ.
    """
    pushed = point.push({name: tensor.unsqueeze(0) for name, tensor in direction.items()})
    _compare({"outputs": pushed[0]}, shifted, precision, "first")
    seeds, pulled = slopes
    forward = float((seeds.double() * pushed.double()).sum())
    backward, scale = 0.0, abs(forward)
    for name, along in direction.items():
        for slope, part in _pieces(pulled[name], along):
            term = slope.double() * part
            backward, scale = backward + float(term.sum()), scale + float(term.norm(1))
    if abs(forward - backward) > _agreement(pushed.dtype) * scale:
        raise _error(list(direction), abs(forward - backward) / scale, "first")


def check_curvature(
    curved: Block, direction: Block, shifted: Shifted, precision: torch.dtype
) -> None:
    """Compare ∇²ℓ v with finite differences of the gradient.

    Args:
        curved: ∇²ℓ v by name.
        direction: v by name.
        shifted: Gradients by name at weights shifted along v.
        precision: Precision that they are computed in.

    Raises:
        Disagreement: They differ; the message names the parameters.
    """
    _compare({name: curved[name] for name in direction}, shifted, precision, "second")
    _check_gradient(direction, shifted, precision)


def same_derivatives(
    fast: Linearisation, plain: Linearisation, direction: Block, loss: Loss | None, targets: Any
) -> bool:
    """Whether two linearisations of the same samples agree up to rounding."""
    block = {name: tensor.unsqueeze(0) for name, tensor in direction.items()}
    results = []
    for point in (fast, plain):
        pushed = point.push(block)
        pulled, curved = GradientSums(), GradientSums()
        point.pull(pushed, pulled, list(direction))
        rows = pulled.named()
        found = [pushed, point.outputs, *(rows[name] for name in direction)]
        if loss is not None:
            point.curve(loss, targets, block, curved)
            rows = curved.named()
            found += [rows[name] for name in direction]
        results.append(found)
    limit = min(1e3 * torch.finfo(fast.outputs.dtype).eps, _COARSE)
    return all(
        float((a - b).norm()) <= limit * (float(b.norm()) + limit)
        for a, b in zip(*results, strict=True)
    )


def right_factors(point: Linearisation, names: set[str]) -> set[str]:
    """Return the names whose factors are the gradients of single samples.

    With G_n the gradients that the factors give for cotangents u_n, and random weights w_n of the
    samples, Σ_n w_n G_n is compared with Jᵀ(w·u): a gradient that is wrong, or another sample's,
    shows.

    Args:
        point: The derivatives on some samples.
        names: Names that are said to have factors.
    """
    outputs = point.outputs
    if not names:
        return set()
    generator = torch.Generator("cpu").manual_seed(2)
    drawn = torch.randn(outputs.shape, generator=generator, dtype=torch.float64, device="cpu")
    rows = drawn.to(outputs).unsqueeze(0)
    weights = torch.randn(len(outputs), generator=generator, dtype=torch.float64, device="cpu")
    weights = weights.to(outputs)
    ordered = sorted(names)
    sums = GradientSums()
    point.pull(rows * weights.reshape(1, -1, *(1,) * (outputs.ndim - 1)), sums, ordered)
    expected = sums.named()
    factors = {factor.name: factor for factor in point.factors(rows, names)}
    limit = min(1e3 * torch.finfo(outputs.dtype).eps, _COARSE)
    largest = max(float(expected[name].norm()) for name in ordered)
    right = set()
    for name in ordered:
        difference = expected[name].reshape(-1)
        if name in factors:
            if factors[name].samples != len(outputs):
                continue
            difference = difference - factors[name].weighted_sum(weights)[0]
        if float(difference.norm()) <= limit * (float(expected[name].norm()) + 0.01 * largest):
            right.add(name)
    return right


Parts = Callable[[str], Iterable[torch.Tensor]]
"""Gives a named tensor in pieces, flat."""


def _compare(found: Block, shifted: Shifted, precision: torch.dtype, order: str) -> None:
    """Raise when results differ from central differences at every step size."""
    steps = _STEPS if precision == torch.float64 else _COARSE_STEPS
    agreement = _agreement(next(iter(found.values())).dtype)
    if precision != torch.float64:
        agreement = max(agreement, 0.1)
    worst: tuple[float, list[str]] = (float("inf"), [])
    estimates: list[Parts] = []
    names = list(found)
    for step in steps:
        ahead, behind = shifted(step), shifted(-step)
        estimate = _quotient(ahead, behind, 2 * step)
        floors = {name: _floor(ahead[name], step) for name in names}
        error, wrong = _difference(names, _parts(found), estimate, floors, agreement)
        if not wrong:
            return
        worst = min(worst, (error, wrong))
        if precision != torch.float64:
            estimates.append(estimate)
    if estimates and not _settled(names, estimates, agreement):
        return  # differences at several steps disagree with each other: they decide nothing
    if _is_kinked(names, shifted, agreement):
        return
    raise _error(worst[1], worst[0], order)


def _is_kinked(names: Sequence[str], shifted: Shifted, agreement: float) -> bool:
    """Whether slopes to both sides differ at every step: the weights lie in a kink.

    So do those of pruned networks, where units are at zero exactly: there is no derivative, and
    autograd's convention is as good as any.
    """
    here = shifted(0.0)
    for step in (1e-6, 1e-5, 1e-4):
        right = _quotient(shifted(step), here, step)
        left = _quotient(here, shifted(-step), step)
        floors = {name: 2 * _floor(here[name], step) for name in names}
        if not _difference(names, left, right, floors, 10 * agreement)[1]:
            return False
    return True


def _check_gradient(direction: Block, shifted: Shifted, precision: torch.dtype) -> None:
    """Raise when the gradient is not that of the loss, ⟨∇L, v⟩ = dL(θ + h·v)/dh at every step."""
    worst = float("inf")
    for step in _STEPS if precision == torch.float64 else _COARSE_STEPS:
        ahead, behind = shifted(step), shifted(-step)
        slope = (float(ahead[TOTAL]) - float(behind[TOTAL])) / (2 * step)
        expected = scale = 0.0
        floor = 100 * torch.finfo(precision).eps * abs(float(ahead[TOTAL])) / step
        for name, along in direction.items():
            for first, second, part in _pieces(ahead[name], behind[name], along):
                first, second = first.double(), second.double()
                term = (first + second).mul_(0.5).mul_(part)
                expected, scale = expected + float(term.sum()), scale + float(term.norm(1))
                floor += float((first - second).mul_(part).norm(1))  # at minima, ∇L vanishes
        limit = (1e-3 if precision == torch.float64 else 0.1) * scale + floor
        gap = abs(slope - expected)
        if gap <= limit:
            return
        worst = min(worst, gap / max(scale, 1e-300))
    if precision == torch.float64:
        raise _error(list(direction), worst, "first")


def _difference(
    names: Sequence[str],
    found: Parts,
    expected: Parts,
    floors: Mapping[str, float],
    agreement: float,
) -> tuple[float, list[str]]:
    """Return the largest relative difference, and the names that differ by too much."""
    norms, gaps = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for name in names:
        for ours, theirs in zip(found(name), expected(name), strict=True):
            norms[name] = math.hypot(norms[name], float(theirs.norm()))
            gaps[name] = math.hypot(gaps[name], float((theirs - ours).norm()))
    whole = math.hypot(*norms.values())
    worst, wrong = 0.0, []
    for name, gap in gaps.items():
        scale = norms[name] + 0.05 * whole
        if gap > agreement * scale + floors[name]:
            wrong.append(name)
            worst = max(worst, gap / max(scale, 1e-300))
    return worst, wrong


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield tensors of one size in pieces, flat, side by side."""
    return zip(*(tensor.reshape(-1).split(_PIECE) for tensor in tensors), strict=True)


def _parts(block: Block) -> Parts:
    return lambda name: (piece for (piece,) in _pieces(block[name]))


def _quotient(ahead: Block, behind: Block, width: float) -> Parts:
    """Return (a − b)/width in double precision."""
    return lambda name: (
        (first.double() - second.double()).div_(width)
        for first, second in _pieces(ahead[name], behind[name])
    )


def _floor(result: torch.Tensor, step: float) -> float:
    """Return the rounding of a finite difference."""
    norm = torch.linalg.vector_norm(result, dtype=torch.float64)
    return 100 * torch.finfo(result.dtype).eps * float(norm) / step


def _settled(names: Sequence[str], estimates: Sequence[Parts], agreement: float) -> bool:
    first, second = estimates[:2]
    return not _difference(names, first, second, dict.fromkeys(names, 0.0), agreement)[1]


def _agreement(dtype: torch.dtype) -> float:
    return _AGREE.get(dtype, _COARSE)


def _error(names: Sequence[str], size: float, order: str) -> Disagreement:
    listed = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return Disagreement(
        "model",
        listed,
        f"its {order} derivatives differ from finite differences by {size:.1%}: an operation on "
        "the way to these has a derivative that is missing or not its own",
        "Look for a custom autograd.Function (once_differentiable, a straight-through estimator), "
        "detach() or no_grad() there; leave them out with params=, or use hr.GGN, which needs "
        "first derivatives only.",
    )

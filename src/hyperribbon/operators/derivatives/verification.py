"""Fast derivatives against slow ones: finite differences, adjoints, and gradients one by one.

Finite differences are taken in float64 where the model runs there: kinks of the model are then so
rarely crossed, and rounding is so small, that a right derivative agrees to several digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.derivatives.linearisation import Block, Linearisation
from hyperribbon.operators.derivatives.sums import GradientSums

if TYPE_CHECKING:
    from hyperribbon.operators.risk.losses import Loss

__all__ = [
    "TOTAL",
    "Disagreement",
    "Shifted",
    "check_curvature",
    "check_slopes",
    "right_factors",
    "same_derivatives",
    "some_direction",
]

_STEPS = (1e-7, 1e-6, 1e-8, 1e-5, 1e-4, 1e-3)  # of differences in float64, relative to the weights
_COARSE_STEPS = (1e-3, 1e-4, 1e-2)  # in lower precisions
_AGREE = {torch.float64: 1e-3, torch.float32: 2e-2}
_COARSE = 0.3  # agreement of products in half precisions

TOTAL = "the loss itself"
"""Name under which the loss stands beside its gradients."""

Shifted = Callable[[Mapping[str, torch.Tensor], float], Mapping[str, torch.Tensor]]
"""Returns named results at weights θ + h·v."""


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


def check_slopes(
    point: Linearisation, direction: Block, shifted: Shifted, precision: torch.dtype
) -> None:
    """Compare J v with finite differences of the outputs, and Jᵀu with J v.

    Args:
        point: The derivatives on a few samples.
        direction: v by name.
        shifted: Outputs under the name "outputs" at shifted weights.
        precision: Precision that the shifted outputs are computed in.

    Raises:
        Disagreement: They differ.
    """
    block = {name: tensor.unsqueeze(0) for name, tensor in direction.items()}
    pushed = point.push(block)
    _compare({"outputs": pushed[0]}, direction, shifted, precision, "first")
    generator = torch.Generator("cpu").manual_seed(1)
    drawn = torch.randn(pushed.shape, generator=generator, dtype=torch.float64, device="cpu")
    seeds = drawn.to(pushed)
    sums = GradientSums()
    point.pull(seeds, sums, list(direction))
    pulled = sums.named()
    forward = float((seeds.double() * pushed.double()).sum())
    backward, scale = 0.0, abs(forward)
    for name, along in block.items():
        term = pulled[name].double() * along
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
        shifted: Gradients by name at shifted weights.
        precision: Precision that they are computed in.

    Raises:
        Disagreement: They differ; the message names the parameters.
    """
    known: dict[float, Mapping[str, torch.Tensor]] = {}

    def remembered(direction: Block, step: float) -> Mapping[str, torch.Tensor]:
        if step not in known:
            known[step] = shifted(direction, step)
        return known[step]

    _compare({name: curved[name] for name in direction}, direction, remembered, precision, "second")
    _check_gradient(direction, remembered, precision)


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


def _compare(
    found: Block, direction: Block, shifted: Shifted, precision: torch.dtype, order: str
) -> None:
    """Raise when results differ from central differences at every step size."""
    steps = _STEPS if precision == torch.float64 else _COARSE_STEPS
    agreement = _agreement(next(iter(found.values())).dtype)
    if precision != torch.float64:
        agreement = max(agreement, 0.1)
    worst: tuple[float, list[str]] = (float("inf"), [])
    estimates: list[dict[str, torch.Tensor]] = []
    for step in steps:
        ahead, behind = shifted(direction, step), shifted(direction, -step)
        estimate = {n: (ahead[n].double() - behind[n]).div_(2 * step) for n in found}
        sizes = {n: _floor(ahead[n], step) for n in found}
        error, wrong = _difference(found, estimate, sizes, agreement)
        if not wrong:
            return
        worst = min(worst, (error, wrong))
        estimates.append(estimate)
    if precision != torch.float64 and not _settled(estimates, agreement):
        return  # differences at several steps disagree with each other: they decide nothing
    if _is_kinked(found, direction, shifted, agreement):
        return
    raise _error(worst[1], worst[0], order)


def _is_kinked(found: Block, direction: Block, shifted: Shifted, agreement: float) -> bool:
    """Whether slopes to both sides differ at every step: the weights lie in a kink.

    So do those of pruned networks, where units are at zero exactly: there is no derivative, and
    autograd's convention is as good as any.
    """
    here = shifted(direction, 0.0)
    for step in (1e-6, 1e-5, 1e-4):
        ahead, behind = shifted(direction, step), shifted(direction, -step)
        right = {n: (ahead[n].double() - here[n].double()) / step for n in found}
        left = {n: (here[n].double() - behind[n].double()) / step for n in found}
        floors = {n: 2 * _floor(here[n], step) for n in found}
        if not _difference(left, right, floors, 10 * agreement)[1]:
            return False
    return True


def _check_gradient(direction: Block, shifted: Shifted, precision: torch.dtype) -> None:
    """Raise when the gradient is not that of the loss, ⟨∇L, v⟩ = dL(θ + h·v)/dh at every step."""
    worst = float("inf")
    for step in _STEPS if precision == torch.float64 else _COARSE_STEPS:
        ahead, behind = shifted(direction, step), shifted(direction, -step)
        slope = (float(ahead[TOTAL]) - float(behind[TOTAL])) / (2 * step)
        expected = scale = 0.0
        floor = 100 * torch.finfo(precision).eps * abs(float(ahead[TOTAL])) / step
        for name, along in direction.items():
            first, second = ahead[name].double(), behind[name].double()
            term = (first + second).mul_(0.5).mul_(along)
            expected, scale = expected + float(term.sum()), scale + float(term.norm(1))
            floor += float((first - second).mul_(along).norm(1))  # at minima, where ∇L vanishes
        limit = (1e-3 if precision == torch.float64 else 0.1) * scale + floor
        gap = abs(slope - expected)
        if gap <= limit:
            return
        worst = min(worst, gap / max(scale, 1e-300))
    if precision == torch.float64:
        raise _error(list(direction), worst, "first")


def _difference(
    found: Block, expected: Block, floors: Mapping[str, float], agreement: float
) -> tuple[float, list[str]]:
    """Return the largest relative difference, and the names that differ by too much."""
    norms = {name: float(tensor.double().norm()) for name, tensor in expected.items()}
    whole = math.hypot(*norms.values())
    worst, wrong = 0.0, []
    for name, tensor in expected.items():
        gap = float((tensor.double() - found[name]).norm())
        scale = norms[name] + 0.05 * whole
        if gap > agreement * scale + floors[name]:
            wrong.append(name)
            worst = max(worst, gap / max(scale, 1e-300))
    return worst, wrong


def _floor(result: torch.Tensor, step: float) -> float:
    """Return the rounding of a finite difference."""
    return 100 * torch.finfo(result.dtype).eps * float(result.double().norm()) / step


def _settled(estimates: Sequence[Block], agreement: float) -> bool:
    first, second = estimates[0], estimates[1]
    return not _difference(first, second, dict.fromkeys(first, 0.0), agreement)[1]


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

"""Derivatives along one direction compared with finite differences, and J v with Jᵀu.

Finite differences are taken in float64 where the model runs there: kinks of the model are then so
rarely crossed, and rounding is so small, that a right derivative agrees to several digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.derivatives.linearisation import Block, Linearisation

_STEPS = (1e-7, 1e-6, 1e-8, 1e-5, 1e-4, 1e-3)  # of differences in float64, relative to the weights
_COARSE_STEPS = (1e-3, 1e-4, 1e-2)  # in lower precisions
_AGREE = {torch.float64: 1e-3, torch.float32: 2e-2}
_COARSE = 0.3  # in half precisions
_KINKED = 5  # times the difference of both sides by which a derivative at a kink may be off
_PERIOD = 65_537  # numbers of a random direction until they recur, a prime
_PIECE = 2**17  # entries that are compared at once, in the processor's cache

FIRST_STEP = _STEPS[0]
"""The step along a direction that is tried first."""

_MOST = 2**19  # entries of one parameter that are compared

TOTAL, SLOPE = "the loss itself", "its slope"
"""Names under which the loss L and ⟨∇L, v⟩ stand beside the gradients."""

Shifted = Callable[[float], Mapping[str, torch.Tensor]]
"""Returns named results at weights θ + h·v, for h."""


class Disagreement(ArgumentError):
    """Exception of the verification: derivatives that are not those of the function."""


def random_direction(leaves: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a random direction to verify derivatives along, in proportion to the weights.

    The same numbers come again and again, with a period that is no row's; each parameter goes on
    where the one before it has stopped.
    """
    sizes = {name: _mean_square(leaf) for name, leaf in leaves.items()}
    overall, start = max(sizes.values()), 0
    direction: dict[str, torch.Tensor] = {}
    for name, leaf in leaves.items():
        size = max(sizes[name], 0.01 * overall, 1e-6) ** 0.5
        stop = start + leaf.numel()
        turns = -(-stop // _PERIOD)
        numbers = _numbers() if turns <= 1 else _numbers().repeat(turns)
        scaled = (numbers[start:stop] * size).to(leaf.device, leaf.dtype)
        direction[name] = scaled.reshape(leaf.shape)
        start = stop % _PERIOD
    return direction


@cache
def _numbers() -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    with torch.inference_mode(False):  # else it could not be used outside of it, later
        return torch.randn(_PERIOD, generator=generator, dtype=torch.float32, device="cpu")


def _mean_square(tensor: torch.Tensor) -> float:
    size = torch.linalg.vector_norm(
        tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
    )
    return float(size) ** 2 / max(tensor.numel(), 1)


def random_vjp(point: Linearisation, names: Sequence[str]) -> tuple[torch.Tensor, Block]:
    """Return random cotangents u (1, n, …) to verify J v with, and Jᵀu by name."""
    generator = torch.Generator("cpu").manual_seed(1)
    shape = 1, *point.outputs.shape
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    seeds = drawn.to(point.outputs)
    return seeds, point.vjp(seeds, names)


def restrict_to_reached(direction: Block, slopes: Block) -> dict[str, torch.Tensor]:
    """Return a direction to verify along without weights that no gradient reaches.

    By no_grad() or detach(), or because they are padding: the derivatives are those that training
    sees. Nothing is returned where no gradient reaches any.
    """
    part = {name: along.masked_fill(slopes[name][0] == 0, 0) for name, along in direction.items()}
    return part if any(bool(along.any()) for along in part.values()) else {}


def check_jvp_and_vjp(
    point: Linearisation,
    direction: Block,
    slopes: tuple[torch.Tensor, Block],
    check_jvp: Callable[[torch.Tensor], None],
) -> None:
    """Verify J v by finite differences of the outputs, and Jᵀu by J v.

    J v is taken along all weights: those that no gradient reaches must not count, in whatever way
    it is found (forward mode goes through no_grad(), which finite differences do not tell from
    other weights).

    Args:
        point: The derivatives on a few samples.
        direction: v by name, of all weights.
        slopes: u and Jᵀu.
        check_jvp: Compares J v with finite differences along the reached part of v.

    Raises:
        Disagreement: They differ.
    """  # noqa: DOC501 - _error() returns one
    pushed = point.jvp({name: tensor.unsqueeze(0) for name, tensor in direction.items()})
    check_jvp(pushed[0])
    seeds, pulled = slopes
    forward = float((seeds.double() * pushed.double()).sum())
    backward, scale = 0.0, abs(forward)
    for name, along in direction.items():
        for slope, part in pieces(pulled[name], along):
            term = slope.double() * part
            backward, scale = backward + float(term.sum()), scale + float(term.norm(1))
    if abs(forward - backward) > agreement(pushed.dtype) * scale:
        raise _error(list(direction), abs(forward - backward) / scale, "first")


def check_jvp(pushed: torch.Tensor, shifted: Shifted, precision: torch.dtype) -> None:
    """Verify J v by finite differences of the outputs, named "outputs".

    Raises a Disagreement when they differ.
    """
    _compare({"outputs": pushed}, shifted, precision, "first")


def check_hvp(curved: Block, direction: Block, shifted: Shifted, precision: torch.dtype) -> None:
    """Verify the Hessian-vector product ∇²ℓ v by finite differences of the gradient.

    Raises a Disagreement, which names the parameters, when they differ.

    Args:
        curved: `some_entries` of ∇²ℓ v by name.
        direction: v by name.
        shifted: `some_entries` of gradients by name at weights shifted along v, with L and its
            slope.
        precision: Precision that they are computed in.
    """
    _compare(curved, shifted, precision, "second")
    _check_gradient({name: some_entries(v) for name, v in direction.items()}, shifted, precision)


Parts = Callable[[str], Iterable[torch.Tensor]]
"""Gives a named tensor in pieces, flat."""


def _compare(found: Block, shifted: Shifted, precision: torch.dtype, order: str) -> None:
    """Raise when a derivative's verification fails: central differences disagree at every step."""
    steps = _STEPS if precision == torch.float64 else _COARSE_STEPS
    close = agreement(next(iter(found.values())).dtype)
    if precision != torch.float64:
        close = max(close, 0.1)
    worst: tuple[float, list[str]] = (float("inf"), [])
    estimates: list[Parts] = []
    names = list(found)
    for step in steps:
        ahead, behind = shifted(step), shifted(-step)
        estimate = _quotient(ahead, behind, 2 * step)
        floors = {name: _floor(ahead[name], step) for name in names}
        error, wrong = _difference(names, _parts(found), estimate, floors, close)
        if not wrong:
            return
        worst = min(worst, (error, wrong))
        if precision != torch.float64:
            estimates.append(estimate)
    if estimates and not _settled(names, estimates, close):
        return  # differences at several steps disagree with each other: they decide nothing
    if _is_kinked(names, shifted, worst[0]):
        return
    raise _error(worst[1], worst[0], order)


def _is_kinked(names: Sequence[str], shifted: Shifted, error: float) -> bool:
    """Whether verification meets a kink: slopes to both sides differ at the smallest steps too.

    So do those of pruned networks, where units are at zero exactly: there is no derivative, and
    autograd's convention is as good as any. It lies between the two sides, so what it is off the
    mean of both is of the size of their difference. Of a smooth function, or one with kinks nearby,
    the two sides come together as the step shrinks.

    Args:
        names: What is compared.
        shifted: Results at shifted weights.
        error: How far the derivative is off, relatively.

    Returns:
        True when they do.
    """
    here = shifted(0.0)
    gaps: list[float] = []
    for step in (1e-7, 1e-6):
        right = _quotient(shifted(step), here, step)
        left = _quotient(here, shifted(-step), step)
        floors = {name: 2 * _floor(here[name], step) for name in names}
        gaps.append(_difference(names, left, right, floors, 0.0)[0])
    return min(gaps) > error / _KINKED and gaps[0] > gaps[1] / 2


def _check_gradient(direction: Block, shifted: Shifted, precision: torch.dtype) -> None:
    """Verify the gradient: ⟨∇L, v⟩ = dL(θ + h·v)/dh at every step."""
    worst = float("inf")
    for step in _STEPS if precision == torch.float64 else _COARSE_STEPS:
        ahead, behind = shifted(step), shifted(-step)
        slope = (float(ahead[TOTAL]) - float(behind[TOTAL])) / (2 * step)
        expected, scale = (float(ahead[SLOPE]) + float(behind[SLOPE])) / 2, 0.0
        floor = 100 * torch.finfo(precision).eps * abs(float(ahead[TOTAL])) / step
        for name, along in direction.items():
            for first, second, part in pieces(ahead[name], behind[name], along):
                first, second = first.double(), second.double()
                term = (first + second).mul_(0.5).mul_(part)
                scale += float(term.norm(1))
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
    close: float,
) -> tuple[float, list[str]]:
    norms, gaps = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for name in names:
        for ours, theirs in zip(found(name), expected(name), strict=True):
            norms[name] = math.hypot(norms[name], float(theirs.norm()))
            gaps[name] = math.hypot(gaps[name], float((theirs - ours).norm()))
    return find_differences(norms, gaps, close, floors)


def find_differences(
    norms: Mapping[str, float],
    gaps: Mapping[str, float],
    close: float,
    floors: Mapping[str, float] | None = None,
) -> tuple[float, list[str]]:
    """Return how derivatives differ from verified ones: at most, relatively, and in which names.

    Args:
        norms: Norms of what is right, by name.
        gaps: Norms of the differences from it.
        close: Relative difference that is allowed.
        floors: Differences that are allowed besides, by name.
    """
    whole = math.hypot(*norms.values())
    worst = 0.0
    wrong: list[str] = []
    for name, gap in gaps.items():
        scale = norms[name] + 0.05 * whole
        if gap > close * scale + (floors or {}).get(name, 0.0):
            wrong.append(name)
            worst = max(worst, gap / max(scale, 1e-300))
    return worst, wrong


def some_entries(tensor: torch.Tensor) -> torch.Tensor:
    """Return entries of a tensor to verify, up to half a million, evenly spread and scaled.

    So norms and sums of products of two tensors are estimated by those of what is returned. The
    stride has no factor in common with the size, so it goes through all rows and columns.
    """
    if tensor.numel() <= _MOST:
        return tensor
    stride = -(-tensor.numel() // _MOST)
    while math.gcd(stride, tensor.numel()) > 1:
        stride += 1
    return tensor.reshape(-1)[::stride] * math.sqrt(stride)


def inner(first: Block, second: Block) -> torch.Tensor:
    """Return two blocks' inner product for verification, summed in double precision."""
    total = 0.0
    for name, tensor in first.items():
        total += sum(float((a.double() * b).sum()) for a, b in pieces(tensor, second[name]))
    return torch.tensor(total, dtype=torch.float64, device="cpu")


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield derivatives to verify in pieces, flat, side by side."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    if len(flat[0]) <= _PIECE:
        return iter((tuple(flat),))
    return zip(*(tensor.split(_PIECE) for tensor in flat), strict=True)


def _parts(block: Block) -> Parts:
    return lambda name: (piece for (piece,) in pieces(block[name]))


def _quotient(ahead: Block, behind: Block, width: float) -> Parts:
    """Return the finite difference (a − b)/width for a verification, in double precision."""
    return lambda name: (
        (first.double() - second.double()).div_(width)
        for first, second in pieces(ahead[name], behind[name])
    )


def _floor(result: torch.Tensor, step: float) -> float:
    """Return the rounding of a finite difference that verifies a derivative."""
    size = torch.linalg.vector_norm(result, dtype=torch.float64)
    return 100 * torch.finfo(result.dtype).eps * float(size) / step


def _settled(names: Sequence[str], estimates: Sequence[Parts], close: float) -> bool:
    first, second = estimates[:2]
    return not _difference(names, first, second, dict.fromkeys(names, 0.0), close)[1]


def agreement(dtype: torch.dtype) -> float:
    """Return how far verified derivatives may lie from finite differences, relatively."""
    return _AGREE.get(dtype, _COARSE)


def _error(names: Sequence[str], size: float, order: str) -> ArgumentError:
    listed = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    if not math.isfinite(size):
        return ArgumentError(
            "model",
            listed or "all parameters",
            f"its {order} derivatives, or the finite differences that check them, overflow",
            "Scale the outputs or the weights down, or use double precision: model.double().",
        )
    return Disagreement(
        "model",
        listed,
        f"its {order} derivatives differ from finite differences by {size:.1%}: an operation on "
        "the way to these has a derivative that is missing or not its own",
        "Look for a custom autograd.Function (once_differentiable, a straight-through estimator), "
        "detach() or no_grad() there; omit them with params=, or use hr.GGN, which needs "
        "first derivatives only.",
    )

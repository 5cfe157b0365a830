"""Random networks with random losses, given to hyperribbon in random ways and examined."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hyperribbon as hr
from hyperribbon.operators.derivatives import linearisation
from zoo.fuzz_activations import activation
from zoo.fuzz_layers import WRONG_TWICE, Shape, random_layer
from zoo.fuzz_losses import random_goal
from zoo.fuzz_modules import Function, Steps, Words
from zoo.references import Reference
from zoo.registry import Entry, Network
from zoo.untouched import untouched

__all__ = ["Case", "Failure", "examine", "random_case"]

EXACT = 1e-8
"""Relative error of float64 products of these networks: up to twenty layers, each some roundings of
1e-16, and cancellation by at most 1e6."""

ROUGH = 1e-5
"""Relative error of central differences that have converged."""


@dataclass
class Case:
    """A seed's network, which is built afresh whenever it is asked for.

    Attributes:
        seed: Of everything.
        description: Layers and loss, for the reader of a failure.
        may_be_refused: Why hyperribbon may say no.
        stops: Whether gradients are stopped somewhere, so that differences do not check them.
        form: How the data are given.
        memory: Given as memory=.
        half: Whether only every second parameter is measured.
        arithmetic: Operations per row up to which rows of a block are multiplied together: −1 for
            one by one, inf for together.
    """

    seed: int
    description: str
    may_be_refused: str
    stops: bool
    form: str
    memory: float | None
    half: bool
    arithmetic: float
    entry: Entry

    def data(self, network: Network) -> Any:
        """Return the data in the case's form."""
        x, y = network.inputs, network.targets
        if self.form == "loader":
            return DataLoader(TensorDataset(x, y), batch_size=2)
        if self.form == "list":
            return [(x[:2], y[:2]), (x[2:], y[2:])]
        return (x, y)


@dataclass
class Failure:
    """What went wrong: "wrong", "crash", "refused" or "touched", where, and how much."""

    kind: str
    where: str
    detail: str

    def signature(self) -> str:
        """Return what failures of one cause share."""
        plain = re.sub(r"[\d.]+", "#", self.detail)
        if self.kind == "touched":
            return ", ".join(sorted(set(re.findall(r"_\w+|optimiser|random state", plain))))
        return "" if self.kind == "wrong" else plain.partition(": ")[2][:70]


def random_case(seed: int) -> Case:
    """Return the case of a seed."""
    entry = Entry(f"fuzz {seed}", lambda: _compose(Random(seed)).network)
    with torch.random.fork_rng():
        composed = _compose(Random(seed))
    rng = Random(seed + 10**9)
    return Case(
        seed,
        composed.description,
        "; ".join(composed.reasons),
        composed.stops,
        rng.choice(["pair", "pair", "loader", "list"]),
        rng.choice([None, None, 1e3, 5e4]),
        rng.random() < 0.2,
        rng.choice([-1.0, math.inf]),
        entry,
    )


@dataclass
class _Composed:
    network: Network
    description: str
    reasons: list[str]
    stops: bool


def _compose(rng: Random) -> _Composed:
    count = rng.randint(3, 5)
    shape, inputs, layers = _beginning(rng, count)
    reasons, stops = [], False
    for _ in range(rng.randint(1, 5)):
        layer = random_layer(rng, shape)
        layers.append(layer.module)
        reasons += [layer.may_be_refused] if layer.may_be_refused else []
        shape, stops = layer.shape, stops or layer.stops
    layers += _ending(rng, shape)
    model = nn.Sequential(*layers) if rng.random() < 0.5 else Steps(layers)
    with torch.no_grad():
        outputs = model.double().eval()(inputs)
    goal = random_goal(rng, tuple(outputs.shape))
    if goal.head is not None:
        model = nn.Sequential(model, goal.head)
    reasons += [goal.may_be_refused] if goal.may_be_refused else []
    named = [repr(layer).replace("\n", " ") for layer in layers]
    description = f"{type(model).__name__}: {named} -> {tuple(outputs.shape)}, {goal.loss}"
    network = Network(model, goal.loss, inputs, goal.targets)
    return _Composed(network, description, reasons, stops)


def _beginning(rng: Random, count: int) -> tuple[Shape, torch.Tensor, list[nn.Module]]:
    kind = rng.choice(["vector", "vector", "signal", "image", "sequence", "words"])
    if kind == "words":
        how = rng.choice(["plain", "padded", "indexed", "one-hot", "last padded"])
        return Shape("sequence", (3, 3)), torch.randint(5, (count, 3)), [Words(5, 3, how)]
    sizes = {"vector": (4,), "signal": (2, 5), "image": (2, 4, 4), "sequence": (3, 3)}[kind]
    return Shape(kind, sizes), torch.randn(count, *sizes).double(), []


def _ending(rng: Random, shape: Shape) -> list[nn.Module]:
    """Return layers that give a few outputs a sample."""
    if shape.kind == "sequence" and rng.random() < 0.4:
        last: list[nn.Module] = [nn.Linear(shape.sizes[1], 2)]
        return [*last, Function(lambda x: x.transpose(1, 2))] if rng.random() < 0.5 else last
    layers: list[nn.Module] = [] if shape.kind == "vector" else [nn.Flatten()]
    width = 1
    for size in shape.sizes:
        width *= size
    if rng.random() < 0.2:
        return [*layers, nn.Linear(width, 1), Function(lambda x: x.squeeze(1))]
    hidden = [nn.Linear(width, 3), activation(rng)] if rng.random() < 0.4 else []
    return [*layers, *hidden, nn.Linear(3 if hidden else width, rng.randint(2, 3))]


def examine(case: Case, given: Network | None = None) -> list[Failure]:
    """Compare hyperribbon with plain autograd and differences; return what is wrong.

    Args:
        case: The case.
        given: What hyperribbon measures instead of the case's network, to see that it is noticed.
    """
    truth, network = Reference(case.entry.build()), given or case.entry.build()
    try:
        if not bool(truth.gradient.isfinite().all()):
            return []  # at a point where the network has no derivative
    except RuntimeError:
        return _accepted(case, network)
    chosen = truth.names[::2] if case.half else truth.names
    kept = truth.coordinates(chosen)
    truth.block = truth.block[:, :2] * kept.unsqueeze(1)
    options = {"memory": case.memory, **({"params": chosen} if case.half else {})}
    may_be_refused = case.may_be_refused or not _is_smooth(truth)
    if not case.stops:
        may_be_refused = may_be_refused or not truth.gradient_is_that_of_the_loss()
    failures: list[Failure] = []
    for where, check in (("Hessian", _check_hessian), ("GGN", _check_ggn)):
        try:
            with (
                patch.object(linearisation, "_ARITHMETIC", case.arithmetic),
                untouched(network.model, network.inputs, network.targets),
            ):
                failures += check(case, truth, kept, network, options)
        except hr.ArgumentError as error:
            if not may_be_refused:
                failures.append(Failure("refused", where, str(error)))
        except AssertionError as error:
            failures.append(Failure("touched", where, str(error)))
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{line.filename.rpartition('/')[2]}:{line.lineno}"
            failures.append(Failure("crash", where, f"{type(error).__name__}: {error} ({place})"))
    return failures


def _accepted(case: Case, network: Network) -> list[Failure]:
    """Return the operators that take a network whose gradient torch itself cannot find."""
    failures = []
    for operator in (hr.Hessian, hr.GGN):
        try:
            operator(network.model, network.loss, case.data(network))
        except hr.ArgumentError:
            continue
        failures.append(Failure("accepted", operator.__name__, "torch has no gradient of it"))
    return failures


def _check_hessian(
    case: Case, truth: Reference, kept: torch.Tensor, network: Network, options: dict[str, Any]
) -> Iterator[Failure]:
    operator = hr.Hessian(network.model, network.loss, case.data(network), **options)
    yield from _compare("gradient", operator.gradient(), truth.gradient[kept], EXACT, 1.0)
    found = _curvature(truth, case)
    if found is None:
        return
    block, expected, error = found
    scale = float(block.norm()) * (1 + float(truth.gradient.norm()))
    ours = operator @ block[kept]
    yield from _compare("Hessian product", ours, expected[kept], error, scale)
    single = operator @ block[kept][:, 0]
    yield from _compare("Hessian vector", single, expected[kept][:, 0], error, scale)


def _check_ggn(
    case: Case, truth: Reference, kept: torch.Tensor, network: Network, options: dict[str, Any]
) -> Iterator[Failure]:
    operator = hr.GGN(network.model, network.loss, case.data(network), **options)
    expected = truth.ggn(truth.block)[kept]
    scale = float(truth.jacobian.square().sum()) * float(truth.loss_derivatives[1].abs().max())
    ours = operator @ truth.block[kept]
    yield from _compare("GGN product", ours, expected, EXACT, scale)
    convex = bool((torch.linalg.eigvalsh(truth.loss_derivatives[1]) > -1e-12).all())
    try:
        trace = torch.tensor(operator.trace(), dtype=torch.float64)
    except hr.ArgumentError:
        if convex:
            raise
        return
    yield from _compare("GGN trace", trace, truth.ggn_diagonal()[kept].sum(), EXACT, scale)


def _curvature(truth: Reference, case: Case) -> tuple[torch.Tensor, torch.Tensor, float] | None:
    """Return a block, H @ block and its error; None where that cannot be known, as at a kink.

    Double backward passes are the truth where differences agree with them. Where they do not,
    differences are, if those of two steps agree with each other.

    Args:
        truth: The reference.
        case: With stopped gradients there are no differences to compare with.
    """
    if case.stops:
        if WRONG_TWICE in case.may_be_refused:
            return None
        return truth.block, truth.hessian(truth.block), EXACT
    first = truth.hessian_by_differences(truth.moving)
    floor = 1e-9 * float(truth.block.norm()) * (1 + float(truth.gradient.norm()))
    try:
        exact = truth.hessian(truth.moving)
        if _near(first, exact, ROUGH, floor):
            return truth.block, truth.hessian(truth.block), EXACT
    except (RuntimeError, NotImplementedError):
        pass
    truth.step /= 10
    second = truth.hessian_by_differences(truth.moving)
    return (truth.moving, second, 10 * ROUGH) if _near(first, second, ROUGH, floor) else None


def _is_smooth(truth: Reference) -> bool:
    """Whether torch has finite first and second derivatives there, if it has any."""
    try:
        second = truth.hessian(truth.moving)
    except (RuntimeError, NotImplementedError):
        return True
    return bool(second.isfinite().all() and truth.jacobian.isfinite().all())


def _near(a: torch.Tensor, b: torch.Tensor, relative: float, absolute: float) -> bool:
    return float((a - b).norm()) <= relative * float(b.norm()) + absolute


def _compare(
    where: str, ours: torch.Tensor, theirs: torch.Tensor, error: float, scale: float
) -> list[Failure]:
    """Return a failure when two results differ by more than an error; scale is that of rounding."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return [Failure("wrong", where, f"{ours.shape} {ours.dtype} for {theirs.shape}")]
    if _near(ours, theirs, error, 1e-13 * scale if error == EXACT else 1e-8 * scale):
        return []
    off = float((ours - theirs).norm()) / max(float(theirs.norm()), 1e-300)
    return [Failure("wrong", where, f"relative error {off:.1e}")]

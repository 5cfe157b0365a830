"""`compare`: is A flatter than B, and what else differs, on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from scipy.special import stdtrit
from torch import nn

from hyperribbon.core.boundary import checked, count, instance, iterable, positive, seed_number
from hyperribbon.core.checks import ArgumentError, check_absent, check_choice
from hyperribbon.core.devices.ambient import plainly
from hyperribbon.core.devices.memory import free_memory
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.core.progress import progress_bar
from hyperribbon.inspection.comparison import behaviour, scales
from hyperribbon.inspection.comparison.differences import Difference, Shared, paired
from hyperribbon.inspection.comparison.inspections import compare_inspections, is_inspection
from hyperribbon.inspection.comparison.result import Comparison
from hyperribbon.inspection.comparison.sharpness import measure_sharpness
from hyperribbon.inspection.comparison.sides import Side, as_model
from hyperribbon.inspection.engine.clock import DeclinedError
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.operators.risk.calling import Forward

__all__ = ["compare"]

PARTS = ("sharpness", "trace", "noise", "pruning", "predictions", "weights")
_GROUPS = 8
_ADAPTIVE = "adaptive sharpness (each weight in units of itself)"
_FILTER = "filter-normalised sharpness (each filter in units of its norm)"
_SHARPNESSES = (
    ("sharpness", "sharpness (largest Hessian eigenvalue)", None),
    ("sharpness.adaptive", _ADAPTIVE, scales.magnitudes),
    ("sharpness.filter", _FILTER, scales.filter_norms),
)


@checked(
    samples=count,
    groups=count,
    k=count,
    memory=positive,
    seed=seed_number,
    console=instance(Console, "Give rich.console.Console()."),
)
@plainly
def compare(
    a: Any,
    b: Any,
    loss: Any = None,
    data: Any = None,
    *,
    model: nn.Module | None = None,
    names: tuple[str, str] = ("A", "B"),
    parts: Collection[str] = PARTS,
    samples: int = 512,
    groups: int = _GROUPS,
    k: int = 5,
    params: ParameterFilter = None,
    forward: Forward | None = None,
    mode: str | None = "eval",
    memory: float | None = None,
    seed: int = 0,
    console: Console | None = None,
) -> Comparison:
    """Compare two networks on the same samples: which is flatter, and what else differs.

    Samples are drawn once and cut into disjoint groups; every quantity is measured on each group
    for both networks, and the differences of the groups give its uncertainty, see `Difference`.
    Both are copied.

    Args:
        a: A module; or a state dict, a checkpoint file, a recorded run or its folder (the last
            weights of it), with `model`; or an inspection or the folder of a stored one, of which
            what both have is laid together, without loss and data.
        b: Likewise; it may be of another architecture.
        loss: A torch.nn loss, or any mean or sum over samples; None for the models' own.
        data: (inputs, targets), a Dataset, a DataLoader, a list of batches, or dict batches.
        model: The module that weights belong to.
        names: What to call the two.
        parts: What to compare, of "sharpness", "trace", "noise", "pruning", "predictions" and
            "weights" (which the sharpness goes with); the loss always is.
        samples: How many to draw.
        groups: Groups of samples, at least 3.
        k: Leading Hessian eigenpairs, whose directions are compared.
        params: Name pattern, list of names or predicate that chooses parameters.
        forward: forward(model, batch), for models that are called in another way.
        mode: "eval", "train", or None for each layer's own, as for `Risk`. Samples that depend on
            each other, as those of batch norm do in training mode, have no groups: refused.
        memory: Bytes that may be taken; half of what is free if None.
        seed: Seed of everything random: the same samples for every call with it.
        console: Where progress is shown; standard error by default.

    Returns:
        `.flatter` ("a", "b" or None), `.differences`, `.summary()`, `.table()`, `.report(path)`.

    Raises:
        ArgumentError: There are too few samples, or model, loss and data do not belong together.
    """
    parts = [parts] if isinstance(parts, str) else list(iterable("parts", parts))
    for part in parts:
        check_choice("parts", part, PARTS)
    if is_inspection(a) or is_inspection(b):
        others = {"loss": loss, "data": data, "model": model, "params": params}
        for name, value in {**others, "forward": forward, "memory": memory}.items():
            check_absent(name, value, "inspections are laid together as they are")
        return compare_inspections(a, b, names)
    memory = free_memory() / 2 if memory is None else memory
    options = {"params": params, "forward": forward, "mode": mode, "memory": memory / 2}
    models = as_model("a", a, model), as_model("b", b, model)
    data = list(data) if isinstance(data, Iterator) else data
    subjects = [Subject(network, loss, data, **options) for network in models]
    total = subjects[0].total
    if groups < 3:
        raise ArgumentError("groups", groups, "an uncertainty needs several", "Give 8.")
    if total is None or min(total, samples) < 2 * groups:
        given = f"{total} samples" if total is not None else "a stream"
        reason = f"{groups} groups need at least {2 * groups}"
        raise ArgumentError("data", given, reason, "Give a data set with more samples.")
    used = min(total, samples) // groups * groups
    chosen = [subject.with_samples(used, seed) for subject in subjects]
    for subject in chosen:
        _check_apart(subject, mode)
    where = f"all {total:,} samples" if used == total else f"{used:,} of {total:,} samples"
    manners = dict.fromkeys(subject.manner for subject in chosen if subject.manner)
    where = ", ".join([where, *manners])
    first, second = (Side(subject, groups, seed, where) for subject in chosen)
    with progress_bar(console or Console(stderr=True)) as progress:
        return _compare(first, second, names, parts, k, seed, progress)


def _check_apart(subject: Subject, mode: str | None) -> None:
    """Raise when the loss of samples is not the mean of the losses of groups of them."""
    if not subject.risk.must_be_whole:
        return
    remedy = "Compare inspections: hr.compare(hr.inspect(a, …), hr.inspect(b, …))."
    if not subject.risk.mixes_samples:
        reason = "it is no mean over samples, so groups of them have another loss"
        raise ArgumentError("loss", subject.loss, reason, remedy)
    reason = "the samples of a batch depend on each other, so groups of them have another loss"
    if mode == "eval":
        raise ArgumentError("model", type(subject.model).__name__, reason, remedy)
    raise ArgumentError("mode", mode, reason, f"Use mode='eval'. {remedy}")


def _compare(
    a: Side,
    b: Side,
    names: tuple[str, str],
    parts: Collection[str],
    k: int,
    seed: int,
    progress: Progress,
) -> Comparison:
    def both(measure: Callable[[Subject], float]) -> tuple[np.ndarray, np.ndarray]:
        return a.each(measure), b.each(measure)

    found = [paired("loss", "loss", *both(lambda group: group.risk.value()), a.shares)]
    shared: list[Shared] = []
    notes = []
    bases: list[Any] = []

    def sharpness() -> None:
        for key, name, scale in _SHARPNESSES:
            scaled = [side.grouped("hessian", scale and scale(side)) for side in (a, b)]
            first, second = (measure_sharpness(g, 1 if scale else k, seed) for g in scaled)
            rounding = first.rounding + second.rounding
            found.append(paired(key, name, first.groups, second.groups, a.shares, rounding))
            bases.extend(() if scale else (first.basis, second.basis))

    def trace() -> None:
        traces = both(lambda group: group.ggn.trace())
        found.append(paired("trace", "trace of the Gauss-Newton matrix", *traces, a.shares))
        found.append(_relative(a, b, seed))

    def noise() -> None:
        traces = both(lambda group: group.covariance.trace())
        found.append(paired("noise", "variance of single-sample gradients", *traces, a.shares))

    def pruning() -> None:
        found.extend(behaviour.pruned_losses(a, b))

    def predictions() -> None:
        entries, reason = behaviour.predictions(a, b)
        shared.extend(entries)
        notes.extend([f"Predictions were not compared: {reason}."] if reason else [])

    def weights() -> None:
        entries, reason = behaviour.weights(a, b, bases)
        shared.extend(entries)
        notes.extend([f"Weights and directions were not compared: {reason}."] if reason else [])

    task = progress.add_task("", total=len(parts))
    for part in (sharpness, trace, noise, pruning, predictions, weights):
        if part.__name__ in parts:
            progress.update(task, description=part.__name__)
            try:
                part()
            except DeclinedError as error:
                name = part.__name__.capitalize()
                notes.append(f"{name} was not compared: {error.reason}.")
            progress.advance(task)
    is_same = behaviour.same_function(a, b)
    return Comparison(names, tuple(found), tuple(shared), a.where, is_same, tuple(notes))


def _relative(a: Side, b: Side, seed: int) -> Difference:
    first, second = (scales.relative_flatness(side, seed) for side in (a, b))
    steps = a.shares @ (first - second)
    probed = float(stdtrit(scales.PROBES - 1, 0.975) * steps.std(ddof=1) / scales.PROBES**0.5)
    name = "relative flatness (trace, each layer moved in proportion to itself)"
    return paired("trace.relative", name, first.mean(1), second.mean(1), a.shares, probed)

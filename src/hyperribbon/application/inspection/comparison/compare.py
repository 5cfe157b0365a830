"""`compare`: is A flatter than B, and what else differs, on the same samples."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import hypot, inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from scipy.special import stdtrit
from torch import nn

from hyperribbon.application.inspection.comparison.networks import (
    PROBES,
    Side,
    as_model,
    compare_predictions,
    compare_weights,
    filter_norms,
    magnitudes,
    measure_sharpness,
    pruned_losses,
    relative_flatness,
    same_function,
)
from hyperribbon.application.inspection.comparison.result import (
    Comparison,
    Difference,
    Shared,
    paired,
)
from hyperribbon.application.inspection.engine.clock import DeclinedError
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.result import Inspection
from hyperribbon.application.inspection.sampling import groups_for
from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_absent, check_choice, validate
from hyperribbon.core.devices.memory import free_memory
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.core.progress import progress_bar
from hyperribbon.core.store import Kept, finish_save
from hyperribbon.operators.risk.forward import Forward

_FILE = "inspection.json"
_DERIVED = ("bound", "gradient", "rank50")
"""Statistics of which a difference says nothing by itself."""
_BEFORE = {"mode": "eval"}
"""What inspections that do not say it were measured with."""


@dataclass(frozen=True)
class _Stored:
    """The statistics of an inspection that are compared.

    Attributes:
        statistics: Numbers by name and samples, "sharpness@64": key, name, value, error, certainty.
        config: The request.
    """

    statistics: Mapping[str, Mapping[str, Any]]
    config: Mapping[str, Any]


def is_inspection(given: Any) -> bool:
    """Whether a side of a comparison is an inspection, or the folder of a stored one."""
    if isinstance(given, Inspection):
        return True
    if not isinstance(given, str | Path):
        return False
    finish_save(Path(given))
    return (Path(given) / _FILE).is_file()


def compare_inspections(a: Any, b: Any, names: tuple[str, str]) -> Comparison:
    """Compare two inspections: return the differences of what they have in common.

    Each statistic is taken on the most samples that both have it of, which are the same samples
    where data and seed are. The two standard errors over samples are added in squares, as if the
    samples were different ones: too wide where a sample does the same to both. Groups of samples
    and the adaptive sharpness are not known of inspections, so neither is called flatter.

    Raises:
        ArgumentError: One of them is not an Inspection, or they have no statistic in common.
    """
    first, second = _read_inspection("a", a), _read_inspection("b", b)
    for key in ("seed", "loss", "mode"):
        ours, theirs = (side.config.get(key, _BEFORE.get(key)) for side in (first, second))
        if ours != theirs:
            reason = f"the other was inspected with {key}={ours}"
            remedy = f"Inspect both with the same {key}, or compare the models themselves."
            raise ArgumentError("b", f"{key}={theirs}", reason, remedy)
    common: dict[str, int] = {}
    for name in first.statistics.keys() & second.statistics.keys():
        key, _, samples = name.partition("@")
        if key not in _DERIVED:
            common[key] = max(common.get(key, 0), int(samples))
    if not common:
        reason = "the two inspections share no statistic on the same number of samples"
        remedy = "Inspect both on the same data, with enough time."
        raise ArgumentError("b", sorted(second.statistics)[:5], reason, remedy)
    order = [name.partition("@")[0] for name in first.statistics]
    found = tuple(
        _difference(first.statistics[f"{key}@{n}"], second.statistics[f"{key}@{n}"], n)
        for key, n in sorted(common.items(), key=lambda entry: order.index(entry[0]))
    )
    most = max(common.values())
    notes = [_finer(side, name, common) for side, name in zip((first, second), names, strict=True)]
    totals = [side.config.get("total") for side in (first, second)]
    if None not in totals and totals[0] != totals[1]:
        each = " and ".join(f"{total:,}" for total in totals)
        notes.append(f"The data have {each} samples, so the inspections used different samples.")
    note = (
        "These are inspections: both are taken to be of the same data, errors are added as if "
        "samples were not the same, and no scale-invariant sharpness is known. "
        "hr.compare(model_a, model_b, loss, data) measures all that."
    )
    notes = [note, *filter(None, notes)]
    return Comparison(names, found, (), f"up to {most:,} samples", False, tuple(notes))


def _finer(side: _Stored, name: str, common: Mapping[str, int]) -> str:
    """Say which statistics one of the compared networks has on more samples than both, or ""."""
    finer: dict[str, int] = {}
    for place in side.statistics:
        key, _, samples = place.partition("@")
        if int(samples) > common.get(key, int(samples)):
            finer[key] = max(finer.get(key, 0), int(samples))
    if not finer:
        return ""
    more = ", ".join(f"{key} of {samples:,}" for key, samples in finer.items())
    return f"{name} alone has numbers of more samples, which are not compared: {more}."


def _read_inspection(argument: str, given: Any) -> _Stored:
    if isinstance(given, Inspection):
        return _Stored({name: vars(q) for name, q in given.statistics.items()}, given.config)
    if not is_inspection(given):
        shown = given if isinstance(given, str | Path) else type(given).__name__
        reason = "expected an Inspection, as for the other argument"
        raise ArgumentError(argument, shown, reason, "Give two inspections, or two models.")
    folder = Path(given)
    try:
        found = json.loads((folder / _FILE).read_text())["statistics"]
        config = json.loads((folder / "run.json").read_text())["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "Store the inspection again."
        raise ArgumentError(argument, str(folder), f"it is damaged ({error})", remedy) from None
    return _Stored(found, config)


def _difference(a: Mapping[str, Any], b: Mapping[str, Any], samples: int) -> Difference:
    """Compare one statistic of two inspections; without errors over samples there is no error."""
    known = all("standard error over samples" in entry["certainty"] for entry in (a, b))
    errors = [nan if entry["error"] is None else entry["error"] for entry in (a, b)]
    first, second = (nan if entry["value"] is None else entry["value"] for entry in (a, b))
    name = a["name"][0].lower() + a["name"][1:]
    stderr, freedom = hypot(*errors) if known else nan, groups_for(samples) - 1
    name = f"{name}, {samples:,} samples"
    return Difference(a["key"], name, first, second, (), 0.0, stderr, freedom)


PARTS = ("sharpness", "trace", "noise", "pruning", "predictions", "weights")
_GROUPS = 8
_ADAPTIVE = "adaptive sharpness (each weight in units of itself)"
_FILTER = "filter-normalised sharpness (each filter in units of its norm)"
_SHARPNESSES = (
    ("sharpness", "sharpness (largest Hessian eigenvalue)", None),
    ("sharpness.adaptive", _ADAPTIVE, magnitudes),
    ("sharpness.filter", _FILTER, filter_norms),
)


@validate(
    samples=checks.count,
    groups=checks.count,
    k=checks.count,
    memory=checks.positive,
    budget=checks.positive,
    folder=checks.path,
    console=checks.instance(Console, "Give rich.console.Console()."),
)
@plain_arithmetic()
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
    budget: float | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
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
        budget: Seconds after which no further measurement begins; the loss and the sharpness are
            always measured, and `.notes` lists what was skipped. None for no limit.
        seed: Seed of everything random: the same samples for every call with it.
        folder: Where each measurement is kept once it is finished: the same call continues there
            after it was killed, and reads everything from there once all are finished. Calls with
            other weights, samples or settings do not share measurements.
        console: Where progress is shown; standard error by default.

    Returns:
        `.flatter` ("a", "b" or None), `.differences`, `.summary()`, `.table()`, `.report(path)`.

    Raises:
        ArgumentError: There are too few samples, or model, loss and data do not belong together.
    """
    began = time.monotonic()
    parts = [parts] if isinstance(parts, str) else list(checks.iterable("parts", parts))
    for part in parts:
        check_choice("parts", part, PARTS)
    if is_inspection(a) or is_inspection(b):
        others = {"loss": loss, "data": data, "model": model, "params": params}
        others |= {"forward": forward, "memory": memory, "folder": folder}
        for name, value in others.items():
            check_absent(name, value, "inspections are laid together as they are")
        return compare_inspections(a, b, names)
    memory = free_memory() / 2 if memory is None else memory
    options = {"params": params, "forward": forward, "mode": mode, "memory": memory / 2}
    models = as_model("a", a, model), as_model("b", b, model)
    data = list(data) if isinstance(data, Iterator) else data
    subjects = [Subject(network, loss, data, **options) for network in models]
    total = subjects[0].total
    if groups < 3:
        raise ArgumentError("groups", groups, "a standard error needs more groups", "Give 8.")
    if total is None or min(total, samples) < 2 * groups:
        given = f"{total} samples" if total is not None else "a stream"
        reason = f"{groups} groups need at least {2 * groups}"
        raise ArgumentError("data", given, reason, "Give a data set with more samples.")
    used = min(total, samples) // groups * groups
    for subject in subjects:
        _check_apart(subject, mode)
    chosen = [subject.with_samples(used, seed) for subject in subjects]
    where = f"all {total:,} samples" if used == total else f"{used:,} of {total:,} samples"
    manners = dict.fromkeys(subject.manner for subject in chosen if subject.manner)
    where = ", ".join([where, *manners])
    first, second = (Side(subject, groups, seed, where) for subject in chosen)
    with progress_bar(console or Console(stderr=True)) as progress:
        deadline = inf if budget is None else began + budget
        return _compare(first, second, names, parts, k, seed, progress, deadline, folder)


def _check_apart(subject: Subject, mode: str | None) -> None:
    """Raise when networks cannot be compared by groups: the loss is not a mean over them."""
    if not subject.risk.must_be_whole:
        return
    remedy = "Compare inspections: hr.compare(hr.inspect(a, …), hr.inspect(b, …))."
    if not subject.risk.mixes_samples:
        reason = "it is not a mean over samples, so groups of them have another loss"
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
    deadline: float,
    folder: str | Path | None,
) -> Comparison:
    def both(measure: Callable[[Subject], float]) -> tuple[np.ndarray, np.ndarray]:
        return a.each(measure), b.each(measure)

    losses = both(lambda group: group.risk.value())
    result = _Measured([paired("loss", "loss", *losses, a.shares)])
    kept = Kept(folder, a.where, b.where, k, seed, losses, *_networks(a, b))
    bases: list[torch.Tensor] = []
    skipped: list[str] = []
    began = time.monotonic()

    def is_late(name: str) -> bool:
        late = time.monotonic() > deadline
        skipped.extend([name] if late else [])
        return late

    def sharpness(key: str, name: str, scale: Any) -> _Measured:
        scaled = [side.hessians(scale and scale(side)) for side in (a, b)]
        first, second = (measure_sharpness(g, 1 if scale else k, seed) for g in scaled)
        rounding = first.rounding + second.rounding
        found = paired(key, name, first.groups, second.groups, a.shares, rounding)
        return _Measured([found], bases=[] if scale else [first.basis, second.basis])

    def trace() -> _Measured:
        traces = both(lambda group: group.ggn.trace())
        found = paired("trace", "trace of the Gauss-Newton matrix", *traces, a.shares)
        return _Measured([found, _relative(a, b, seed)])

    def noise() -> _Measured:
        traces = both(lambda group: group.covariance.trace())
        name = "variance of single-sample gradients"
        return _Measured([paired("noise", name, *traces, a.shares)])

    def pruning() -> _Measured:
        return _Measured(list(pruned_losses(a, b)))

    def predictions() -> _Measured:
        entries, reason = compare_predictions(a, b)
        why = [f"Predictions were not compared: {reason}."] if reason else []
        return _Measured(shared=list(entries), notes=why)

    def weights() -> _Measured:
        entries, reason = compare_weights(a, b, bases)
        why = [f"Weights and directions were not compared: {reason}."] if reason else []
        return _Measured(shared=list(entries), notes=why)

    units: list[tuple[str, str, str, Callable[[], _Measured]]] = [
        ("sharpness", key, name.partition(" (")[0], partial(sharpness, key, name, scale))
        for key, name, scale in _SHARPNESSES
    ]
    for unit in (trace, noise, pruning, predictions, weights):
        units.append((unit.__name__, unit.__name__, unit.__name__, unit))
    task = progress.add_task("", total=len(parts))
    for part, key, label, measure in units:
        if part not in parts or (key != "sharpness" and is_late(label)):
            continue
        progress.update(task, description=label)
        try:
            measured = _measured(kept(key, measure), a.vector.device)
        except DeclinedError as error:
            why = f"{label[0].upper()}{label[1:]} was not compared: {error.reason}."
            measured = _Measured(notes=[why])
        bases += measured.bases
        result.add(measured)
        progress.advance(task, 0 if key.startswith("sharpness.") else 1)
    if skipped:
        needed = 2 * (time.monotonic() - began)
        remedy = f"budget={needed:.0f} or more would include them"
        result.notes.append(f"Skipped for time: {', '.join(skipped)}; {remedy}.")
    found, shared, notes = tuple(result.found), tuple(result.shared), tuple(result.notes)
    return Comparison(names, found, shared, a.where, same_function(a, b), notes)


@dataclass
class _Measured:
    """What a measurement of both networks gives."""

    found: list[Difference] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bases: list[torch.Tensor] = field(default_factory=list)

    def add(self, other: _Measured) -> None:
        self.found += other.found
        self.shared += other.shared
        self.notes += other.notes


def _measured(found: Any, device: torch.device) -> _Measured:
    """Return an inspection to compare, which may have to be read from a folder."""
    if isinstance(found, _Measured):
        return found
    return _Measured(
        [Difference(**{**entry, "groups": tuple(entry["groups"])}) for entry in found["found"]],
        [Shared(**entry) for entry in found["shared"]],
        found["notes"],
        [torch.from_numpy(basis).to(device) for basis in found["bases"]],
    )


def _networks(a: Side, b: Side) -> list[Any]:
    """Return for a comparison what tells two networks and their groups of samples from others."""
    spaces = [side.groups[0].risk.space for side in (a, b)]
    own = [[space.names, space.shapes] for space in spaces]
    return [*own, len(a.groups), *([side.vector, side.shares] for side in (a, b))]


def _relative(a: Side, b: Side, seed: int) -> Difference:
    first, second = (relative_flatness(side, seed) for side in (a, b))
    steps = a.shares @ (first - second)
    probed = float(stdtrit(PROBES - 1, 0.975) * steps.std(ddof=1) / PROBES**0.5)
    name = "relative flatness (trace, each layer moved in proportion to itself)"
    return paired("trace.relative", name, first.mean(1), second.mean(1), a.shares, probed)

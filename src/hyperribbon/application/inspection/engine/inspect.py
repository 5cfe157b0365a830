"""`inspect`: plan, measure within a budget, keep what is done, read it in plain words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from hyperribbon.application.inspection import parts
from hyperribbon.application.inspection.answers import kind_of
from hyperribbon.application.inspection.engine.clock import Budget, Clock
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement, Scheduler
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.loading import open_trajectory
from hyperribbon.application.inspection.memory import Heap
from hyperribbon.application.inspection.parts.curvature import headline_parts, refine_noise_part
from hyperribbon.application.inspection.parts.layers import traces_part
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.application.inspection.result import Inspection, InspectionPlan
from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_positive, check_positive_int, validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.devices.processes import Processes
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.core.progress import progress_bar
from hyperribbon.core.states import load_state
from hyperribbon.core.store import describe_environment
from hyperribbon.operators.risk.forward import Forward
from hyperribbon.operators.risk.torch_losses import CrossEntropyLoss, NLLLoss
from hyperribbon.prediction.update_rules import UnknownLimitError, UpdateRule, update_rule
from hyperribbon.recording.trajectory import Trajectory


def find_measurements() -> tuple[Measurement, ...]:
    """Find what `inspect` measures: the `MEASUREMENTS` of every file of `inspection/parts`."""
    modules = [import_module(f"{parts.__name__}.{m.name}") for m in iter_modules(parts.__path__)]
    found = [entry for module in modules for entry in getattr(module, "MEASUREMENTS", ())]
    return tuple(sorted(found, key=lambda entry: entry.order))


MEASUREMENTS = find_measurements()


@validate(
    batch_size=checks.count,
    params=checks.names,
    console=checks.instance(Console, "Give rich.console.Console()."),
)
@plain_arithmetic()
def inspect(
    model: nn.Module,
    loss: Any = None,
    data: Any = None,
    initial: nn.Module | Mapping[str, torch.Tensor] | str | Path | None = None,
    trajectory: Trajectory | str | Path | None = None,
    k: int = 50,
    budget: Budget | float = 60.0,
    *,
    optimizer: Any = None,
    batch_size: int | None = None,
    tolerance: float = 0.01,
    params: ParameterFilter = None,
    forward: Forward | None = None,
    mode: str | None = "eval",
    seed: int = 0,
    console: Console | None = None,
    process_group: Any = None,
) -> Inspection:
    """Measure the geometry of a network: curvature, noise, landscape, sub-networks, trajectory.

    It looks at 8 samples first, which gives the loss, the sharpness, the trace and the layers, then
    at 64, 512, 4,096 and all of them while time is left; the samples are the same in every call
    with that seed and data, and so are the numbers: a slow machine has fewer of them, not others.
    Then it decides what else fits in the budget, says so, and measures the most telling things
    first. When the time is up, the step under way ends before its next product and what is done is
    kept; so it is after Ctrl-C. What fails is a line of the result. The model is copied; your own
    is not touched.

    Args:
        model: Any module.
        loss: A torch.nn loss, or any function (outputs, targets) that is a mean or a sum over
            samples; it gets the outputs as the model returns them. None for the loss that the
            model's output has, as those of transformers; where it is not recognised as a function
            of the logits, Gauss-Newton, Fisher and noise are left out.
        data: (inputs, targets), a Dataset, a DataLoader, a list of batches, or dict batches, with
            "labels" as transformers' models take them.
        initial: The state training started from, for critical layers: a state dict, a module, or a
            file.
        trajectory: The recorded training, for the manifold it moved on: a Trajectory or its folder.
        k: Leading eigenpairs wanted.
        budget: Seconds, or a `Budget` of seconds and memory.
        optimizer: The optimiser after training, or a learning rate, to compare the sharpness with
            its stability limit.
        batch_size: Samples in a mini-batch of the training; taken from a DataLoader.
        tolerance: Drop of the accuracy that pruning may cost, see `hr.prunable`.
        params: Name pattern, list of names or predicate that chooses parameters.
        forward: forward(model, batch) -> outputs or (outputs, targets), for models that are called
            in another way.
        mode: "eval" for evaluation mode and "train" for training mode, whatever mode the model is
            in; None to keep each layer's own. In training mode batch norm has the statistics of
            fixed batches of `batch_size` samples, or of all that are drawn; dropout is refused. The
            stability limit is always that of training mode: with batch norm it is measured there,
            dropout off.
        seed: Seed of everything random.
        console: Where plan and progress are shown; standard error by default. Give
            `Console(quiet=True)` for silence.
        process_group: Processes that measure together: a torch.distributed group, or True for all.
            Every rank gives the same model and all the data, of which it takes its share, and gets
            the same answer; only rank 0 shows anything.

    Returns:
        What was found: `.summary()`, `.table()`, `.report(path)`, `.save(folder)`.

    Raises:
        ArgumentError: The model, the loss and the data do not belong together.
    """
    began = time.monotonic()
    processes = Processes.of(process_group)
    console = (console or Console(stderr=True)) if processes.rank == 0 else Console(quiet=True)
    budget = Budget.of(budget)
    # Ranks may find different memory free.
    memory = processes.choose(budget.memory)
    budget = Budget(budget.seconds, memory)
    options = {"params": params, "forward": forward, "mode": mode, "batch_size": batch_size}
    subject = Subject(model, loss, data, memory=memory, processes=processes, **options)
    rule, unknown = _rule(optimizer, model)
    notebook = Notebook(
        k=check_positive_int("k", k),
        seed=seed,
        initial=_initial_state(model, initial),
        tolerance=check_positive("tolerance", tolerance),
        trajectory=None if trajectory is None else open_trajectory(trajectory),
        rule=rule,
        unknown_limit=unknown,
        batch_size=subject.source.batch_size,
        clock=Clock(began + budget.seconds, processes, Heap(memory)),
        memory=memory,
    )
    subject.clock, title = notebook.clock, type(model).__name__
    scheduler = Scheduler(subject, notebook, MEASUREMENTS, budget)
    begin = f"Inspecting {escape(title)} for at most {budget.seconds:.0f} s: few samples first."
    console.print(begin, highlight=False)
    scheduler.open()
    with progress_bar(console) as progress:
        scheduler.run(progress, coarse=True)
    plan = scheduler.plan()
    _show_plan(console, plan, title)
    with progress_bar(console) as progress:
        scheduler.run(progress)
    skipped = scheduler.skipped()
    found = [*headline_parts(notebook), *filter(None, [traces_part(notebook)])]
    noise = refine_noise_part(notebook, notebook.parts.get("noise"))
    if noise is not None:
        notebook.parts["noise"] = noise
    modes = {level.samples: level.subject.manner for level in notebook.levels}
    found = [part.in_modes(modes) for part in (*found, *notebook.parts.values())]
    config = {"model": title, "loss": _name(loss), "k": k, "seed": seed, "samples": plan.samples}
    config["parameters"] = sum(p.numel() for p in subject.model.parameters())
    config |= {"seconds": budget.seconds, "memory": memory, "total": subject.total}
    config["optimizer"] = "" if optimizer is None else type(optimizer).__name__
    if rule is not None:
        config["optimizer"] = rule.text
    config |= {"batch_size": notebook.batch_size, "kind": kind_of(subject.model), "mode": mode}
    config["is_normalised"] = subject.is_normalised
    config["is_like_reference"] = _is_like_reference(notebook.finest("loss"))
    return Inspection(
        title,
        plan,
        {part.name: part for part in found},
        tuple(scheduler.outcomes.values()),
        _where(notebook.levels[-1].subject, found, plan.samples),
        describe_environment(seed),
        config,
        statistics=notebook.statistics(),
        missing=notebook.missing,
        skipped=skipped,
    )


def _is_like_reference(level: Level | None) -> bool:
    """Whether `inspect` measures as the reference networks were: all weights, cross-entropy."""
    if level is None:
        return False
    subject = level.subject
    is_whole = subject.dimension == sum(p.numel() for p in subject.model.parameters())
    is_evaluated = subject.mode == "eval" or not subject.is_normalised
    criterion = subject.risk.criterion
    is_mean = isinstance(criterion, CrossEntropyLoss | NLLLoss) and criterion.reduction == "mean"
    return is_whole and is_evaluated and is_mean


def _where(subject: Subject, parts: list[Part], samples: int) -> str:
    """Return which samples the numbers of `inspect` are of; each names its own if they differ."""
    counts = {quantity.samples for part in parts for quantity in part.quantities} - {0}
    few, most = min(counts, default=samples), max(counts, default=samples)
    return subject.where(most) + (" (fewer where stated)" if few < most else "")


def _show_plan(console: Console, plan: InspectionPlan, title: str) -> None:
    if console.quiet:
        return
    table = Table("step", "samples", "about", box=None, pad_edge=False, header_style="dim")
    table.title = f"Inspecting {title} on {plan.samples:,} samples, about {plan.seconds:.0f} s"
    table.title_justify = "left"
    for step in plan.steps:
        about = "–" if step.reason else f"{step.samples:,}", step.reason or f"{step.seconds:.1f} s"
        table.add_row(step.title, *about, style="dim" if step.reason else "")
    console.print(table)


def _rule(optimizer: Any, model: nn.Module) -> tuple[UpdateRule | None, str]:
    """Return for `inspect` the optimiser's update rule, or why its stability limit is not known."""
    if optimizer is None:
        return None, "pass optimizer= (or a learning rate) to have it"
    try:
        return update_rule(optimizer, model), ""
    except UnknownLimitError as error:
        return None, f"{type(optimizer).__name__}: {error.reason}"


def _initial_state(
    model: nn.Module, initial: nn.Module | Mapping[str, torch.Tensor] | str | Path | None
) -> Mapping[str, torch.Tensor] | None:
    if initial is None:
        return None
    if isinstance(initial, nn.Module):
        initial = {name: tensor.detach().clone() for name, tensor in initial.state_dict().items()}
    if isinstance(initial, Mapping) and not all(
        isinstance(value, torch.Tensor) for value in initial.values()
    ):
        reason = "it is not a state dict of named tensors"
        remedy = "Give model.state_dict() from before the training."
        raise ArgumentError("initial", sorted(map(str, initial))[:5], reason, remedy)
    state = (
        initial
        if isinstance(initial, Mapping)
        else load_state(Path(checks.path("initial", initial)))
    )
    if not set(state) & set(model.state_dict()):
        reason = "the model has no weight of these names"
        remedy = "Give model.state_dict() from before the training."
        raise ArgumentError("initial", sorted(state)[:5], reason, remedy)
    return state


def _name(thing: Any) -> str:
    return "the model's own" if thing is None else getattr(thing, "__name__", type(thing).__name__)

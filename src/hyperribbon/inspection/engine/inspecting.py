"""`inspect`: plan, measure within a budget, keep what is done, read it in plain words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from hyperribbon.core.boundary import checked, count, instance, names, path
from hyperribbon.core.checks import ArgumentError, check_positive_int
from hyperribbon.core.devices.ambient import plainly
from hyperribbon.core.devices.processes import Processes, ProcessGroupError
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.core.progress import progress_bar
from hyperribbon.core.states import load_state
from hyperribbon.core.store import describe_environment
from hyperribbon.inspection.answers import kind_of
from hyperribbon.inspection.engine.clock import Clock, OutOfTimeError, why_not
from hyperribbon.inspection.engine.findings import Inspection, Outcome
from hyperribbon.inspection.engine.notebook import Notebook
from hyperribbon.inspection.engine.planning import Budget, InspectionPlan, PlannedStep, make_plan
from hyperribbon.inspection.engine.quantities import Part
from hyperribbon.inspection.engine.rounds import Rounds
from hyperribbon.inspection.engine.steps import STEPS
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.inspection.memory import Heap
from hyperribbon.inspection.parts.curvature import found_parts, noise_found
from hyperribbon.inspection.parts.layers import traces_part
from hyperribbon.inspection.update_rules import update_rule
from hyperribbon.operators.risk.calling import Forward
from hyperribbon.recording.trajectory import Trajectory

__all__ = ["inspect"]

_FIRST = 1.0
"""Share of the budget that the first look may take; of a large network it is all there is."""
_ROUNDS = 0.5
"""Share of the budget after which no look at more samples begins before the other steps."""
_CLOSER = 0.75
"""Share of it after which none begins before the steps that tell least for their cost."""
_USABLE = 0.95
"""Share of the budget after which nothing begins: estimates of time are rough."""
_HARD = 4.0
"""Factor by which a step may exceed its expected time before it is given up."""
_GENEROUS = 0.25
"""Share of the time left that every step may take, however little was expected of it."""
_PATIENCE = 1.5
"""Factor by which a step may exceed its expected time before it settles for what it has."""


@checked(batch_size=count, params=names, console=instance(Console, "Give rich.console.Console()."))
@plainly
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
        initial: The state training started from, for sub-networks: a state dict, a module, or a
            file.
        trajectory: The recorded training, for the manifold it moved on: a Trajectory or its folder.
        k: Leading eigenpairs wanted.
        budget: Seconds, or a `Budget` of seconds and memory.
        optimizer: The optimiser after training, or a learning rate, to compare the sharpness with
            its stability limit.
        batch_size: Samples in a mini-batch of the training; taken from a DataLoader.
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
    budget = Budget(budget.seconds, processes.choose(budget.memory))
    heap = Heap(budget.bytes)
    options = {"params": params, "forward": forward, "mode": mode, "batch_size": batch_size}
    subject = Subject(model, loss, data, memory=budget.bytes, processes=processes, **options)
    notebook = Notebook(
        k=check_positive_int("k", k),
        seed=seed,
        initial=_initial_state(model, initial),
        trajectory=_open_trajectory(trajectory),
        rule=None if optimizer is None else update_rule(optimizer, model),
        batch_size=subject.source.batch_size,
        memory=budget.bytes,
    )
    subject.clock = notebook.clock = Clock(began + budget.seconds, processes, heap)
    title = type(model).__name__
    rounds, interrupted = Rounds(subject, notebook), False
    begin = f"Inspecting {escape(title)} for at most {budget.seconds:.0f} s: few samples first."
    console.print(begin, highlight=False)
    rounds.first(_FIRST * budget.seconds)
    try:
        rounds.go_on(began + _ROUNDS * budget.seconds)
    except KeyboardInterrupt:
        interrupted = True
    _take_over(rounds, notebook)
    outcomes: list[Outcome] = []
    if rounds.refusal:
        plan = InspectionPlan((), rounds.looks[0].samples, 0.0, budget)
    else:
        left = processes.choose(0.0 if interrupted else max(notebook.clock.left, 0.0))
        plan, look = make_plan(STEPS, rounds.looks, notebook, budget, left)
        _show_plan(console, plan, title)
        deadline = began + _USABLE * budget.seconds

        def look_closer() -> None:
            rounds.go_on(began + _CLOSER * budget.seconds)
            rounds.make_room(look)

        rounds.make_room(look)
        ways = console, look_closer, interrupted
        outcomes = _run(plan, rounds, notebook, deadline, *ways)
        interrupted = interrupted or any(o.status == "interrupted" for o in outcomes)
    if not interrupted:
        with suppress(KeyboardInterrupt):
            rounds.go_on(began + _USABLE * budget.seconds)
    parts = [*found_parts(rounds), *filter(None, [traces_part(rounds)])]
    noise = noise_found(rounds, notebook.parts.get("noise"), plan.samples)
    if noise is not None:
        notebook.parts["noise"] = noise
    parts += notebook.parts.values()
    modes = {look.samples: look.subject.manner for look in rounds.looks}
    parts = [part.named(modes) for part in parts]
    config = {"model": title, "loss": _name(loss), "k": k, "seed": seed, "samples": plan.samples}
    config["parameters"] = sum(p.numel() for p in subject.model.parameters())
    config |= {"seconds": budget.seconds, "memory": budget.memory, "total": subject.total}
    config["optimizer"] = "" if notebook.rule is None else notebook.rule.text
    config |= {"batch_size": notebook.batch_size, "kind": kind_of(subject.model), "mode": mode}
    config["is_normalised"] = subject.is_normalised
    return Inspection(
        title,
        plan,
        {part.name: part for part in parts},
        (*rounds.outcomes.values(), *outcomes),
        _where(rounds.looks[-1].subject, parts, plan.samples),
        describe_environment(seed),
        config,
        statistics=rounds.statistics(),
        missing=_missing(rounds),
    )


def _take_over(rounds: Rounds, notebook: Notebook) -> None:
    """Give the steps what the rounds have found, from the most samples."""
    for kind in ("top", "hessian"):  # ten directions where they are known, else one
        look = rounds.finest(kind)
        if look is not None:
            notebook.keep("hessian", look.spectra[kind])
    for look in rounds.looks:
        notebook.layer_traces = look.layer_traces or notebook.layer_traces
        notebook.sharpness = look.statistics.get("sharpness", notebook.sharpness)
        if look.gauss_newton is not None:
            notebook.matrices["gauss_newton"] = look.gauss_newton
            notebook.keep("gauss_newton", look.gauss_newton.spectrum)


def _where(subject: Subject, parts: list[Part], samples: int) -> str:
    """Return which samples the numbers are of; each says its own, where they differ."""
    counts = {quantity.samples for part in parts for quantity in part.quantities} - {0}
    few, most = min(counts, default=samples), max(counts, default=samples)
    return subject.where(most) if few == most else f"{few:,} to {subject.where(most)}"


def _missing(rounds: Rounds) -> dict[str, float]:
    """Return the seconds that tasks need which did not fit, by name and samples."""
    return {
        f"{task}@{look.samples}": seconds
        for look in rounds.with_absent()
        for task, seconds in look.missing.items()
    }


def _run(
    plan: InspectionPlan,
    rounds: Rounds,
    notebook: Notebook,
    deadline: float,
    console: Console,
    look_closer: Callable[[], None],
    interrupted: bool,
) -> list[Outcome]:
    """Run the steps that fit, then those that did not if time is left after all.

    Before the first of the steps that tell least for their cost, looks at more samples go on.
    """
    waiting = [planned for planned in plan.steps if not planned.reason]
    postponed = [planned for planned in plan.steps if planned.is_postponed]
    never = [planned for planned in plan.steps if planned.reason and not planned.is_postponed]
    outcomes = [Outcome(p.step.title, "left out", 0.0, p.reason) for p in never]
    if interrupted:
        return outcomes + [_interrupted(planned) for planned in (*waiting, *postponed)]
    processes = rounds.subject.processes
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(waiting) + len(postponed))
        is_second_round = looked = False
        while waiting or (postponed and not is_second_round):
            if not waiting:
                waiting, postponed, is_second_round = postponed, [], True
                waiting.sort(key=plan.steps.index)
            planned = waiting[0]
            title = planned.step.title
            progress.update(task, description=title)
            products = processes.choose(_allowance(waiting, deadline))
            if products < planned.step.least:
                postponed.append(planned)
                waiting.pop(0)
                continue
            began = time.monotonic()
            expected = products * planned.each
            room = max(_HARD * expected, _GENEROUS * (deadline - began))
            try:
                if planned.step.is_late and not looked:
                    looked = True
                    look_closer()
                subject = _subject_for(planned, rounds)
                with notebook.clock.at_most(room):
                    notebook.clock.give(_PATIENCE * expected)
                    part = planned.step.run(subject, notebook, products)
            except KeyboardInterrupt:
                outcomes += [_interrupted(planned) for planned in waiting + postponed]
                postponed = []
                break
            except OutOfTimeError as error:
                took = time.monotonic() - began
                outcomes.append(Outcome(title, "stopped", took, str(error)))
            except ProcessGroupError:
                raise
            except Exception as error:
                took, reason = time.monotonic() - began, why_not(error)
                status = "left out" if reason else "failed"
                outcomes.append(Outcome(title, status, took, reason or str(error) or repr(error)))
            else:
                notebook.parts[part.name] = part.on(planned.samples, plan.samples)
                took = time.monotonic() - began
                outcomes.append(Outcome(title, "done", took, " ".join(part.shortened)))
            waiting.pop(0)
            progress.advance(task)
    used_up = "time budget exceeded"
    outcomes += [Outcome(p.step.title, "left out", 0.0, p.reason or used_up) for p in postponed]
    order = [planned.step.title for planned in plan.steps]
    return sorted(outcomes, key=lambda outcome: order.index(outcome.step))


def _interrupted(planned: PlannedStep) -> Outcome:
    return Outcome(planned.step.title, "interrupted", 0.0)


def _subject_for(planned: PlannedStep, rounds: Rounds) -> Subject:
    """Return the model on the samples of a step, with the memory of all others given back."""
    look = next(entry for entry in rounds.looks if entry.samples == planned.samples)
    rounds.make_room(look)
    return look.subject


def _allowance(waiting: list[PlannedStep], deadline: float) -> int:
    """Return the products the first waiting step may spend, in fair proportion to the others."""
    left = max(deadline - time.monotonic(), 0.0)
    first = waiting[0]
    if first.step.is_fixed:
        return first.products if left > first.seconds / 2 else 0
    others = sum(entry.seconds for entry in waiting if entry.step.is_fixed)
    flexible = sum(entry.seconds for entry in waiting if not entry.step.is_fixed)
    share = round(first.products * max(left - others, 0.0) / flexible)
    is_worth = left > first.step.least * first.each
    return min(first.wish, max(share, first.step.least)) if is_worth else 0


def _show_plan(console: Console, plan: InspectionPlan, title: str) -> None:
    if console.quiet:
        return
    about = f"about {plan.seconds:.0f} s of {plan.budget.seconds:.0f} s"
    table = Table("step", "products", "about", box=None, pad_edge=False, header_style="dim")
    table.title = f"Inspecting {title} on {plan.samples:,} samples, {about}"
    table.title_justify = "left"
    for planned in plan.steps:
        cells = (str(planned.products), f"{planned.seconds:.1f} s")
        if planned.reason:
            cells = ("–", planned.reason)
        table.add_row(planned.step.title, *cells, style="dim" if planned.reason else "")
    console.print(table)


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
    state = initial if isinstance(initial, Mapping) else load_state(Path(path("initial", initial)))
    if not set(state) & set(model.state_dict()):
        reason = "the model has no weight of these names"
        remedy = "Give model.state_dict() from before the training."
        raise ArgumentError("initial", sorted(state)[:5], reason, remedy)
    return state


def _open_trajectory(trajectory: Trajectory | str | Path | None) -> Trajectory | None:
    if trajectory is None or isinstance(trajectory, Trajectory):
        return trajectory
    folder = Path(path("trajectory", trajectory))
    if (folder / "trajectory.json").is_file():
        return Trajectory.open(folder)
    return Trajectory.from_checkpoints(folder)


def _name(thing: Any) -> str:
    return "the model's own" if thing is None else getattr(thing, "__name__", type(thing).__name__)

"""Commands on your own model: `hyperribbon inspect`, `compare` and `plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hyperribbon.core.checks import ArgumentError, check_choice, check_positive

__all__ = ["compare_models", "inspect_model", "plan_model"]

Factory = Annotated[
    str,
    typer.Argument(
        help="module:function or file.py:function that returns (model, loss, data); the loss is "
        "None for a model that computes its own."
    ),
]
Data = Annotated[
    str | None, typer.Option(help="A data set such as mnist5k, instead of the factory's.")
]
Mode = Annotated[
    str, typer.Option(help="eval or train: whether batch norm normalises by the batch.")
]


def inspect_model(
    factory: Factory,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Weights to inspect: .safetensors, or .pt with tensors only."),
    ] = None,
    initial: Annotated[
        Path | None, typer.Option(help="Initial weights of the training run, for sub-networks.")
    ] = None,
    trajectory: Annotated[
        Path | None,
        typer.Option(help="A Recorder's folder, or a folder of checkpoints named by step."),
    ] = None,
    data: Data = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate, for the stability limit.")
    ] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of SGD, with --lr.")] = 0.0,
    mode: Mode = "eval",
    k: Annotated[int, typer.Option(help="Number of leading eigenpairs.")] = 50,
    seconds: Annotated[
        float, typer.Option("--seconds", "--budget", help="Time budget in seconds.")
    ] = 60.0,
    memory: Annotated[
        float | None, typer.Option(help="Memory budget in GB (default: half of the free memory).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and the report.")] = Path(
        "inspection"
    ),
) -> None:
    """Measure the geometry of your own model and write a report.

    The plan and its estimated time are printed first. Ctrl-C stops early and keeps finished
    results. Under torchrun, the processes share the samples.

    Examples:
    `hyperribbon inspect mymodel:make --checkpoint final.safetensors --initial start.safetensors`,
    `hyperribbon inspect mymodel.py:make --data mnist5k --lr 0.1 --momentum 0.9`,
    `torchrun --nproc-per-node 2 -m hyperribbon inspect mymodel.py:make`
    """
    from hyperribbon.application.inspection import Budget, inspect
    from hyperribbon.application.inspection.loading import (
        load_factory,
        load_weights,
        make_case,
        matching_state,
    )
    from hyperribbon.application.report import write_report
    from hyperribbon.core.devices.processes import torchrun_processes
    from hyperribbon.core.states import load_state
    from hyperribbon.core.store import ensure_folder

    with torchrun_processes() as processes:  # of which only rank 0 prints and writes
        is_first = processes.rank == 0
        with processes.together("the preparation of an inspection"):
            if is_first:
                ensure_folder("--out", out)
            room = None if memory is None else check_positive("--memory", memory) * 1e9
            budget = Budget(check_positive("--seconds", seconds), room)
            model, loss, samples = make_case(load_factory(factory), data)
            if checkpoint is not None:
                load_weights(model, checkpoint)
            start = None if initial is None else matching_state(model, load_state(initial), initial)
            optimizer = _optimizer(model, lr, momentum)
        console = Console(quiet=not is_first)
        known = {"initial": start, "trajectory": trajectory, "optimizer": optimizer}
        options = {"k": k, "budget": budget, "mode": mode, "seed": seed, "console": console}
        found = inspect(model, loss, samples, **known, **options, process_group=processes)
        if is_first:
            page = write_report([found.save(out)], out / "report.html", title=found.title)
            found.summary(console)
            console.print(f"\nTables and figures are in {out}, the report is {page}", markup=False)
        if not found.is_complete:
            raise typer.Exit(1)


def _optimizer(model: Any, lr: float | None, momentum: float) -> Any:
    """Return the optimizer settings for the stability limit: None, a rate, or SGD with momentum."""
    from torch.optim import SGD

    if momentum == 0:
        return lr
    if lr is None or not 0 < momentum < 1:
        raise ArgumentError(
            "--momentum",
            momentum,
            "expected a number between 0 and 1, together with --lr",
            "Give --lr 0.1 too.",
        )
    return SGD(model.parameters(), lr=check_positive("--lr", lr), momentum=momentum)


def compare_models(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[FACTORY] A B",
            help="module:function or file.py:function that returns (model, loss, data), and two "
            "checkpoints (.safetensors, .pt with tensors only, or a recording); or two stored "
            "inspections without a factory.",
        ),
    ],
    data: Data = None,
    samples: Annotated[
        int | None, typer.Option(help="Samples to compare on (default 512).")
    ] = None,
    groups: Annotated[
        int | None, typer.Option(help="Disjoint groups of samples (default 8).")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="eval or train: whether batch norm normalises by the batch (default eval)."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (default 0).")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write an HTML report.")] = None,
) -> None:
    """Compare the curvature of two checkpoints on the same samples.

    Example: `hyperribbon compare mymodel.py:make first.safetensors second.safetensors`, or
    `hyperribbon compare first-inspection second-inspection`.
    """
    from hyperribbon.application.inspection import compare

    if len(places) not in (2, 3):
        reason = f"{len(places)} arguments given"
        remedy = "Give a factory and two checkpoints, or two folders of inspections."
        raise ArgumentError("FACTORY A B", " ".join(places), reason, remedy)
    *factory, a, b = places
    given = {"samples": samples, "groups": groups, "mode": mode, "seed": seed}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if factory:
        from hyperribbon.application.inspection.loading import load_factory, make_case

        model, loss, batches = make_case(load_factory(factory[0]), data)
        options |= {"loss": loss, "data": batches, "model": model}
        first, second = Path(a), Path(b)
    else:
        first, second = _inspection(a), _inspection(b)
        if options or data is not None:
            raise ArgumentError(
                "--" + next(iter(options), "data"),
                next(iter(options.values()), data),
                "stored inspections are compared on the samples they were measured on",
                "Omit it, or give a factory and two checkpoints.",
            )
    names = (first.stem, second.stem) if first.stem != second.stem else (a, b)
    found = compare(first, second, names=names, **options)
    console = Console()
    found.summary(console)
    if out is not None:
        console.print(f"\nThe report is {found.report(out)}", markup=False)


def _inspection(place: str) -> Path:
    """Return the folder of a stored inspection."""
    from hyperribbon.application.inspection.comparison.compare import is_inspection

    if not is_inspection(place):
        reason = "expected the folder of a stored inspection, because no factory is given"
        remedy = "For checkpoints, give a factory: hyperribbon compare mymodel.py:make A B."
        raise ArgumentError("A B", place, reason, remedy)
    return Path(place)


def plan_model(
    factory: Factory,
    operator: Annotated[str, typer.Option(help="hessian, ggn or fisher.")] = "hessian",
    k: Annotated[int, typer.Option(help="Number of leading eigenpairs.")] = 10,
    memory: Annotated[
        float | None, typer.Option(help="Available memory in GB (default: free memory).")
    ] = None,
    mode: Mode = "eval",
    data: Data = None,
) -> None:
    """Estimate time and memory for the top-k eigenpairs.

    Example: `hyperribbon plan mymodel:make --operator ggn --k 50`
    """
    from hyperribbon.application.inspection.loading import load_factory, make_case
    from hyperribbon.operators import GGN, Fisher, Hessian
    from hyperribbon.spectra import plan

    check_choice("--operator", operator, ("hessian", "ggn", "fisher"))
    available = None if memory is None else check_positive("--memory", memory) * 1e9
    model, loss, samples = make_case(load_factory(factory), data)
    if operator == "fisher":
        measured = Fisher(model, samples, mode=mode)
    else:
        measured = (Hessian if operator == "hessian" else GGN)(model, loss, samples, mode=mode)
    costs = plan(measured, k, memory=available)
    Console().print(f"{operator}, {measured.shape[0]:,} weights, k = {k}\n{costs}", markup=False)

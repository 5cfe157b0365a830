"""`hyperribbon inspect`: measure the geometry of your own model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

__all__ = ["inspect_model"]


def inspect_model(
    factory: Annotated[
        str,
        typer.Argument(
            help="module:function or file.py:function that returns (model, loss, data); the loss "
            "None for the model's own."
        ),
    ],
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Weights to inspect: .safetensors, or .pt with tensors only."),
    ] = None,
    initial: Annotated[
        Path | None, typer.Option(help="Weights training started from, for sub-networks.")
    ] = None,
    trajectory: Annotated[
        Path | None,
        typer.Option(help="A Recorder's folder, or a folder of checkpoints named by step."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A data set such as mnist5k, instead of the factory's.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate, for the stability limit.")
    ] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of SGD, with --lr.")] = 0.0,
    mode: Annotated[
        str, typer.Option(help="eval or train: whether batch norm normalises by the batch.")
    ] = "eval",
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
    from hyperribbon.core.checks import check_positive
    from hyperribbon.core.devices.processes import joined_processes
    from hyperribbon.core.states import load_state
    from hyperribbon.core.store import ensure_folder
    from hyperribbon.inspection import Budget, inspect
    from hyperribbon.inspection.loading import load_factory, load_weights, make_case, matching_state
    from hyperribbon.report import write_report

    with joined_processes() as processes:  # of which only rank 0 prints and writes
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

    from hyperribbon.core.checks import ArgumentError, check_positive

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

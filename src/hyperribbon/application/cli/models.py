"""Commands on your own model: `hyperribbon inspect`, `prune`, `compare` and `plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hyperribbon.application.cli.shell import Seconds, as_options, check_out, named, one_of
from hyperribbon.core.checks import ArgumentError, check_choice, check_positive

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
    str,
    typer.Option(
        help="eval or train: whether batch norm normalises by the batch.",
        autocompletion=one_of("eval", "train"),
    ),
]
Out = Annotated[
    Path,
    typer.Option(help="Folder for tables, figures and report.html; or an .html file for the page."),
]
Folder = Annotated[
    Path | None,
    typer.Option(help="Where finished work is kept: the same command continues there."),
]
_OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}
_OPERATORS = ("hessian", "ggn", "fisher")


def inspect_model(
    factory: Factory,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Weights to inspect: .safetensors, or .pt with tensors only."),
    ] = None,
    initial: Annotated[
        Path | None, typer.Option(help="Initial weights of the training run, for critical layers.")
    ] = None,
    trajectory: Annotated[
        Path | None,
        typer.Option(help="A Recorder's folder, or a folder of checkpoints named by step."),
    ] = None,
    data: Data = None,
    tolerance: Annotated[
        float, typer.Option(help="Drop of accuracy that pruning may cost.")
    ] = 0.01,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate, for the stability limit.")
    ] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of SGD or RMSprop, with --lr.")] = 0.0,
    optimizer: Annotated[
        str,
        typer.Option(
            help="sgd, adam, adamw or rmsprop: the optimiser of the training.",
            autocompletion=one_of(*_OPTIMIZERS),
        ),
    ] = "sgd",
    weight_decay: Annotated[float, typer.Option(help="Weight decay of the optimiser.")] = 0.0,
    optimizer_state: Annotated[
        Path | None,
        typer.Option(help="Its state_dict() after training (.pt), which all but SGD need."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Mini-batch size of the training (default: the loader's).")
    ] = None,
    mode: Mode = "eval",
    k: Annotated[int, typer.Option(help="Number of leading eigenpairs.")] = 50,
    seconds: Seconds = 60.0,
    memory: Annotated[
        float | None, typer.Option(help="Memory budget in GB (default: half of the free memory).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    out: Out = Path("inspection"),
) -> None:
    """Measure the geometry of your own model and write a report.

    The plan and its estimated time are printed first. Ctrl-C stops early and keeps finished
    results. Under torchrun, the processes share the samples.

    Examples:
    `hyperribbon inspect mymodel:make --checkpoint final.safetensors --initial start.safetensors`,
    `hyperribbon inspect mymodel.py:make --data mnist5k --lr 0.1 --momentum 0.9 --batch-size 64`,
    `hyperribbon inspect mymodel.py:make --optimizer adamw --optimizer-state adamw.pt`,
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

    with torchrun_processes() as processes:  # of which only rank 0 prints and writes
        is_first = processes.rank == 0
        with processes.together("the preparation of an inspection"):
            folder, page = check_out(out) if is_first else (None, out)
            room = None if memory is None else check_positive("--memory", memory) * 1e9
            budget = Budget(check_positive("--budget", seconds), room)
            model, loss, samples = make_case(load_factory(factory), data)
            if checkpoint is not None:
                with named("--checkpoint"):
                    load_weights(model, checkpoint)
            with named("--initial"):
                start = initial and matching_state(model, load_state(initial), initial)
            settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
            trained_by = _optimizer(model, optimizer, optimizer_state, **settings)
        console = Console(quiet=not is_first)
        known = {"initial": start, "trajectory": trajectory, "optimizer": trained_by}
        options = {"k": k, "budget": budget, "mode": mode, "seed": seed, "console": console}
        options |= {"batch_size": batch_size}
        options["tolerance"] = check_positive("--tolerance", tolerance)
        found = inspect(model, loss, samples, **known, **options, process_group=processes)
        if is_first:
            if folder is None:
                found.report(page)
            else:
                write_report([found.save(folder)], page, title=found.title)
            console.print(found.rendered(words=as_options), highlight=False)
            stored = f"Tables and figures are in {folder}, the" if folder else "The"
            console.print(f"\n{stored} report is {page}", markup=False, soft_wrap=True)
        if not found.is_complete:
            raise typer.Exit(1)


def prune_model(
    factory: Factory,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Weights to prune: .safetensors, or .pt with tensors only."),
    ] = None,
    data: Data = None,
    tolerance: Annotated[
        float,
        typer.Option(help="Drop of accuracy that is allowed; of the loss, relative increase."),
    ] = 0.01,
    metric: Annotated[
        str | None,
        typer.Option(
            help="accuracy or loss (default: accuracy where targets are labels).",
            autocompletion=one_of("accuracy", "loss"),
        ),
    ] = None,
    granularity: Annotated[
        str,
        typer.Option(
            help="weight, channel (channels and neurons), head, or unit (all of these); all but "
            "weight make a smaller network.",
            autocompletion=one_of("weight", "channel", "head", "unit"),
        ),
    ] = "weight",
    criterion: Annotated[
        str,
        typer.Option(
            help="magnitude, gradient, fisher, hessian or random.",
            autocompletion=one_of("magnitude", "gradient", "fisher", "hessian", "random"),
        ),
    ] = "magnitude",
    held_out: Annotated[
        bool | None,
        typer.Option(
            "--held-out/--training",
            help="Whether the data were not trained on (default: unknown).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    folder: Folder = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the pruned weights, as .safetensors.")
    ] = None,
) -> None:
    """Find how much of a model can be pruned within a tolerance, and write the pruned network.

    The data should be held out: the factory's, or those of --data. With --granularity
    channel, head or unit the file holds a smaller network, which
    `hr.shrink(model, load_state(file))` loads.

    Example: `hyperribbon prune mymodel.py:make --checkpoint final.pt --granularity channel --out
    small.safetensors`
    """
    from hyperribbon.application.inspection.loading import load_factory, load_weights, make_case
    from hyperribbon.core.mask import safetensors_path
    from hyperribbon.core.states import save_state
    from hyperribbon.recording.evaluation import read
    from hyperribbon.subnetworks import find_units, prunable, shrink

    check_positive("--tolerance", tolerance)
    place = None if out is None else safetensors_path(out)
    model, loss, samples = make_case(load_factory(factory), data)
    if checkpoint is not None:
        with named("--checkpoint"):
            load_weights(model, checkpoint)
    options: dict[str, Any] = {"metric": metric, "granularity": granularity, "seed": seed}
    options |= {"criterion": criterion, "held_out": held_out, "folder": folder}
    found = prunable(model, loss, samples, tolerance, **options)
    console = Console(highlight=False, soft_wrap=True)
    console.print(found.summary(), markup=False)
    for layer, why in find_units(model).whole.items() if granularity != "weight" else ():
        console.print(f"Left whole: {layer} ({why}).", markup=False)
    if place is None:
        return
    if not found.mask.count:
        console.print("Nothing can be pruned, so no file is written.")
        return
    model.load_state_dict(found.state)
    small = model
    if granularity != "weight":
        small = shrink(model, found.mask, inputs=read(model, samples).some(8))
    save_state(place, small.state_dict())
    before, after = (sum(t.nbytes for t in net.state_dict().values()) for net in (model, small))
    console.print(
        f"{place}: {after / 1e6:.3g} MB of weights, {before / 1e6:.3g} MB before.", markup=False
    )


def _optimizer(
    model: Any,
    name: str,
    state: Path | None,
    *,
    lr: float | None,
    momentum: float,
    weight_decay: float,
) -> Any:
    """Return the optimiser that trained the command line's model, a learning rate, or None."""
    import torch

    kind = getattr(torch.optim, _OPTIMIZERS[check_choice("--optimizer", name, tuple(_OPTIMIZERS))])
    given = {"--momentum": momentum, "--weight-decay": weight_decay}
    for option, value in given.items():
        if value and (lr is None and state is None):
            raise ArgumentError(option, value, "it needs a learning rate", "Give --lr 0.1 too.")
    if name == "sgd" and state is None and not any(given.values()):
        return lr
    has_momentum = name in ("sgd", "rmsprop")
    if momentum and not has_momentum:
        reason = f"{name} has no such setting"
        raise ArgumentError("--momentum", momentum, reason, "Omit it.")
    if not 0 <= momentum < 1:
        raise ArgumentError(
            "--momentum", momentum, "expected a number between 0 and 1", "Give 0.9."
        )
    if name != "sgd" and state is None:
        reason = f"the stability limit of {_OPTIMIZERS[name]} depends on its second moments"
        remedy = f"After training, torch.save(optimizer.state_dict(), '{name}.pt'); give that file."
        raise ArgumentError("--optimizer-state", None, reason, remedy)
    rate = 1.0 if lr is None else check_positive("--lr", lr)
    options = {"momentum": momentum} if has_momentum else {}
    made = kind(model.parameters(), lr=rate, weight_decay=weight_decay, **options)
    if state is not None:
        _load_optimizer(made, state)
    return made


def _load_optimizer(optimizer: Any, path: Path) -> None:
    from hyperribbon.core.states import load_tensors_only

    try:
        content = load_tensors_only(path)
        optimizer.load_state_dict(content.get("optimizer", content))
    except ArgumentError:
        raise
    except Exception as error:  # whatever torch raises of a damaged or unfitting file
        remedy = "Give the file of torch.save(optimizer.state_dict(), file) of the same model."
        raise ArgumentError("--optimizer-state", str(path), f"{error}", remedy) from None


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
            help="eval or train: whether batch norm normalises by the batch (default eval).",
            autocompletion=one_of("eval", "train"),
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (default 0).")] = None,
    seconds: Seconds = 60.0,
    folder: Folder = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the table and report.html; or an .html file for the page."),
    ] = None,
) -> None:
    """Compare the curvature of two models' checkpoints on the same samples.

    Example: `hyperribbon compare mymodel.py:make first.safetensors second.safetensors`, or
    `hyperribbon compare first-inspection second-inspection`.
    """
    from hyperribbon.application.inspection import compare
    from hyperribbon.application.report import write_report

    if len(places) not in (2, 3):
        reason = f"{len(places)} arguments given"
        remedy = "Give a factory and two checkpoints, or two folders of inspections."
        raise ArgumentError("FACTORY A B", " ".join(places), reason, remedy)
    place, page = (None, None) if out is None else check_out(out)
    *factory, a, b = places
    given = {"samples": samples, "groups": groups, "mode": mode, "seed": seed, "folder": folder}
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
    if factory:
        options["budget"] = check_positive("--budget", seconds)
    found = compare(first, second, names=names, **options)
    console = Console()
    notes = tuple(map(as_options, found.notes))
    console.print(replace(found, notes=notes).rendered(), highlight=False)
    if page is not None:
        if place is None:
            found.report(page)
        else:
            write_report([found.save(place)], page, title=" and ".join(names))
        console.print(f"\nThe report is {page}", markup=False, soft_wrap=True)


def _inspection(place: str) -> Path:
    """Return the folder of a stored inspection of a model given on the command line."""
    from hyperribbon.application.inspection.comparison.compare import is_inspection

    if not is_inspection(place):
        reason = "expected the folder of a stored inspection, because no factory is given"
        remedy = "For checkpoints, give a factory: hyperribbon compare mymodel.py:make A B."
        raise ArgumentError("A B", place, reason, remedy)
    return Path(place)


def plan_model(
    factory: Factory,
    operator: Annotated[
        str,
        typer.Option(help="hessian, ggn or fisher.", autocompletion=one_of(*_OPERATORS)),
    ] = "hessian",
    k: Annotated[int, typer.Option(help="Number of leading eigenpairs.")] = 10,
    memory: Annotated[
        float | None, typer.Option(help="Available memory in GB (default: free memory).")
    ] = None,
    mode: Mode = "eval",
    data: Data = None,
) -> None:
    """Estimate time and memory for the top-k eigenpairs of a model.

    Example: `hyperribbon plan mymodel:make --operator ggn --k 50`
    """
    from hyperribbon.application.inspection.loading import load_factory, make_case
    from hyperribbon.operators import GGN, Fisher, Hessian
    from hyperribbon.spectra import plan

    check_choice("--operator", operator, _OPERATORS)
    available = None if memory is None else check_positive("--memory", memory) * 1e9
    model, loss, samples = make_case(load_factory(factory), data)
    if operator == "fisher":
        measured = Fisher(model, samples, mode=mode)
    else:
        measured = (Hessian if operator == "hessian" else GGN)(model, loss, samples, mode=mode)
    costs = plan(measured, k, memory=available)
    Console().print(f"{operator}, {measured.shape[0]:,} weights, k = {k}\n{costs}", markup=False)

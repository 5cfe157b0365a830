"""`hyperribbon compare`: compare the curvature of two checkpoints or inspections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

__all__ = ["compare_models"]


def compare_models(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[FACTORY] A B",
            help="module:function or file.py:function that returns (model, loss, data), and two "
            "weights: .safetensors, .pt with tensors only, or a run. Or two stored inspections, "
            "without a factory.",
        ),
    ],
    data: Annotated[
        str | None, typer.Option(help="A data set such as mnist5k, instead of the factory's.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Samples to compare on (default 512).")
    ] = None,
    groups: Annotated[
        int | None, typer.Option(help="Disjoint groups of samples (default 8).")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="eval or train: whether batch norm normalises by the batch; eval."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (default 0).")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write an HTML report.")] = None,
) -> None:
    """Compare the curvature of two checkpoints on the same samples.

    Example: `hyperribbon compare mymodel.py:make first.safetensors second.safetensors`, or
    `hyperribbon compare first-inspection second-inspection`.
    """
    from hyperribbon.core.checks import ArgumentError
    from hyperribbon.inspection import compare

    if len(places) not in (2, 3):
        reason = f"{len(places)} arguments given"
        remedy = "Give a factory and two checkpoints, or two folders of inspections."
        raise ArgumentError("FACTORY A B", " ".join(places), reason, remedy)
    *factory, a, b = places
    given = {"samples": samples, "groups": groups, "mode": mode, "seed": seed}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if factory:
        from hyperribbon.inspection.loading import load_factory, make_case

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
    from hyperribbon.core.checks import ArgumentError
    from hyperribbon.inspection.comparison.inspections import is_inspection

    if not is_inspection(place):
        reason = "expected the folder of a stored inspection, because no factory is given"
        remedy = "For checkpoints, give a factory: hyperribbon compare mymodel.py:make A B."
        raise ArgumentError("A B", place, reason, remedy)
    return Path(place)

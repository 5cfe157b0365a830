"""`hyperribbon compare`: is one checkpoint or inspection flatter than the other, what differs."""

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
        int | None, typer.Option(help="Samples to compare on, 512 if not given.")
    ] = None,
    groups: Annotated[
        int | None, typer.Option(help="Disjoint groups they are cut into, 8 if not given.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of everything random, 0 if not given.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a report too, an HTML file.")] = None,
) -> None:
    """Say which of two checkpoints is flatter, and what else differs, on the same samples.

    Example: `hyperribbon compare mymodel.py:make first.safetensors second.safetensors`, or
    `hyperribbon compare first-inspection second-inspection`.
    """
    from hyperribbon.core.checks import ArgumentError
    from hyperribbon.inspection import compare

    if len(places) not in (2, 3):
        reason = f"there are {len(places)} of them"
        remedy = "Give a factory and two checkpoints, or two folders of inspections."
        raise ArgumentError("FACTORY A B", " ".join(places), reason, remedy)
    *factory, a, b = places
    given = {"samples": samples, "groups": groups, "seed": seed}
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
                "inspections are laid together as they are, on the samples they had",
                "Leave it out, or give a factory and the two checkpoints.",
            )
    names = (first.stem, second.stem) if first.stem != second.stem else (a, b)
    found = compare(first, second, names=names, **options)
    console = Console()
    found.summary(console)
    if out is not None:
        console.print(f"\nThe report is {found.report(out)}", markup=False)


def _inspection(place: str) -> Path:
    """Return a folder of an inspection."""
    from hyperribbon.core.checks import ArgumentError
    from hyperribbon.inspection.comparison.inspections import is_inspection

    if not is_inspection(place):
        reason = "it is no folder of a stored inspection, and there is no factory for checkpoints"
        remedy = "Put the factory before: hyperribbon compare mymodel.py:make A B."
        raise ArgumentError("A B", place, reason, remedy)
    return Path(place)

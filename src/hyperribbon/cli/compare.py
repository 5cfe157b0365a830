"""`hyperribbon compare`: is one checkpoint flatter than the other, and what else differs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

__all__ = ["compare_models"]


def compare_models(
    factory: Annotated[
        str,
        typer.Argument(
            help="module:function or file.py:function that returns (model, loss, data)."
        ),
    ],
    a: Annotated[
        Path,
        typer.Argument(help="Weights: .safetensors, .pt with tensors only, or a run."),
    ],
    b: Annotated[Path, typer.Argument(help="The other weights.")],
    data: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option(help="A data set such as mnist5k, instead of the factory's."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Samples to compare on.")] = 512,
    groups: Annotated[int, typer.Option(help="Disjoint groups they are cut into.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Write a report too, an HTML file."),
    ] = None,
) -> None:
    """Say which of two checkpoints is flatter, and what else differs, on the same samples.

    Example: `hyperribbon compare mymodel.py:make first.safetensors second.safetensors`
    """
    from hyperribbon.inspection import compare
    from hyperribbon.inspection.loading import load_factory, make_case

    model, loss, given = make_case(load_factory(factory), data)
    names = (a.stem, b.stem) if a.stem != b.stem else (str(a), str(b))
    found = compare(
        a, b, loss, given, model=model, names=names, samples=samples, groups=groups, seed=seed
    )
    console = Console()
    found.summary(console)
    if out is not None:
        console.print(f"\nThe report is {found.report(out)}", markup=False)

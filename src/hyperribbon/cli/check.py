"""`hyperribbon check`: verify and repair stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["check"]


def check(
    folder: Annotated[
        Path, typer.Argument(help="A recording, a run, a sweep, or a folder of these.")
    ],
    repair: Annotated[
        bool, typer.Option("--repair", help="Keep intact records and move damaged files aside.")
    ] = False,
) -> None:
    """Verify the checksums of stored runs and list damaged files.

    Exit status 0 when everything is intact or was repaired, 1 when damage remains.

    Example: `hyperribbon check runs --repair`
    """
    from hyperribbon.core.store.checking import check_folder

    checked = check_folder(folder, repair=repair)
    console = Console()
    if checked.findings:
        table = Table("where", "kind", "what", "done", box=None, pad_edge=False)
        for finding in checked.findings:
            place = finding.place
            name = place.relative_to(folder) if place.is_relative_to(folder) else place
            row = (str(name), finding.kind, finding.what, finding.mended or "–")
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    console.print(
        f"{checked.trajectories} trajectories with {checked.records} intact records and "
        f"{checked.files} files of runs read: "
        + ("no damage found" if checked.is_whole else "damage found; repair it with --repair")
        + ".",
        soft_wrap=True,
    )
    if not checked.is_whole:
        raise typer.Exit(1)

"""`hyperribbon report`: write an HTML report of stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["report"]


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of runs, inspections or recordings, or a store of them; runs/ by default."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write a self-contained HTML report of stored runs.

    Examples: `hyperribbon report`, `hyperribbon report runs --out figures.html`
    """
    from hyperribbon.report import write_report

    path = write_report(runs or [Path("runs")], out)
    Console().print(f"Report written to {path}", markup=False, soft_wrap=True)

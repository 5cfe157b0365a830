"""`hyperribbon list`: the experiments there are."""

from __future__ import annotations

import json
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.table import Table

from hyperribbon.core.checks import check_choice

__all__ = ["list_experiments"]


def list_experiments(
    paper: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option(help="Only ribbons, subnetworks, fluctuations or linear_networks."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the experiments, by paper and figure.

    Example: `hyperribbon list --paper ribbons`
    """
    from hyperribbon.experiments import PAPERS, all_experiments

    if paper is not None:
        check_choice("--paper", paper, PAPERS)
    chosen = [e for e in all_experiments().values() if paper in (None, e.paper)]
    if as_json:
        typer.echo(json.dumps([{"id": e.id, "title": e.title} for e in chosen], indent=2))
        return
    table = Table("id", "what it shows", box=None, pad_edge=False)
    for experiment in chosen:
        table.add_row(experiment.id, experiment.title)
    Console().print(table)

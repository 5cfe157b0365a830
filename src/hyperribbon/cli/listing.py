"""`hyperribbon list`: the experiments there are."""

from __future__ import annotations

import json
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.table import Table

from hyperribbon.cli.catalogue import PAPERS, experiment_titles
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
    if paper is not None:
        check_choice("--paper", paper, PAPERS)
    titles = experiment_titles()
    chosen = [id for id in titles if paper in (None, id.split("/")[0])]
    if as_json:
        typer.echo(json.dumps([{"id": id, "title": titles[id]} for id in chosen], indent=2))
        return
    table = Table("id", "what it shows", box=None, pad_edge=False)
    for id in chosen:
        table.add_row(id, titles[id])
    Console().print(table)

"""`hyperribbon list`: list the experiments."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from hyperribbon.cli.titles import PAPERS, experiment_titles
from hyperribbon.core.checks import check_choice

__all__ = ["list_experiments"]

_PRESETS = ("smoke", "laptop", "paper")
_VAGUE = 30  # above this ratio of bounds, the upper one is uninformative


def list_experiments(
    paper: Annotated[
        str | None, typer.Option(help="Only ribbons, subnetworks, fluctuations or linear_networks.")
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Show time and memory of each preset, on one core.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the experiments, by paper and figure.

    Times are for one core and one seed; "about" and "at least" mark estimates from other presets.

    Examples: `hyperribbon list --paper ribbons`, `hyperribbon list --cost`
    """
    if paper is not None:
        check_choice("--paper", paper, PAPERS)
    titles = experiment_titles()
    chosen = [id for id in titles if paper in (None, id.split("/")[0])]
    if as_json:
        typer.echo(json.dumps([{"id": id, "title": titles[id]} for id in chosen], indent=2))
        return
    headings = _PRESETS if cost else ("what it shows",)
    table = Table(Column("id", no_wrap=True), *headings, box=None, pad_edge=False)
    for id in chosen:
        table.add_row(id, *([_cost(id, preset) for preset in _PRESETS] if cost else [titles[id]]))
    Console().print(table)


def _cost(id: str, preset: str) -> str:
    from hyperribbon.experiments import find_experiment
    from hyperribbon.experiments.costs import cost_of

    found = cost_of(find_experiment(id), preset)
    if found is None:
        return "unknown"
    if found.measured:
        return f"{_time(found.seconds)}, {found.megabytes / 1000:.1f} GB"
    if found.seconds == found.at_most:
        return f"about {_time(found.seconds)}"
    if found.at_most > _VAGUE * found.seconds:
        return f"at least {_time(found.seconds)}"
    return f"about {_time(found.seconds)} to {_time(found.at_most)}"


def _time(seconds: float) -> str:
    """Format a duration."""
    for unit, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.2g} {name}"
    return f"{seconds:.2g} s"

"""The command `hyperribbon`: its subcommands, messages and exit statuses."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from hyperribbon import __version__
from hyperribbon.application.cli.demo import demo
from hyperribbon.application.cli.doctor import doctor
from hyperribbon.application.cli.models import (
    compare_models,
    inspect_model,
    plan_model,
    prune_model,
)
from hyperribbon.application.cli.papers import list_experiments, reproduce
from hyperribbon.application.cli.shell import as_options
from hyperribbon.application.cli.stored import check, explore, report
from hyperribbon.core.checks import ArgumentError, MissingExtraError, ProcessGroupError

app = typer.Typer(
    name="hyperribbon",
    help="Measure the geometry of a network's training and compare it with closed-form theory.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("demo")(demo)
app.command("inspect")(inspect_model)
app.command("prune")(prune_model)
app.command("compare")(compare_models)
app.command("list")(list_experiments)
app.command("reproduce")(reproduce)
app.command("report")(report)
app.command("explore")(explore)
app.command("plan")(plan_model)
app.command("check")(check)
app.command("doctor")(doctor)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"hyperribbon {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command-line app `hyperribbon` and end with its exit status.

    Exit status: 0 on success, 2 for invalid arguments, 1 for other errors, 130 when interrupted.
    """
    console = Console(stderr=True)
    try:
        app()
    except (ArgumentError, MissingExtraError) as error:
        console.print(f"[bold red]Error:[/] {escape(as_options(str(error)))}", soft_wrap=True)
        sys.exit(2)
    except ProcessGroupError as error:
        console.print(f"[bold red]Error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)

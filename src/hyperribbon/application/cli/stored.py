"""Commands on stored runs: `hyperribbon report`, `explore` and `check`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hyperribbon.application.cli.shell import count
from hyperribbon.core.checks import ArgumentError


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of runs, inspections or recordings, or a store of them; runs/ by default."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write stored runs as one self-contained HTML report.

    Examples: `hyperribbon report`, `hyperribbon report runs --out figures.html`
    """
    from hyperribbon.application.report import write_report

    path = write_report(runs or [Path("runs")], out)
    Console().print(f"Report written to {path}", markup=False, soft_wrap=True)


def explore(
    store: Annotated[
        Path | None, typer.Argument(help="The folder of runs to show; runs/ by default.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 makes it available on your network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8050,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    model: Annotated[
        str | None,
        typer.Option(
            help="module:function or file.py:function that returns (model, loss, data) of the "
            "recordings, to compare two of them."
        ),
    ] = None,
) -> None:
    """Open the explorer on stored runs: browse, overlay, compare, follow, and explore the theory.

    Examples: `hyperribbon explore runs --model mymodel.py:make`,
    `hyperribbon explore demo --port 9000 --no-browser`
    """
    if store is not None and not store.is_dir():
        raise ArgumentError("STORE", str(store), "the folder does not exist", "Check the path.")
    from hyperribbon.application.explorer import serve

    factory = None
    if model is not None:
        from hyperribbon.application.inspection.loading import load_factory, make_case

        made = load_factory(model)
        factory = lambda: make_case(made, None)  # noqa: E731
    server = serve(store or Path("runs"), host=host, port=port, factory=factory)
    console = Console()
    console.print(
        f"The explorer is at {server.address}  (Ctrl-C stops it)", markup=False, soft_wrap=True
    )
    if host not in ("127.0.0.1", "localhost", "::1"):
        console.print(
            f"It listens on {host}: anyone on the network who has this address, with its token, "
            "can read the runs and start measurements.",
            markup=False,
        )
    if browser:
        webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


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
    from hyperribbon.core.store.check import check_folder

    found = check_folder(folder, repair=repair)
    console = Console()
    if found.findings:
        table = Table("where", "kind", "what", "done", box=None, pad_edge=False)
        for finding in found.findings:
            place = finding.place
            name = place.relative_to(folder) if place.is_relative_to(folder) else place
            row = (str(name), finding.kind, finding.what, finding.done or "–")
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    console.print(
        f"{count(found.trajectories, 'recording')} with {count(found.records, 'intact record')} "
        f"and {count(found.files, 'file')} of runs read: "
        + ("no damage found" if found.is_whole else "damage found; repair it with --repair")
        + ".",
        soft_wrap=True,
    )
    if not found.is_whole:
        raise typer.Exit(1)

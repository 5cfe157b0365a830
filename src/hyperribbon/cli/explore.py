"""`hyperribbon explore`: the explorer in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["explore"]


def explore(
    store: Annotated[Path, typer.Argument(help="The folder of runs to show.")] = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 shares it with your network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8050,
    name: Annotated[
        list[str] | None, typer.Option(help="A further name that this machine is reached by.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Open a page of your runs: list, overlay, follow one live; the theory stands behind it.

    Examples: `hyperribbon explore runs`, `hyperribbon explore demo --port 9000 --no-browser`
    """
    from hyperribbon.explorer import serve

    server = serve(store, host=host, port=port, names=name or ())
    console = Console()
    console.print(
        f"The explorer is at {server.address}  (Ctrl-C ends it)", markup=False, soft_wrap=True
    )
    if server.token is not None:
        console.print(
            f"It listens on {host}: others on the network can open it and read the runs. Only who "
            "opens the whole address above, with its token, can start measurements.",
            markup=False,
        )
    if browser:
        webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()

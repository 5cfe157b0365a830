"""`hyperribbon explore`: open the explorer in a browser."""

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
        str, typer.Option(help="Address to listen on; 0.0.0.0 makes it available on your network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8050,
    name: Annotated[
        list[str] | None, typer.Option(help="Additional host name of this machine.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Open the explorer: browse, overlay and follow runs, and explore the theory.

    Examples: `hyperribbon explore runs`, `hyperribbon explore demo --port 9000 --no-browser`
    """
    from hyperribbon.explorer import serve

    server = serve(store, host=host, port=port, names=name or ())
    console = Console()
    console.print(
        f"The explorer is at {server.address}  (Ctrl-C stops it)", markup=False, soft_wrap=True
    )
    if server.token is not None:
        console.print(
            f"It listens on {host}: others on the network can open it and read the runs. Only "
            "users of the full address above, with its token, can start measurements.",
            markup=False,
        )
    if browser:
        webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()

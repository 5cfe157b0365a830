"""Serve the explorer: `serve` in the foreground, `explore` in the background."""

from __future__ import annotations

import secrets
import threading
import webbrowser
from html import escape
from pathlib import Path

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from hyperribbon.application.explorer.app import create_app
from hyperribbon.application.explorer.runs.table import Factory
from hyperribbon.core.checks import ArgumentError, function, path, text, validate, whole


class _QuietHandler(WSGIRequestHandler):
    """Request handler without request logging; idle connections time out."""

    timeout = 30

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep requests to the explorer's server out of the log."""


class ExplorerServer(ThreadedWSGIServer):
    """A listening explorer server; call `serve_forever` to handle requests.

    Attributes:
        token: Access token that every request must have.
    """

    token: str

    @property
    def address(self) -> str:
        """URL of the explorer's server for a browser on this machine, including the token."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"http://{host}:{self.server_port}/?token={self.token}"


def serve(
    store: str | Path = "runs",
    *,
    host: str = "127.0.0.1",
    port: int = 8050,
    factory: Factory | None = None,
) -> ExplorerServer:
    """Return a listening explorer server; call `serve_forever` on it.

    Only visitors who opened `address`, which contains a token, have access.

    Args:
        store: Folder of stored runs.
        host: Address to listen on; by default reachable from this machine only.
        port: Port to listen on; 0 picks a free one.
        factory: Returns (model, loss, data) of the recordings, for comparing them.

    Raises:
        ArgumentError: The server cannot listen on the address.
    """
    remedy = "Choose another with --port, or 0 for a free one."
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ArgumentError("--port", port, "expected a port from 0 to 65535", remedy)
    token = secrets.token_urlsafe(16)
    app = create_app(store, token=token, factory=factory)
    try:
        server = ExplorerServer(host, port, app.server, handler=_QuietHandler)  # type: ignore[arg-type]
    except (OSError, SystemExit, OverflowError, UnicodeError, TypeError) as error:
        reason = f"cannot listen on this address ({error})"
        raise ArgumentError("--port", f"{host}:{port}", reason, remedy) from None
    server.token = token
    return server


class Explorer:
    """An explorer server running in the background until closed or the process ends.

    Attributes:
        address: Its URL, including the access token.
    """

    def __init__(self, server: ExplorerServer, store: Path) -> None:
        self.address, self._server, self._store = server.address, server, store
        self._thread = threading.Thread(target=server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the explorer's server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> Explorer:
        """Enter a block with the explorer's server running."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the explorer's server after the block."""
        self.close()

    def __repr__(self) -> str:
        """Return the address of the explorer's server in one line."""
        return f"The explorer of {self._store} is at {self.address} (close() ends it)"

    def _repr_html_(self) -> str:
        """Return a link to the explorer's server for notebooks."""
        link = f'<a href="{escape(self.address)}" target="_blank" rel="noopener">'
        return f"The explorer of {escape(str(self._store))}: {link}{escape(self.address)}</a>"


@validate(folder=path, host=text, port=whole, factory=function)
def explore(
    folder: str | Path = "runs",
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    browser: bool = False,
    factory: Factory | None = None,
) -> Explorer:
    """Start the explorer's server on a folder of runs; returns immediately.

    Its first page lists the runs; one that is being recorded can be followed live.

    Raises an ArgumentError when the server cannot listen on the address.

    Args:
        folder: Runs, or one run; it may be empty.
        host: Address to listen on; by default reachable from this machine only.
        port: Port to listen on; 0 picks a free one.
        browser: Whether to open a browser; a notebook shows a link in any case.
        factory: Returns (model, loss, data) of the recordings. With it, the table of runs compares
            two of them by `hr.compare`.

    Returns:
        The running explorer, with `address` and `close()`.
    """
    found = Explorer(serve(folder, host=host, port=port, factory=factory), Path(folder))
    if browser:
        webbrowser.open(found.address)
    return found

"""Serve the explorer on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from hyperribbon.core.checks import ArgumentError
from hyperribbon.explorer.app import create_app
from hyperribbon.explorer.guarding import Guard, is_loopback

__all__ = ["ExplorerServer", "serve"]


class _QuietHandler(WSGIRequestHandler):
    """Serves without a line on the terminal for every request; who says nothing is hung up on."""

    timeout = 30

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing."""


class ExplorerServer(ThreadedWSGIServer):
    """A server of the explorer, listening; `serve_forever` begins to answer.

    Attributes:
        token: What a visitor must bring to start measurements; None on this machine alone.
    """

    token: str | None = None

    @property
    def address(self) -> str:
        """Where a browser on this machine finds it, with the token if there is one."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        link = f"http://{host}:{self.server_port}"
        return link if self.token is None else f"{link}/?token={self.token}"


def serve(
    store: str | Path = "runs",
    *,
    host: str = "127.0.0.1",
    port: int = 8050,
    names: Collection[str] = (),
) -> ExplorerServer:
    """Return a server of the explorer, listening; call `serve_forever` on it.

    Args:
        store: Folder of stored runs.
        host: Address to listen on; the default lets only this machine in. Beyond it, measurements
            are started only by those who opened `address`, which holds a token.
        port: Port to listen on; 0 takes a free one.
        names: Further names that this machine is reached by.

    Raises:
        ArgumentError: The address cannot be listened on.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        remedy = "Choose another with --port, or 0 for a free one."
        raise ArgumentError("--port", port, "ports are whole numbers from 0 to 65535", remedy)
    token = None if is_loopback(host) else secrets.token_urlsafe(16)
    app = create_app(store, guard=Guard(host, token, names))
    try:
        server = ExplorerServer(host, port, app.server, handler=_QuietHandler)  # type: ignore[arg-type]
    except (OSError, SystemExit, OverflowError, UnicodeError) as error:
        reason = f"it cannot be listened on ({error})"
        remedy = "Choose another with --port, or 0 for a free one."
        raise ArgumentError("--port", f"{host}:{port}", reason, remedy) from None
    server.token = token
    return server

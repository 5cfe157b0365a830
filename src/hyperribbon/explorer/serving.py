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
    """Request handler without request logging; idle connections time out."""

    timeout = 30

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Suppress request logging."""


class ExplorerServer(ThreadedWSGIServer):
    """A listening explorer server; call `serve_forever` to handle requests.

    Attributes:
        token: Access token required to start measurements; None when only this machine connects.
    """

    token: str | None = None

    @property
    def address(self) -> str:
        """URL for a browser on this machine, including the token if there is one."""
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
    """Return a listening explorer server; call `serve_forever` on it.

    Args:
        store: Folder of stored runs.
        host: Address to listen on; by default reachable from this machine only. Otherwise, only
            visitors who opened `address`, which contains a token, can start measurements.
        port: Port to listen on; 0 picks a free one.
        names: Additional host names of this machine.

    Raises:
        ArgumentError: The server cannot listen on the address.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        remedy = "Choose another with --port, or 0 for a free one."
        raise ArgumentError("--port", port, "expected a port from 0 to 65535", remedy)
    token = None if is_loopback(host) else secrets.token_urlsafe(16)
    app = create_app(store, guard=Guard(host, token, names))
    try:
        server = ExplorerServer(host, port, app.server, handler=_QuietHandler)  # type: ignore[arg-type]
    except (OSError, SystemExit, OverflowError, UnicodeError) as error:
        reason = f"cannot listen on this address ({error})"
        remedy = "Choose another with --port, or 0 for a free one."
        raise ArgumentError("--port", f"{host}:{port}", reason, remedy) from None
    server.token = token
    return server

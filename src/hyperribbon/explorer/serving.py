"""Serve the explorer on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from hyperribbon.core.checks import ArgumentError
from hyperribbon.explorer.app import create_app

__all__ = ["serve"]


class _QuietHandler(WSGIRequestHandler):
    """Serves without a line on the terminal for every request."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing."""


def serve(
    store: str | Path = "runs", *, host: str = "127.0.0.1", port: int = 8050
) -> BaseWSGIServer:
    """Return a server of the explorer, listening; call `serve_forever` on it.

    Args:
        store: Folder of stored runs.
        host: Address to listen on; the default lets only this machine in.
        port: Port to listen on; 0 takes a free one.

    Raises:
        ArgumentError: The address cannot be listened on.
    """
    try:
        return make_server(
            host, port, create_app(store).server, threaded=True, request_handler=_QuietHandler
        )
    except (OSError, SystemExit, OverflowError, socket.gaierror) as error:
        raise ArgumentError(
            "--port",
            f"{host}:{port}",
            f"it cannot be listened on ({error})",
            "Choose another with --port, or 0 for a free one.",
        ) from None

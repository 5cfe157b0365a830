"""Open the explorer from Python, in the background."""

from __future__ import annotations

import threading
import webbrowser
from html import escape
from pathlib import Path

from hyperribbon.core.boundary import checked, flag, path, text, whole
from hyperribbon.explorer.serving import ExplorerServer, serve

__all__ = ["Explorer", "explore"]


class Explorer:
    """An explorer server running in the background until closed or the process ends.

    Attributes:
        address: Its URL.
    """

    def __init__(self, server: ExplorerServer, store: Path) -> None:
        self.address, self._server, self._store = server.address, server, store
        self._thread = threading.Thread(target=server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> Explorer:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Return a line with the address."""
        return f"The explorer of {self._store} is at {self.address} (close() ends it)"

    def _repr_html_(self) -> str:
        """Return a link for notebooks; the page cannot be embedded in a frame."""
        link = f'<a href="{escape(self.address)}" target="_blank" rel="noopener">'
        return f"The explorer of {escape(str(self._store))}: {link}{escape(self.address)}</a>"


@checked(folder=path, host=text, port=whole, browser=flag)
def explore(
    folder: str | Path = "runs", *, host: str = "127.0.0.1", port: int = 0, browser: bool = False
) -> Explorer:
    """Open the explorer on a folder of runs; returns immediately.

    Its first page lists the runs; one that is being recorded can be followed live.

    Raises an ArgumentError when the server cannot listen on the address.

    Args:
        folder: Runs, or one run; it may be empty.
        host: Address to listen on; by default reachable from this machine only.
        port: Port to listen on; 0 picks a free one.
        browser: Whether to open a browser; a notebook shows a link in any case.

    Returns:
        The running explorer, with `address` and `close()`.
    """
    found = Explorer(serve(folder, host=host, port=port), Path(folder))
    if browser:
        webbrowser.open(found.address)
    return found

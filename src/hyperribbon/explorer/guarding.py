"""Request checks of the explorer: host names, same origin, and access token."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
import socket
from collections.abc import Collection
from typing import Any
from urllib.parse import urlencode, urlsplit

from dash import Dash
from flask import Flask, Response, abort, redirect, request
from werkzeug.exceptions import HTTPException

__all__ = ["Guard", "is_loopback"]

_COOKIE = "hyperribbon-token"
_SESSION = "hyperribbon-session"
_MAX_REQUEST = 30_000_000  # an uploaded file of 20 MB, as text
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_LOG = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Return whether an address accepts connections from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Rejects requests that do not come from the explorer's own pages.

    A malicious page may point its own domain at this machine (DNS rebinding) or send cross-origin
    requests. The Host header must therefore be a name of this machine, and state-changing requests
    must have the same host as their Origin. Numeric addresses cannot be rebound, so they are
    accepted when the explorer listens beyond this machine; starting measurements then also requires
    the token.

    Args:
        host: Address the server listens on.
        token: Access token required to start measurements; None requires none.
        names: Additional host names of this machine.
    """

    def __init__(
        self, host: str = "127.0.0.1", token: str | None = None, names: Collection[str] = ()
    ) -> None:
        self._token, self._secret = token, secrets.token_bytes(32)
        self._names = {"localhost", "127.0.0.1", "::1", host.strip("[]").lower()}
        self._names |= {name.strip("[]").lower() for name in names}
        self._numbers = not is_loopback(host)
        if self._numbers:
            self._names |= {socket.gethostname().lower()}
        self._policy: str | None = None

    def protect(self, app: Dash) -> None:
        """Check every request to an application and add headers to every response."""
        server: Flask = app.server  # type: ignore[assignment]
        server.config["MAX_CONTENT_LENGTH"] = _MAX_REQUEST

        @server.before_request
        def _ask() -> Any:
            if not self._knows(request.host):
                abort(421, "Unknown host name; allow it with --name.")
            origin = request.headers.get("Origin")
            foreign = origin is not None and urlsplit(origin).netloc.lower() != request.host.lower()
            if foreign or (
                request.method != "GET" and request.headers.get("Sec-Fetch-Site") == "cross-site"
            ):
                abort(403, "Cross-origin request rejected.")
            return self._admit() if "token" in request.args else None

        @server.after_request
        def _answer(response: Response) -> Response:
            if self._policy is None:
                self._policy = _policy(app)
            response.headers.update(
                {
                    "Content-Security-Policy": self._policy,
                    "Cross-Origin-Opener-Policy": "same-origin",
                    "Cross-Origin-Resource-Policy": "same-origin",
                    "Referrer-Policy": "no-referrer",
                    "X-Content-Type-Options": "nosniff",
                    "X-Frame-Options": "DENY",
                }
            )
            if response.mimetype == "text/html" and not self._session():
                session = self.new_visitor()
                response.set_cookie(_SESSION, session, httponly=True, samesite="Strict")
            return response

        @server.errorhandler(Exception)
        def _fail(error: Exception) -> Any:
            if isinstance(error, HTTPException):
                return error
            _LOG.debug("request refused", exc_info=error)
            known = isinstance(error, _MALFORMED)
            return ("Not a request of the explorer's pages.", 400) if known else ("", 500)

    def may_start(self) -> bool:
        """Return whether the current visitor may start measurements."""
        return self._token is None or self._matches(request.cookies.get(_COOKIE, ""))

    def user(self) -> str:
        """Return the user identifier for queueing: the browser session, or else the address.

        Users who share an address, as all on this machine do, are queued separately.
        """
        return self._session() or request.remote_addr or ""

    def new_visitor(self) -> str:
        """Return a signed identifier for a visit."""
        name = secrets.token_hex(16)
        return f"{name}-{self._sign(name)}"

    def is_visitor(self, name: Any) -> bool:
        """Return whether an identifier was signed by this server."""
        if not isinstance(name, str) or len(name) > 200:
            return False
        plain, _, signature = name.partition("-")
        return hmac.compare_digest(signature.encode(), self._sign(plain).encode())

    def _session(self) -> str:
        given = request.cookies.get(_SESSION, "")
        return given if self.is_visitor(given) else ""

    def _sign(self, name: str) -> str:
        return hmac.new(self._secret, name.encode(), "sha256").hexdigest()

    def _matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())

    def _admit(self) -> Any:
        """Store the link's token in a cookie and redirect to the address without it."""
        given = request.args.get("token", "")
        rest = request.args.to_dict()
        rest.pop("token", None)
        query = f"?{urlencode(rest)}" if rest else ""
        answer = redirect(f"/{request.path.lstrip('/' + chr(92))}{query}")
        if self._token is not None and self._matches(given):
            answer.set_cookie(_COOKIE, given, httponly=True, samesite="Strict")
        return answer

    def _knows(self, host: str) -> bool:
        name = (urlsplit(f"//{host}").hostname or "").lower()
        if name in self._names:
            return True
        try:
            return bool(ipaddress.ip_address(name)) and self._numbers
        except ValueError:
            return False


def _policy(app: Dash) -> str:
    """Return the Content-Security-Policy: this server's files and Dash's inline scripts.

    Inline scripts are allowed by hash. Inline styles are allowed: plotly and Dash set them.
    """
    scripts = " ".join(app.csp_hashes())
    return (
        f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
        "worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

"""Who may ask the explorer: known names of this machine, its own pages, holders of its token."""

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
    """Return whether an address to listen on lets only this machine in."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses requests that no page of the explorer makes.

    A page of a stranger may point a name of his own at this machine (DNS rebinding) or send
    requests across origins: the Host header must be a name of this machine, and the Origin of what
    changes something that same host. Names cannot be chosen for numbers, so addresses in numbers
    pass when the explorer listens beyond this machine. There, what makes the machine work needs the
    token too.

    Args:
        host: The address that is listened on.
        token: What a visitor must bring to start measurements; None lets everybody.
        names: Further names of this machine.
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
        """Look at every request to an application, and at every answer."""
        server: Flask = app.server  # type: ignore[assignment]
        server.config["MAX_CONTENT_LENGTH"] = _MAX_REQUEST

        @server.before_request
        def _ask() -> Any:
            if not self._knows(request.host):
                abort(421, "This name is not one of the explorer's; see --name.")
            origin = request.headers.get("Origin")
            foreign = origin is not None and urlsplit(origin).netloc.lower() != request.host.lower()
            if foreign or (
                request.method != "GET" and request.headers.get("Sec-Fetch-Site") == "cross-site"
            ):
                abort(403, "Another site asked for this.")
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
            return ("This is no request of the explorer's pages.", 400) if known else ("", 500)

    def may_start(self) -> bool:
        """Return whether the present visitor may make the machine work."""
        return self._token is None or self._matches(request.cookies.get(_COOKIE, ""))

    def user(self) -> str:
        """Return whose turn a measurement takes: a browser's, or that of an address without one.

        People behind one address, as all on this machine are, do not wait for each other's.
        """
        return self._session() or request.remote_addr or ""

    def new_visitor(self) -> str:
        """Return a name for a visit, which nobody else can make."""
        name = secrets.token_hex(16)
        return f"{name}-{self._sign(name)}"

    def is_visitor(self, name: Any) -> bool:
        """Return whether a name was given to a visit here."""
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
        """Keep the token of a link as a cookie, and go on without it in the address."""
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
    """Return what pages may load: this server's files, and the inline scripts that Dash writes.

    Those are named by their hashes. Styles stay free: plotly and Dash set them on elements.
    """
    scripts = " ".join(app.csp_hashes())
    return (
        f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
        "worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

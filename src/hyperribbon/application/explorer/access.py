"""Access to the explorer: a token for every request, and security headers."""

from __future__ import annotations

import hmac
import logging
from functools import cache
from typing import Any
from urllib.parse import urlencode, urlsplit

from dash import Dash
from flask import Flask, Response, abort, redirect, request
from werkzeug.exceptions import HTTPException

_MAX_REQUEST = 30_000_000  # an uploaded file of 20 MB, as text
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_LOG = logging.getLogger(__name__)


def protect(app: Dash, token: str) -> None:
    """Require an access token for every request, and add security headers to every response.

    An address with `?token=` sets a cookie and redirects to the address without it; a request
    without token and cookie is answered with status 401. Browsers keep cookies by host name, so a
    page that points its own name at this machine (DNS rebinding) does not get it. A request that
    another site makes in a visitor's browser is rejected by its Origin header.

    Args:
        app: The application, with all its callbacks.
        token: The access token.
    """
    server: Flask = app.server  # type: ignore[assignment]
    server.config["MAX_CONTENT_LENGTH"] = _MAX_REQUEST

    @server.before_request
    def _check() -> Any:
        origin = request.headers.get("Origin")
        foreign = origin is not None and urlsplit(origin).netloc.lower() != request.host.lower()
        if foreign or (
            request.method != "GET" and request.headers.get("Sec-Fetch-Site") == "cross-site"
        ):
            abort(403, "Cross-origin request rejected.")
        # Browsers send the cookies of one port to the others of the same host.
        cookie = f"hyperribbon-{request.environ['SERVER_PORT']}"
        given = request.args.get("token", request.cookies.get(cookie, ""))
        if not hmac.compare_digest(given.encode(), token.encode()):
            abort(401, "Open the address that the explorer printed, including its token.")
        if "token" not in request.args:
            return None
        rest = [entry for entry in request.args.items(multi=True) if entry[0] != "token"]
        query = f"?{urlencode(rest)}" if rest else ""
        answer = redirect(f"/{request.path.lstrip('/' + chr(92))}{query}")
        # "Lax", so that a link in a notebook, which is another site, leads here.
        answer.set_cookie(cookie, token, httponly=True, samesite="Lax")
        return answer

    @server.after_request
    def _add_headers(response: Response) -> Response:
        response.headers.update(
            {
                "Content-Security-Policy": policy(),
                "Cross-Origin-Opener-Policy": "same-origin",
                "Cross-Origin-Resource-Policy": "same-origin",
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
                "X-Frame-Options": "DENY",
            }
        )
        return response

    @server.errorhandler(Exception)
    def _fail(error: Exception) -> Any:
        if isinstance(error, HTTPException):
            return error
        _LOG.debug("request refused", exc_info=error)
        known = isinstance(error, _MALFORMED)
        return ("Not a request of the explorer's pages.", 400) if known else ("", 500)

    @cache
    def policy() -> str:
        """Return the access policy (Content-Security-Policy): this server's files, Dash's scripts.

        Inline scripts are allowed by hash. Inline styles are allowed: plotly and Dash set them.
        """
        scripts = " ".join(app.csp_hashes())
        return (
            f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
            "worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

"""Who may ask, and what a browser may do with the answer.

The page listens on loopback, where every program of this machine reaches it, and so does every web
site that the user's browser shows:

- DNS rebinding: a site's name that suddenly points to 127.0.0.1 makes the site's scripts readers of
  the page. So the `Host` of a request must be an address, `localhost`, or the name that the page
  was told to listen on; a site's name is refused.
- Cross-site requests: an order (POST) needs the page's token in a header of its own. A foreign site
  knows no token, and may not even send such a header: no answer ever allows it to (no CORS).
- Injection: names of operators, errors and events are users' text. The page writes them as text
  only; should that fail once, the Content-Security-Policy keeps scripts out, and every request
  within this host.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Where an order carries the token.
TOKEN_HEADER = "x-headrace-token"
_TOKEN_BYTES = 24

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def new_token() -> str:
    """Make the token of a page."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


class Guard:
    """The application behind it gets only requests that may be answered.

    Args:
        names: hosts by name that the page was told to listen on.
        token: of orders; empty: there are none.
    """

    def __init__(self, app: ASGIApp, *, names: Sequence[str], token: str) -> None:
        self._app = app
        self._names = {"localhost", *(name.lower() for name in names)}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        app = self._app if refusal is None else refusal
        await app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if not self._is_ours(headers.get("host", "")):
            return _refused(421, "this page is not of that host; open it by its address")
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return _refused(405, "only GET and POST")
        given = headers.get(TOKEN_HEADER, "")
        if not self._token or not hmac.compare_digest(given.encode(), self._token.encode()):
            return _refused(403, "an order needs the page's token; open the link that was printed")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _refused(415, "an order is application/json")
        return None

    def _is_ours(self, host: str) -> bool:
        name = host.lower()
        # With a port or without, and an IPv6 address in brackets.
        name = name[1:].partition("]")[0] if name[:1] == "[" else name.partition(":")[0]
        return name in self._names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refused(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)

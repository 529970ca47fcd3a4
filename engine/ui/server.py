"""The page's server: a socket that is bound before the job starts, and uvicorn in a thread.

Starlette, uvicorn and prometheus-client come with the extra `ui` and are imported when a page is
asked for, not before.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

from ..contract.errors import AddressUnreachable
from ..contract.extras import extra
from ..contract.page_address import PORT, PageAddress

#: How many ports after the usual one are tried where that is taken.
_PORTS = 20
#: How long clients may take to get their last message.
_CLOSE_S = 2


def bind(address: PageAddress) -> socket.socket:
    """Listen at an address. Raises: UserError without the extra; AddressUnreachable."""
    with extra("ui", "the page"):
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    if address.port is not None:
        return _listen(address.host, address.port)
    for port in range(PORT, PORT + _PORTS):
        try:
            return _listen(address.host, port)
        except AddressUnreachable:
            continue
    return _listen(address.host, 0)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise AddressUnreachable(
            f"the page cannot listen at {host}:{port} ({error.strerror or error}); name another"
            " port with ui=PORT"
        ) from error


class Server:
    """Serves an application at a socket, in a thread, until `close`."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        import uvicorn

        self._socket = listening
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http="h11",
            ws="none",
            server_header=False,
            limit_concurrency=128,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="page-server", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The page's address, as a browser of this machine takes it."""
        return url_of(self._socket)

    def close(self) -> None:
        """End the server; clients get what is under way."""
        self._server.should_exit = True
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S + 5)
        self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


def url_of(listening: socket.socket) -> str:
    """Return the address of a page, with the slash."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

"""The option `ui`: where a job's page listens."""

from __future__ import annotations

from typing import NamedTuple

from .errors import UserError

LOOPBACK = "127.0.0.1"
#: The usual port of a page; where it is taken, one of the next ones.
PORT = 4323


class PageAddress(NamedTuple):
    """An address to listen at; `port` None: the usual one or one of the next, 0: any."""

    host: str = LOOPBACK
    port: int | None = None


def page_address(stated: object, *, name: str = "ui") -> PageAddress | None:
    """Read what a user states: True, a port, or HOST:PORT; None: no page. Raises: UserError."""
    if isinstance(stated, bool):
        return PageAddress() if stated else None
    text = str(stated)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    wrong = not port.isdecimal() or int(port) >= 1 << 16 or (bool(colon) and not host)
    if wrong or not isinstance(stated, int | str):
        raise UserError(
            f"{name}={stated!r} is no address of a page; write a port, HOST:PORT, or true for"
            f" {LOOPBACK}:{PORT}"
        )
    return PageAddress(host or LOOPBACK, int(port))

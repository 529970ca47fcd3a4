"""Spark master URLs, checked before Java starts: Spark itself takes a minute and a page of stack
trace to refuse one, and waits 70 s for the answer of a port that belongs to another program.

A master is asked for a stream that it does not have, as Spark's own clients ask for files: it says
so, whether it wants authentication or not. A port that ends the connection without a word may be a
master that speaks TLS, so Spark has to find out.

Not here: whether a Kubernetes or YARN master answers, which only Spark knows how to ask.
"""

from __future__ import annotations

import re
import socket
import struct

from ..contract.errors import AddressUnreachable, UserError

_SPARK = "spark://"
_NUMBER = r"\s*(\*|[1-9]\d*)\s*"
#: Masters beside `spark://`, as Spark spells them.
_OTHERS = re.compile(
    rf"local(\[{_NUMBER}(,\s*\d+\s*)?\])?"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|yarn"
    r"|k8s://.+"
)
_HOST = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.%]+\]):(\d{1,5})")
_CONNECT_S = 3.0
#: A master on a machine that is busy has taken two.
_ANSWER_S = 10.0
#: A message of Spark's transport: length, kind, content; kinds of the request and of its refusal.
_FRAME = struct.Struct(">qb")
_STREAM_REQUEST, _STREAM_FAILURE = 6, 8
_STREAM = b"/files/headrace"


def check_master(master: str) -> None:
    """Check a master's spelling, and that a `spark://` one answers.

    Raises: UserError; AddressUnreachable.
    """
    if not master.startswith(_SPARK):
        if not _OTHERS.fullmatch(master):
            raise _misspelt(master)
        return
    failures = []
    for place in master.removeprefix(_SPARK).split(","):
        found = _HOST.fullmatch(place)
        if found is None or not 0 < int(found[2]) < 1 << 16:
            raise _misspelt(master)
        failures.append(_failure(found[1].strip("[]"), int(found[2])))
    if "" not in failures:
        raise AddressUnreachable(
            f"the Spark master {master} cannot be reached: {'; '.join(failures)}"
        )


def _failure(host: str, port: int) -> str:
    """Connect and ask. Returns the reason why no master can be there, or empty."""
    try:
        connection = socket.create_connection((host, port), _CONNECT_S)
    except TimeoutError:
        return f"no answer within {_CONNECT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    with connection:
        connection.settimeout(_ANSWER_S)
        try:
            answer = _answer(connection)
        except TimeoutError:
            return f"port {port} is open, but says nothing to Spark's greeting"
        except OSError:
            answer = b""
    if len(answer) < _FRAME.size or _FRAME.unpack(answer)[1] == _STREAM_FAILURE:
        return ""
    return f"port {port} is open, but belongs to another program"


def _answer(connection: socket.socket) -> bytes:
    """Ask for a stream. Returns the head of the answer, or less if the connection ends before."""
    name = struct.pack(">i", len(_STREAM)) + _STREAM
    connection.sendall(_FRAME.pack(_FRAME.size + len(name), _STREAM_REQUEST) + name)
    head = b""
    while len(head) < _FRAME.size and (more := connection.recv(_FRAME.size - len(head))):
        head += more
    return head


def _misspelt(master: str) -> UserError:
    return UserError(
        f"master={master!r} is no Spark master: write spark://HOST:PORT, local[N], yarn or"
        " k8s://..., or leave it out for Spark in this process"
    )

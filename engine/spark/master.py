"""Spark master URLs, checked before Java starts: Spark itself takes a minute and a page of stack
trace to refuse one.

Not here: whether a Kubernetes or YARN master answers, which only Spark knows how to ask.
"""

from __future__ import annotations

import re
import socket

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
    """Connect. Returns the reason why not, or empty."""
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except TimeoutError:
        return f"no answer within {_CONNECT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _misspelt(master: str) -> UserError:
    return UserError(
        f"master={master!r} is no Spark master: write spark://HOST:PORT, local[N], yarn or"
        " k8s://..., or leave it out for Spark in this process"
    )

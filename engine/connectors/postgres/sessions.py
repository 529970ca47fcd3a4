"""Sessions of earlier writers on the server, found by their names and ended.

The session of a killed worker lives until the server notices: it holds the locks of its rows, and a
command that it has received already still runs, `PREPARE TRANSACTION` too. Every role may end
sessions of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .connection import Connection, Unavailable

_WAIT_S = 10.0
_STEP_S = 0.02

_SESSIONS = """
SELECT pid, application_name::text AS name FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND usename = current_user AND datname = current_database()
  AND starts_with(application_name, 'headrace_')
"""


def end_sessions(connection: Connection, is_over: Callable[[str], bool]) -> None:
    """End every other session of this role whose name `is_over`, and wait until it is gone.

    Raises: Unavailable, when one stays; Refused.
    """
    until = time.monotonic() + _WAIT_S
    while pids := [r["pid"] for r in connection.rows(_SESSIONS) if is_over(r["name"])]:
        if time.monotonic() > until:
            raise Unavailable(f"session {pids[0]} of an earlier writer does not end")
        for pid in pids:
            connection.rows(f"SELECT pg_terminate_backend({pid}) AS told")
        time.sleep(_STEP_S)

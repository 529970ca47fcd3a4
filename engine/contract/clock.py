"""The one clock of the runtime: monotonic nanoseconds, anchored at the wall clock when the process
started.

Anchored, so that readings of several machines can be compared for statistics (start delay,
end-to-end duration); monotonic, so that a jump of the wall clock shifts nothing. No decision that
could lose a record reads it.
"""

from __future__ import annotations

import time

_ANCHOR_NS = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Nanoseconds since 1970, as the wall clock would say had it never been set since this process
    began.
    """
    return _ANCHOR_NS + time.monotonic_ns()

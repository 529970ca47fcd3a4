"""Python's own settings in a worker's process, which keep its threads from waiting for one
another.
"""

from __future__ import annotations

import gc
import sys

#: Beside a thread that computes in pure Python, every hand-over waits this long instead of the
#: default 5 ms.
SWITCH_INTERVAL_S = 0.0005


def hand_over_soon() -> None:
    """Let no thread keep the others waiting much longer than a hand-over costs."""
    sys.setswitchinterval(min(SWITCH_INTERVAL_S, sys.getswitchinterval()))


def freeze_loaded() -> None:
    """Spare the collector everything loaded so far: modules and the program, which live as long as
    the process.

    Now and then the collector looks at every object, with the GIL held: 30 ms and more once Arrow,
    Spark and the engine are imported. Afterwards it looks only at objects that a worker makes at
    work, which are few.
    """
    gc.freeze()

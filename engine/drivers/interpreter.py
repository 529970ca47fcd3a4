"""Settings of a worker's process: those of Python, which keep its threads from waiting for one
another, and Arrow's memory.
"""

from __future__ import annotations

import gc
import os
import sys

import pyarrow as pa

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


def keep_freed_memory() -> None:
    """Let Arrow take its memory from jemalloc, unless `ARROW_DEFAULT_MEMORY_POOL` names another.

    A batch lives for milliseconds. Arrow's own choice, mimalloc, gives its memory back to the
    kernel soon, and takes it anew in huge pages, which the kernel has to fill with zeros.
    """
    chosen = "ARROW_DEFAULT_MEMORY_POOL" in os.environ
    if not chosen and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())

"""A job's standing in a notebook, which is refreshed while cells below go on.

IPython is no dependency: a notebook has imported it. A terminal, IPython's too, cannot change what
it has printed, so there the standing is printed once.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from .watching import Watched, looks_at


def show(handle: Watched, *, look_every_s: float = 1.0) -> threading.Thread | None:
    """Display the handle; in a notebook again and again until the job has ended.

    Returns: the thread that refreshes; None: there is none.
    """
    display = _display()
    if display is None:
        print(handle)
        return None
    thread = threading.Thread(
        target=_refresh,
        args=(handle, display(handle, display_id=True), look_every_s),
        name=f"show-{handle.name}",
        daemon=True,
    )
    thread.start()
    return thread


def _refresh(handle: Watched, shown: Any, look_every_s: float) -> None:
    for _ in looks_at(handle, look_every_s):
        shown.update(handle)
    # How it ended.
    shown.update(handle)


def _display() -> Any:
    """IPython's `display`, in a process that serves a notebook; else None."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):
        return None
    return sys.modules["IPython.display"].display

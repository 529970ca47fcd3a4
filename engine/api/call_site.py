"""Where in the user's program an operator was built, for errors that only the whole graph shows."""

from __future__ import annotations

import sys
from pathlib import Path


def call_site() -> str:
    """Name the innermost line outside headrace: "job.py:17", or "?" if there is none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    if _is_ours(frame.f_globals.get("__name__", "")):
        return "?"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_ours(module: str) -> bool:
    return module == "headrace" or module.startswith("headrace.")

"""Looks at a running job once a second, so that whoever asks first hears since when, and where it
goes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Protocol

from ..contract.errors import JobFailed
from ..contract.outcomes import JobResult
from ..observation.observed import Observation

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


class Watched(Protocol):
    """The job to look at: a `JobHandle`."""

    @property
    def name(self) -> str: ...
    def observe(self) -> Observation: ...
    def wait(self, timeout_s: float | None = None) -> JobResult: ...


def watch(handle: Watched, *, look_every_s: float = _LOOK_EVERY_S) -> threading.Thread:
    """Look at the job in a thread until it ends."""
    thread = threading.Thread(
        target=_watch, args=(handle, look_every_s), name=f"watch-{handle.name}", daemon=True
    )
    thread.start()
    return thread


def looks_at(handle: Watched, look_every_s: float = _LOOK_EVERY_S) -> Iterator[None]:
    """Yield whenever it is time for a look, until the job has ended."""
    while True:
        try:
            handle.wait(look_every_s)
            return
        except TimeoutError:
            yield
        except JobFailed:
            return


def _watch(handle: Watched, look_every_s: float) -> None:
    for _ in looks_at(handle, look_every_s):
        try:
            handle.observe()
        except Exception:
            _log.exception("a look at job %r broke", handle.name)

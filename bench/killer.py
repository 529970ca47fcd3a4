"""Kills the workers of an audited job in its recoveries: each at a moment that is told, each in the
recovery of the one before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, TypeVar, get_args

import headrace as hr
from headrace.engine.coordinator.coordinator_events import NoticeKind

from .audit import AuditedJob, Moment

#: When a kill comes: how far a subtask is, or that the attempt has completed a checkpoint.
Point = Moment | Literal["checkpointed"]
POINTS: tuple[Point, ...] = (*get_args(Moment), "checkpointed")

_POLL_S = 0.004
_PATIENCE_S = 90.0
#: The pause before an attempt that a job to be killed needs, and after a kill the time within which
#: no subtask of the attempt that it ends is opened.
PAUSE_S = 0.4
_ENDED_NS = 300_000_000

T = TypeVar("T")


class Killer(threading.Thread):
    """Kills a worker at each of `points`, each in another attempt; a thread, since the first of
    these begins within a rescale.

    The job waits `PAUSE_S` before each attempt, so that those that a kill ends can be told from
    those that come after it.

    Args:
        since_ns: subtasks that are opened after this time (wall) are of the first of these
            attempts, or a later one.
    """

    def __init__(
        self, handle: hr.JobHandle, audited: AuditedJob, points: Sequence[Point], since_ns: int
    ) -> None:
        super().__init__(daemon=True)
        self._handle = handle
        self._audited = audited
        self._points = points
        self._restarts = handle.status().restarts
        self._failure: Exception | None = None
        #: As given, for the attempt that comes after the last kill.
        self.since_ns = since_ns

    def run(self) -> None:
        """Kill."""
        try:
            for point in self._points:
                # Only the handle's status is of one session, which a rescale replaces when the job
                # runs again: so nothing waits for it here.
                victim = wait_for(partial(self._victims, point))[0]
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                self.since_ns = time.time_ns() + _ENDED_NS
        except Exception as failure:
            self._failure = failure

    def end(self) -> None:
        """Wait until all have died, an attempt has failed of each, and the last runs.

        Raises what went wrong.
        """
        self.join()
        if self._failure is not None:
            raise self._failure
        wait_for(self._runs_again)

    def _runs_again(self) -> bool:
        """What is told counts, not the phase: that changes a moment earlier."""
        status = self._handle.status()
        if status.restarts < self._restarts + len(self._points):
            return False
        attempts = (NoticeKind.RUNNING, NoticeKind.ATTEMPT_FAILED)
        told = [notice.kind for _, notice in status.notices if notice.kind in attempts]
        return told[-1] is NoticeKind.RUNNING

    def _victims(self, point: Point) -> list[int]:
        """Who may be killed now; nobody as long as the moment has not come."""
        moment = "restored" if point == "checkpointed" else point
        marks = [mark for mark in self._audited.marks(moment) if mark.opened_ns > self.since_ns]
        if point == "checkpointed":
            taken = [c.created_ms * 1_000_000 for c in self._handle.status().checkpoints]
            marks = [mark for mark in marks if any(ns > mark.ns for ns in taken)]
        return [mark.pid for mark in marks]


def wait_for(condition: Callable[[], T]) -> T:
    """Wait until `condition` returns something true, and return that.

    Raises: RuntimeError when it does not.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"no progress for {_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)
    return found

"""The stop that a user asks for, until the job ends or its last savepoint fails.

`Stop` owns the request, the answer that is due to the user, and the time from which the last
checkpoint may overtake. The first stop counts: neither a half drained job nor a last cut can be
undone.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.channels.events import CheckpointMode

from .coordinator_events import CoordinatorEffect, RequestAnswered, StopKind, StopRequested


class Stop:
    """At most one stop of one job.

    Args:
        last_aligned_ns: the last checkpoint becomes unaligned so long after the stop; None: never.

    Attributes:
        asked: the stop; None: nobody has asked, or its savepoint failed.
        overtake_at_ns: when the last checkpoint is to overtake; None: never, or it does already.
    """

    def __init__(self, last_aligned_ns: int | None) -> None:
        self.asked: StopRequested | None = None
        self.overtake_at_ns: int | None = None
        self._last_aligned_ns = last_aligned_ns
        #: Request of the user who waits for the savepoint with which the job ends.
        self._request: int | None = None

    @property
    def drains(self) -> bool:
        """The input of the job is to end first."""
        return self.asked is not None and self.asked.kind is StopKind.DRAIN

    @property
    def cuts(self) -> bool:
        """The job is to end with a checkpoint of where it stands."""
        return self.asked is not None and not self.drains

    def ask(self, event: StopRequested, now_ns: int) -> None:
        """Take the first stop."""
        assert self.asked is None, "a second stop"
        self.asked, self._request = event, event.request
        waits = event.kind is StopKind.WITH_CHECKPOINT and event.savepoint is None
        if waits and event.mode is None and self._last_aligned_ns is not None:
            self.overtake_at_ns = now_ns + self._last_aligned_ns

    def overtakes(self, now_ns: int) -> bool:
        """Whether the last checkpoint is late; if so, it is unaligned from now on."""
        if self.overtake_at_ns is None or self.overtake_at_ns > now_ns:
            return False
        assert self.asked is not None, "the time of a stop"
        self.overtake_at_ns = None
        self.asked = replace(self.asked, mode=CheckpointMode.UNALIGNED)
        return True

    def failed(self, reason: str) -> list[CoordinatorEffect]:
        """Forget the stop, since its savepoint failed, and tell the user."""
        self.asked = None
        return self.answer(None, reason)

    def answer(self, savepoint: int | None, failure: str = "") -> list[CoordinatorEffect]:
        """Answer the user, if one waits."""
        request, self._request = self._request, None
        return [] if request is None else [RequestAnswered(request, savepoint, failure)]

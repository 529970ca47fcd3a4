"""What each attempt of a job started from, as the job itself tells: does every failure go on from
the newest checkpoint there was?

Notices are numbered in the order in which things happened, so that whatever checkpoint was told of
before an attempt was complete when that began.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.engine.coordinator.coordinator_events import NoticeKind
from headrace.engine.drivers.coordinator_driver import Status
from headrace.recovery.sizes import held_on, sizes_of

_RUNS = re.compile(r"attempt (\d+) runs from (?:chk-(\d+)|the beginning)")


@dataclass(frozen=True, slots=True)
class Restore:
    """The beginning of one attempt.

    Attributes:
        attempt: its epoch.
        checkpoint: number of what it started from; None: the beginning.
        newest: number of the newest complete checkpoint then; None: there was none.
        inflight_records: that the checkpoint held.
        replay_records: those of them that had been restored before, and not been worked on since.
    """

    attempt: int
    checkpoint: int | None
    newest: int | None
    inflight_records: int
    replay_records: int

    @property
    def stale(self) -> bool:
        """It went further back than it had to."""
        return self.checkpoint != self.newest


def restores(status: Status, since: int = 0) -> list[Restore]:
    """The beginnings of the attempts that began to run after notice `since`, in order."""
    checkpoints = {c.checkpoint: c for c in status.checkpoints}
    newest: int | None = None
    found = []
    for number, notice in status.notices:
        if notice.kind is NoticeKind.CHECKPOINT and notice.checkpoint is not None:
            newest = notice.checkpoint.checkpoint
        if notice.kind is not NoticeKind.RUNNING or number <= since:
            continue
        told = _RUNS.fullmatch(notice.text)
        assert told is not None, notice.text
        start = None if told[2] is None else int(told[2])
        metadata = None if start is None else checkpoints.get(start)
        held = 0 if metadata is None else sizes_of(metadata).inflight_records
        left = 0
        if metadata is not None:
            left = sum(held_on(subtask, "replay").records for subtask in metadata.subtasks)
        found.append(Restore(int(told[1]), start, newest, held, left))
    return found

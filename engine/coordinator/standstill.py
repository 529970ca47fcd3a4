"""Notices about a job that stands still: records wait, and nobody works.

Checkpoints of such a job may go on completing, since barriers overtake and need no room. So the
numbers of heartbeats are watched. A job stands still when for half a minute no record has been
read, worked on or put out, no subtask has been busy, and a subtask that has work has no room for
its results. Users hear of it once, and once more when the job goes on.

Nothing is concluded from silence: a worker whose heartbeats are late may be at work. A subtask
without room is asked for, since rows may wait for a full batch, and calls for their answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..contract.execution import ExecutionPlan
from ..contract.messages import SubtaskNumbers
from .coordinator_events import CoordinatorEffect, Notice, NoticeKind

#: So long nothing happens before users are told.
_PATIENCE_NS = 30_000_000_000
#: Numbers older than this tell nothing.
_RECENT_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class _Heard:
    """The last numbers of a subtask.

    Attributes:
        lacks_room: it spent most of the time since the numbers before without room.
    """

    numbers: SubtaskNumbers
    at_ns: int
    lacks_room: bool = False


class Standstill:
    """Watches one job, attempt by attempt."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._heard: dict[tuple[int, int], _Heard] = {}
        self._since_ns = 0
        self._told = False

    def begin(self, now_ns: int) -> None:
        """A new attempt begins."""
        self._heard.clear()
        self._since_ns, self._told = now_ns, False

    def heard(self, numbers: Iterable[SubtaskNumbers], now_ns: int) -> list[CoordinatorEffect]:
        """A heartbeat came."""
        moves = [self._moves(each, now_ns) for each in numbers]
        if any(moves):
            waited_s, told = (now_ns - self._since_ns) // 10**9, self._told
            self._since_ns, self._told = now_ns, False
            text = f"the job goes on, after {waited_s} s without progress"
            return [Notice(NoticeKind.WARNING, text)] if told else []
        if self._told or now_ns - self._since_ns < _PATIENCE_NS or not self._hears_all(now_ns):
            return []
        stuck = sorted({place[0] for place, one in self._heard.items() if one.lacks_room})
        self._told = bool(stuck)
        return [Notice(NoticeKind.WARNING, self._text(stuck, now_ns))] if stuck else []

    def _moves(self, numbers: SubtaskNumbers, now_ns: int) -> bool:
        """Note the numbers of a subtask. Return whether it has made progress."""
        place = (numbers.task, numbers.subtask)
        before = self._heard.get(place)
        if before is None:
            self._heard[place] = _Heard(numbers, now_ns)
            return True
        elapsed_ns, last = now_ns - before.at_ns, before.numbers
        waited_ns = numbers.backpressured_ns - last.backpressured_ns
        self._heard[place] = _Heard(numbers, now_ns, lacks_room=2 * waited_ns > elapsed_ns)
        rows = (numbers.rows_in, numbers.rows_out) != (last.rows_in, last.rows_out)
        return rows or 2 * (numbers.busy_ns - last.busy_ns) > elapsed_ns

    def _hears_all(self, now_ns: int) -> bool:
        recent = [one for one in self._heard.values() if now_ns - one.at_ns <= _RECENT_NS]
        return len(recent) == sum(task.parallelism for task in self._plan.tasks)

    def _text(self, stuck: list[int], now_ns: int) -> str:
        """Say which tasks wait for room, and where."""
        tasks, edges = self._plan.tasks, self._plan.edges
        queued = sum(one.numbers.queued_bytes for one in self._heard.values())
        waits = [
            f"{tasks[task].name} for room towards "
            + " and ".join(tasks[edges[edge].consumer].name for edge in tasks[task].outputs)
            for task in stuck
        ]
        return (
            f"no record has moved for {(now_ns - self._since_ns) // 10**9} s, while {queued:,}"
            f" bytes wait: {', '.join(waits)}; stop the job with an unaligned savepoint, and start"
            " it from there with a larger network.window"
        )

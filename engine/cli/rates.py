"""From the totals of workers to the present: rows per second, and shares of time.

Totals come with heartbeats, about once a second and from each worker in its own beat, so rates are
taken over a few seconds. A new attempt starts its totals at zero; looks at the attempt before are
forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.execution import ExecutionPlan
from ..drivers.status import Status

_WINDOW_NS = 4_000_000_000
#: Looks closer together than this say nothing new.
_APART_NS = 500_000_000
#: A task that is busy for less of its time is no bottleneck.
_BUSY_SHARE_MIN = 0.5


@dataclass(frozen=True, slots=True)
class TaskRates:
    """A task's rates at the moment, all its subtasks together.

    Attributes:
        task: its name: the operators of the chain.
        busy: share of the time in work, 0 to 1; `backpressured`: waiting for room behind it; the
            rest is idle.
        queued_bytes: waiting in its queues now.
        rows: taken in since the attempt began (by a source: given out).
    """

    task: str
    subtasks: int
    in_per_s: float
    out_per_s: float
    busy: float
    backpressured: float
    queued_bytes: int
    rows: int

    @property
    def idle(self) -> float:
        """Share of the time without anything to do."""
        return max(0.0, 1.0 - self.busy - self.backpressured)


@dataclass(frozen=True, slots=True)
class _Totals:
    rows_in: int = 0
    rows_out: int = 0
    busy_ns: int = 0
    backpressured_ns: int = 0
    idle_ns: int = 0
    queued_bytes: int = 0


class Meter:
    """Keeps the latest looks at a job and computes rates between them."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._epoch = -1
        #: (time, totals by task), oldest first.
        self._looks: deque[tuple[int, list[_Totals]]] = deque()
        self._latest: list[_Totals] = [_Totals() for _ in plan.tasks]

    def look(self, status: Status, now_ns: int) -> None:
        """Take in a status."""
        if status.epoch != self._epoch:
            self._epoch = status.epoch
            self._looks.clear()
            self._latest = [_Totals() for _ in self._plan.tasks]
        # The end of an attempt takes its numbers away; the last ones are still worth showing.
        if status.numbers:
            self._latest = [self._totals(status, task.index) for task in self._plan.tasks]
        if self._looks and now_ns - self._looks[-1][0] < _APART_NS:
            return
        self._looks.append((now_ns, self._latest))
        while len(self._looks) > 2 and now_ns - self._looks[0][0] > _WINDOW_NS:
            self._looks.popleft()

    def rates(self) -> list[TaskRates]:
        """One entry per task, in the plan's order."""
        (then_ns, then), (now_ns, now) = self._looks[0], self._looks[-1]
        elapsed_s = (now_ns - then_ns) / 1e9
        return [
            _rates(task.name, task.parallelism, before, after, elapsed_s)
            for task, before, after in zip(self._plan.tasks, then, now, strict=True)
        ]

    def _totals(self, status: Status, task: int) -> _Totals:
        parts = [numbers for key, numbers in status.numbers.items() if key[0] == task]
        return _Totals(
            sum(part.rows_in for part in parts),
            sum(part.rows_out for part in parts),
            sum(part.busy_ns for part in parts),
            sum(part.backpressured_ns for part in parts),
            sum(part.idle_ns for part in parts),
            sum(part.queued_bytes for part in parts),
        )


def slowest(rates: Sequence[TaskRates]) -> TaskRates | None:
    """Return the bottleneck: the busiest task, if no other task holds it back; None if none is."""
    candidates = [
        task for task in rates if task.busy >= _BUSY_SHARE_MIN and task.busy > task.backpressured
    ]
    return max(candidates, key=lambda task: task.busy, default=None)


def _rates(
    name: str, subtasks: int, before: _Totals, after: _Totals, elapsed_s: float
) -> TaskRates:
    busy = max(0, after.busy_ns - before.busy_ns)
    backpressured = max(0, after.backpressured_ns - before.backpressured_ns)
    idle = max(0, after.idle_ns - before.idle_ns)
    spent = max(1, busy + backpressured + idle)
    return TaskRates(
        task=name,
        subtasks=subtasks,
        in_per_s=_per_s(after.rows_in - before.rows_in, elapsed_s),
        out_per_s=_per_s(after.rows_out - before.rows_out, elapsed_s),
        busy=busy / spent,
        backpressured=backpressured / spent,
        queued_bytes=after.queued_bytes,
        rows=after.rows_in or after.rows_out,
    )


def _per_s(rows: int, elapsed_s: float) -> float:
    return max(0, rows) / elapsed_s if elapsed_s > 0 else 0.0

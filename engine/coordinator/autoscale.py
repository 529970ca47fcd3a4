"""When a job should go on at another parallelism: a pure policy machine.

Looks go in, at most one order comes out. Up: for `after_ns` without a break some task was busy
nearly all the time while a task before it was backpressured; the parallelism is doubled, up to
`most`. Down: for `idle_after_ns` no task was backpressured, and the busiest would still have been
half idle on half the subtasks; the parallelism is halved, down to `least`. So a job is not scaled
down under the load for which it was scaled up. No order follows a rescale, successful or not, for
`pause_ns`.

Shares are taken between two looks, over a task's subtasks; a new attempt starts totals anew.

Not here: how much is gained (a task that does not scale is scaled in vain, up to `most`); whether
there is room.

Source: the idea of DS2 (Kalavri et al. 2018), busy against waiting time; deviation: steps of two
instead of a model of rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..contract.messages import SubtaskNumbers

#: A bottleneck is busy for this share of its time, while a task before it waits for the second.
BUSY_SHARE = 0.75
BACKPRESSURED_SHARE = 0.3
#: A job is idle if its busiest task stays below this share, and nothing waits.
IDLE_SHARE = 0.25
_WAITING_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class AutoscaleRules:
    """Settings of the policy. Times in nanoseconds."""

    least: int
    most: int
    after_ns: int
    idle_after_ns: int
    pause_ns: int


@dataclass(frozen=True, slots=True)
class Looked:
    """A look at the job: attempt, parallelism, totals of subtasks since the attempt began."""

    epoch: int
    parallelism: int
    numbers: Iterable[SubtaskNumbers]


@dataclass(frozen=True, slots=True)
class RescaleEnded:
    """The ordered rescale is done, or has failed."""


AutoscaleEvent = Looked | RescaleEnded


@dataclass(frozen=True, slots=True)
class _Totals:
    busy_ns: int = 0
    backpressured_ns: int = 0
    idle_ns: int = 0


class Autoscaler:
    """Decides; the driver looks and rescales."""

    def __init__(self, rules: AutoscaleRules) -> None:
        assert 1 <= rules.least <= rules.most, rules
        self._rules = rules
        self._epoch = -1
        self._before: dict[int, _Totals] = {}
        #: Since when, without a break, the job has been under pressure, or idle.
        self._pressed_ns: int | None = None
        self._idle_ns: int | None = None
        self._not_before_ns = 0
        self._ordered = False

    def step(self, event: AutoscaleEvent, now_ns: int) -> int | None:
        """Take one event; returns the parallelism to go on at, or None.

        No other order comes before `RescaleEnded`.
        """
        if isinstance(event, RescaleEnded):
            self._ordered = False
            self._not_before_ns = now_ns + self._rules.pause_ns
            self._forget()
            return None
        shares = self._shares(event)
        if self._ordered or not shares:
            return None
        pressed, idle = _pressed(shares), _idle(shares)
        self._pressed_ns = (self._pressed_ns or now_ns) if pressed else None
        self._idle_ns = (self._idle_ns or now_ns) if idle else None
        order = self._order(event.parallelism, now_ns)
        self._ordered = order is not None
        return order

    def _order(self, parallelism: int, now_ns: int) -> int | None:
        rules = self._rules
        if now_ns < self._not_before_ns:
            return None
        if self._pressed_ns is not None and now_ns - self._pressed_ns >= rules.after_ns:
            wanted = min(parallelism * 2, rules.most)
            return wanted if wanted > parallelism else None
        if self._idle_ns is not None and now_ns - self._idle_ns >= rules.idle_after_ns:
            wanted = max(parallelism // 2, rules.least)
            return wanted if wanted < parallelism else None
        return None

    def _shares(self, look: Looked) -> list[tuple[float, float]]:
        """(busy, backpressured) of each task since the last look of the same attempt."""
        totals: dict[int, _Totals] = {}
        for n in look.numbers:
            sum_ = totals.get(n.task, _Totals())
            totals[n.task] = _Totals(
                sum_.busy_ns + n.busy_ns,
                sum_.backpressured_ns + n.backpressured_ns,
                sum_.idle_ns + n.idle_ns,
            )
        before, self._before = self._before, totals
        if look.epoch != self._epoch:
            self._epoch = look.epoch
            self._forget()
            return []
        if before.keys() != totals.keys():
            return []
        found = (_share(before[task], now) for task, now in sorted(totals.items()))
        return [share for share in found if share is not None]

    def _forget(self) -> None:
        self._pressed_ns = self._idle_ns = None


def _share(before: _Totals, now: _Totals) -> tuple[float, float] | None:
    busy = now.busy_ns - before.busy_ns
    waiting = now.backpressured_ns - before.backpressured_ns
    total = busy + waiting + now.idle_ns - before.idle_ns
    return None if total <= 0 else (busy / total, waiting / total)


def _pressed(shares: list[tuple[float, float]]) -> bool:
    busiest = max(busy for busy, _ in shares)
    waiting = max(backpressured for _, backpressured in shares)
    return busiest >= BUSY_SHARE and waiting >= BACKPRESSURED_SHARE


def _idle(shares: list[tuple[float, float]]) -> bool:
    return all(busy <= IDLE_SHARE and waiting <= _WAITING_SHARE for busy, waiting in shares)

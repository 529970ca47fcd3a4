"""Computes observations of a job from its driver's looks.

Workers tell totals, about once a second and each in its own beat. A subtask's busy, backpressured
and idle time add up to the time between two of its totals, so they are the clock by which its rates
are taken, over some seconds. A new attempt starts its totals at zero; looks at the attempt before
are forgotten, and its last numbers are shown until there are new ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK
from headrace.recovery.sizes import state_bytes

from ..contract.execution import EdgePlan, ExecutionPlan, TaskPlan
from ..contract.messages import SubtaskNumbers
from ..contract.options import RunOptions
from ..drivers.status import Status
from ..worker.calls import quantile_ms
from .checkpoints import checkpoints_of
from .explain import explain
from .facts import (
    Facts,
    Span,
    awaited,
    call_counts,
    elapsed_of,
    gil_share,
    operator_shares,
    storage_wait,
)
from .latency import Waiting, latency_ms
from .observed import (
    EdgeObserved,
    Finding,
    Observation,
    SinkObserved,
    SubtaskObserved,
    TaskObserved,
    WorkerObserved,
)

#: Rates are means over so long.
_WINDOW_NS = 4_000_000_000
#: Looks closer together than this say nothing new.
_APART_NS = 500_000_000
#: Observations that the explanation goes by.
_REMEMBERED = 60
#: A look that nobody has explained yet.
_UNEXPLAINED = Finding("ok", "none", "")

Place = tuple[int, int]
Numbers = Mapping[Place, SubtaskNumbers]
_NOTHING = SubtaskNumbers(0, 0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is set for a run, as far as observations show it."""

    runner: str = ""
    mode: str | None = None
    deliveries: Mapping[str, str] = field(default_factory=dict)
    window_bytes: int | None = None


class Observer:
    """Looks at one plan as it runs. Used by one thread at a time."""

    def __init__(self, plan: ExecutionPlan, setting: Setting | None = None) -> None:
        self._plan = plan
        self._setting = setting or Setting()
        self._epoch = -1
        #: (time, numbers), oldest first.
        self._looks: deque[tuple[int, Numbers]] = deque()
        self._latest: Numbers = {}
        #: {task: numbers then and now of each subtask}.
        self._spans: dict[int, list[Span]] = {}
        self._before: deque[Observation] = deque(maxlen=_REMEMBERED)
        self._started_ms: int | None = None

    def look(self, status: Status, now_ns: int, wall_ns: int) -> Observation:
        """Compute an observation.

        Args:
            now_ns: a clock that never goes back; `wall_ns`: the present, since 1970.
        """
        self._take(status, now_ns)
        self._spans = {task.index: self._spans_of(task) for task in self._plan.tasks}
        observation = self._observation(status, wall_ns)
        facts = self._facts(status, wall_ns // 1_000_000)
        finding = explain(observation, self._before, facts)
        explained = replace(observation, finding=finding)
        self._before.append(explained)
        return explained

    def _take(self, status: Status, now_ns: int) -> None:
        if status.epoch != self._epoch:
            self._epoch = status.epoch
            self._looks.clear()
        # The end of an attempt takes its numbers away; the last ones are still worth showing.
        if status.numbers:
            self._latest = dict(status.numbers)
        if self._looks and now_ns - self._looks[-1][0] < _APART_NS:
            return
        self._looks.append((now_ns, self._latest))
        while len(self._looks) > 2 and now_ns - self._looks[1][0] >= _WINDOW_NS:
            self._looks.popleft()

    def _observation(self, status: Status, wall_ns: int) -> Observation:
        wall_ms = wall_ns // 1_000_000
        p50_ms, p99_ms = latency_ms(self._plan, self._waiting())
        if self._started_ms is None:
            self._started_ms = wall_ms
        tasks = [self._task(task, status, wall_ns) for task in self._plan.tasks]
        return Observation(
            job=self._plan.job,
            phase=status.phase.value,
            at_ms=wall_ms,
            started_ms=self._started_ms,
            attempt=status.epoch,
            restarts=status.restarts,
            runner=self._setting.runner,
            parallelism=max(task.parallelism for task in self._plan.tasks),
            mode=self._setting.mode,
            finding=_UNEXPLAINED,
            tasks=tasks,
            edges=[self._edge(edge) for edge in self._plan.edges],
            checkpoints=checkpoints_of(status, tasks, wall_ms),
            sinks=self._sinks(status, wall_ms),
            workers=_workers(status),
            latency_p50_ms=p50_ms,
            latency_p99_ms=p99_ms,
            completed=status.completed,
        )

    def _facts(self, status: Status, wall_ms: int) -> Facts:
        operators = [operator for task in self._plan.tasks for operator in task.operators]
        return Facts(
            operators={
                task.index: operator_shares(task, self._spans[task.index])
                for task in self._plan.tasks
            },
            gil={index: gil_share(spans) for index, spans in self._spans.items()},
            storage=storage_wait(status, wall_ms),
            awaited=awaited(status, self._plan.tasks, wall_ms),
            window_max_bytes=self._setting.window_bytes,
            sources=frozenset(o.name for o in operators if o.source is not None),
            sinks=frozenset(o.name for o in operators if o.sink is not None),
        )

    def _spans_of(self, task: TaskPlan) -> list[Span]:
        places = [(task.index, subtask) for subtask in range(task.parallelism)]
        known = [(place, self._latest[place]) for place in places if place in self._latest]
        return [(self._then(place, now), now) for place, now in known]

    # --- tasks ------------------------------------------------------------------------------------

    def _task(self, task: TaskPlan, status: Status, wall_ns: int) -> TaskObserved:
        spans = self._spans[task.index]
        known = [now for _, now in spans]
        subtasks = [
            _subtask(span, status.places.get((task.index, span[1].subtask), 0), wall_ns)
            for span in spans
        ]
        counts = _calls_of(task, spans)
        lags = [s.watermark_lag_s for s in subtasks if s.watermark_lag_s is not None]
        count = max(1, len(subtasks))
        return TaskObserved(
            index=task.index,
            name=task.name,
            operators=[operator.name for operator in task.operators],
            kind=_kind(task),
            parallelism=task.parallelism,
            in_per_s=sum(s.in_per_s for s in subtasks),
            out_per_s=sum(s.out_per_s for s in subtasks),
            busy=sum(s.busy for s in subtasks) / count,
            backpressured=sum(s.backpressured for s in subtasks) / count,
            idle=sum(s.idle for s in subtasks) / count,
            queued_bytes=sum(s.queued_bytes for s in subtasks),
            watermark_lag_s=max(lags, default=None),
            state_bytes=_state_of(status, task),
            call_p50_ms=quantile_ms(counts, 0.5),
            call_p99_ms=quantile_ms(counts, 0.99),
            late=sum(each.rows_late for each in known),
            failed=sum(each.rows_failed for each in known),
            subtasks=subtasks,
        )

    def _then(self, place: Place, now: SubtaskNumbers) -> SubtaskNumbers:
        """The oldest numbers that rates go by: all zero at the beginning of an attempt."""
        for _, numbers in self._looks:
            then = numbers.get(place)
            if then is not None and then != now:
                return then
        return _NOTHING

    def _edge(self, edge: EdgePlan) -> EdgeObserved:
        ends = [
            end
            for numbers in self._latest.values()
            for end in (*numbers.inputs, *numbers.outputs)
            if end.edge == edge.index
        ]
        return EdgeObserved(
            key=edge.key,
            producer=edge.producer,
            consumer=edge.consumer,
            partitioner=edge.partitioner.name,
            queued_bytes=sum(end.queued_bytes for end in ends),
            window_bytes=sum(end.window_bytes for end in ends),
        )

    def _waiting(self) -> dict[tuple[int, int], Waiting]:
        """{(edge, consumer's subtask): what waits there, and its rate}."""
        found: dict[tuple[int, int], Waiting] = {}
        for task in self._plan.tasks:
            for then, now in self._spans[task.index]:
                per_s = _per_s(now.rows_in - then.rows_in, elapsed_of(then, now))
                for end in now.inputs:
                    found[end.edge, now.subtask] = Waiting(end.queued_rows, per_s)
        for numbers in self._latest.values():
            for end in numbers.outputs:
                # Shared out evenly: nobody counts the rows of each channel.
                consumers = self._plan.tasks[self._plan.edges[end.edge].consumer].parallelism
                for subtask in range(consumers):
                    waiting = found.get((end.edge, subtask))
                    if waiting is not None:
                        rows = waiting.rows + end.queued_rows / consumers
                        found[end.edge, subtask] = Waiting(rows, waiting.per_s)
        return found

    # --- sinks ------------------------------------------------------------------------------------

    def _sinks(self, status: Status, wall_ms: int) -> list[SinkObserved]:
        return [
            self._sink(task, status, wall_ms)
            for task in self._plan.tasks
            if task.operators[-1].sink is not None
        ]

    def _sink(self, task: TaskPlan, status: Status, wall_ms: int) -> SinkObserved:
        name = task.operators[-1].name
        commit = status.commits.get(name)
        commits = task.operators[-1].committer is not None
        covered = {c.checkpoint: c.created_ms for c in status.checkpoints}
        until_ms = None if commit is None else covered.get(commit.checkpoint, commit.at_ms)
        numbers = [self._latest.get((task.index, i), _NOTHING) for i in range(task.parallelism)]
        return SinkObserved(
            name=name,
            delivery=self._setting.deliveries.get(name, ""),
            last_commit_ms=None if commit is None else commit.at_ms,
            last_commit_checkpoint=None if commit is None else commit.checkpoint,
            open_transactions=status.coordinator.open_transactions.get(name, 0)
            if commits
            else None,
            behind_s=None if until_ms is None else max(0, wall_ms - until_ms) / 1e3,
            records=sum(each.rows_out for each in numbers),
        )


def observer_of(
    plan: ExecutionPlan, options: RunOptions, deliveries: Mapping[str, str]
) -> Observer:
    """Make the observer of a run with these options."""
    checkpoints = options.checkpoints
    mode = None if checkpoints is None else checkpoints.barrier_mode.value
    window_bytes = options.network.window_bytes
    return Observer(plan, Setting(options.runner, mode, deliveries, window_bytes))


def _subtask(span: Span, worker: int, wall_ns: int) -> SubtaskObserved:
    then, now = span
    spent_ns = elapsed_of(then, now)
    busy, backpressured = (
        max(0, part) / spent_ns if spent_ns else 0.0
        for part in (now.busy_ns - then.busy_ns, now.backpressured_ns - then.backpressured_ns)
    )
    return SubtaskObserved(
        subtask=now.subtask,
        worker=worker,
        in_per_s=_per_s(now.rows_in - then.rows_in, spent_ns),
        out_per_s=_per_s(now.rows_out - then.rows_out, spent_ns),
        busy=busy,
        backpressured=backpressured,
        idle=max(0.0, 1.0 - busy - backpressured),
        queued_bytes=now.queued_bytes,
        rows_in=now.rows_in,
        rows_out=now.rows_out,
        watermark_lag_s=_lag_s(now.watermark_ns, wall_ns),
        call_s=now.call_ns / 1e9 if now.call_ns else None,
    )


def _calls_of(task: TaskPlan, spans: Sequence[Span]) -> list[int]:
    """Return the calls of the task's slowest operator, by length."""
    shares = operator_shares(task, spans)
    if not shares:
        return []
    slowest = max(shares, key=lambda name: shares[name])
    return call_counts(spans, [operator.name for operator in task.operators].index(slowest))


def _kind(task: TaskPlan) -> Literal["source", "operator", "sink"]:
    return "source" if task.is_source else "sink" if task.is_sink else "operator"


def _per_s(rows: int, spent_ns: int) -> float:
    return max(0, rows) / (spent_ns / 1e9) if spent_ns else 0.0


def _lag_s(watermark_ns: int, wall_ns: int) -> float | None:
    told = MIN_WATERMARK < watermark_ns < MAX_WATERMARK
    return (wall_ns - watermark_ns) / 1e9 if told else None


def _state_of(status: Status, task: TaskPlan) -> int | None:
    """Bytes of the task's state in the newest complete checkpoint that has the task."""
    for metadata in reversed(status.checkpoints):
        names = [info.name for info in metadata.tasks]
        if task.name in names:
            index = names.index(task.name)
            return sum(state_bytes(s) for s in metadata.subtasks if s.task == index)
    return None


def _workers(status: Status) -> list[WorkerObserved]:
    return [
        WorkerObserved(worker, seen.pid, seen.host, seen.incarnation)
        for worker, seen in sorted(status.seen.items())
    ]

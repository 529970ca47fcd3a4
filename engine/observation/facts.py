"""Facts that a sentence needs and nobody else: where a task's time goes, who keeps the GIL, and how
long checkpoints wait for storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.recovery.metadata import CheckpointMetadata

from ..contract.execution import TaskPlan
from ..contract.messages import SubtaskNumbers
from ..drivers.status import Status
from .checkpoints import places_of, waits_for

#: A call under way that has run for less is as good as over.
_LONG_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class StorageWait:
    """How long a checkpoint waited for storage, after its last subtask had its cut.

    Attributes:
        waited_ms: of `took_ms`, from its trigger to its end, or until now.
        every_ms: from one checkpoint's trigger to the next one's; None: there was one only.
    """

    checkpoint: int
    waited_ms: float
    took_ms: float
    every_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Beside an observation.

    Attributes:
        operators: {task: {operator: share of the time of the task's subtasks in its calls}}.
        gil: {task: the largest share of time for which calls of one subtask kept the GIL}.
        storage: the newest checkpoint that waited for storage; None: there is none.
        awaited: what the oldest checkpoint under way waits for, in words; empty: none is.
        window_max_bytes: the largest credit window of a channel; None: not known.
        sources, sinks: names of these operators.
    """

    operators: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    gil: Mapping[int, float] = field(default_factory=dict)
    storage: StorageWait | None = None
    awaited: str = ""
    window_max_bytes: int | None = None
    sources: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()


Span = tuple[SubtaskNumbers, SubtaskNumbers]


def operator_shares(task: TaskPlan, spans: Sequence[Span]) -> dict[str, float]:
    """Return {operator: share of the subtasks' time in its calls}, one under way included.

    `spans`: numbers then and now, of each subtask.
    """
    elapsed_ns = max(1, sum(elapsed_of(*span) for span in spans))
    spent_ns: dict[int, int] = {}
    for then, now in spans:
        before = {calls.operator: calls.spent_ns for calls in then.calls}
        for calls in now.calls:
            spent = calls.spent_ns - before.get(calls.operator, 0)
            spent_ns[calls.operator] = spent_ns.get(calls.operator, 0) + max(0, spent)
        if now.operator is not None and now.call_ns >= _LONG_NS:
            under_way_ns = min(now.call_ns, elapsed_of(then, now))
            spent_ns[now.operator] = spent_ns.get(now.operator, 0) + under_way_ns
    return {
        task.operators[place].name: min(1.0, spent / elapsed_ns)
        for place, spent in sorted(spent_ns.items())
    }


def gil_share(spans: Sequence[Span]) -> float:
    """Return the largest share of its time for which one subtask's calls kept the GIL."""
    return max(
        (
            min(1.0, max(0, now.gil_ns - then.gil_ns) / max(1, elapsed_of(then, now)))
            for then, now in spans
        ),
        default=0.0,
    )


def call_counts(spans: Sequence[Span], operator: int) -> list[int]:
    """Return the calls of an operator between then and now, by length (`worker/calls.py`)."""
    total: list[int] = []
    for then, now in spans:
        before = next((c.counts for c in then.calls if c.operator == operator), [])
        for calls in now.calls:
            if calls.operator != operator:
                continue
            total += [0] * (len(calls.counts) - len(total))
            for bucket, count in enumerate(calls.counts):
                total[bucket] += count - (before[bucket] if bucket < len(before) else 0)
    return total


def elapsed_of(then: SubtaskNumbers, now: SubtaskNumbers) -> int:
    """Return the time between two totals of a subtask: its three times add up to it."""
    return max(
        0,
        (now.busy_ns + now.backpressured_ns + now.idle_ns)
        - (then.busy_ns + then.backpressured_ns + then.idle_ns),
    )


def storage_wait(status: Status, wall_ms: int) -> StorageWait | None:
    """Return how long the newest checkpoint that says something waited for storage."""
    found = [_stored(metadata) for metadata in status.checkpoints[-1:]]
    for under_way in status.coordinator.under_way:
        # All parts are cut: what is missing is on its way to storage.
        cuts = [status.numbers[p].cut for p in places_of(status, under_way.missing)]
        if cuts and min(cuts) >= under_way.checkpoint:
            took_ms = float(wall_ms - under_way.created_ms)
            found.append(StorageWait(under_way.checkpoint, took_ms, took_ms))
    starts = [c.created_ms for c in status.checkpoints[-4:]]
    every_ms = (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else None
    longest = max(found, key=lambda wait: wait.waited_ms, default=None)
    if longest is None:
        return None
    return StorageWait(longest.checkpoint, longest.waited_ms, longest.took_ms, every_ms)


def _stored(metadata: CheckpointMetadata) -> StorageWait:
    took_ms = metadata.duration_ns / 1e6
    waited_ms = max((s.async_ns for s in metadata.subtasks), default=0) / 1e6
    return StorageWait(metadata.checkpoint, waited_ms, took_ms)


def awaited(status: Status, tasks: Sequence[TaskPlan], wall_ms: int) -> str:
    """Say what the oldest checkpoint under way waits for: `chk-7 has waited 8 s for score #1`."""
    if not status.coordinator.under_way:
        return ""
    oldest = status.coordinator.under_way[0]
    waited_s = (wall_ms - oldest.created_ms) / 1e3
    names = [task.operators[-1].name for task in tasks]
    return f"chk-{oldest.checkpoint} has waited {waited_s:.0f} s for " + waits_for(
        oldest, status, names
    )

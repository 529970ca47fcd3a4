"""A job's latest checkpoints as observations: complete ones, given-up ones, and those under way."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.sizes import held_on, state_bytes

from ..coordinator.coordinator_events import FailedCheckpoint
from ..coordinator.pending import CheckpointUnderWay
from ..drivers.status import Status
from .observed import CheckpointObserved, SubtaskCheckpoint, TaskObserved

#: Of each job.
SHOWN = 60

_SIDES = ("input", "output", "replay")


def checkpoints_of(
    status: Status, tasks: Sequence[TaskObserved], wall_ms: int
) -> list[CheckpointObserved]:
    """Return the latest checkpoints, oldest first; the newest complete one by subtask."""
    complete = status.checkpoints[-SHOWN:]
    newest = complete[-1] if complete else None
    known = [complete_one(metadata, tasks, parts=metadata is newest) for metadata in complete]
    known += [_failed(notice.failed, notice.at_ms) for _, notice in status.notices if notice.failed]
    known.sort(key=lambda each: (each.started_ms, each.checkpoint))
    names = [task.operators[-1] for task in tasks]
    known += [
        _under_way(each, wall_ms, f"waits for {waits_for(each, status, names)}")
        for each in status.coordinator.under_way
    ]
    return known[-SHOWN:]


def complete_one(
    metadata: CheckpointMetadata, tasks: Sequence[TaskObserved], *, parts: bool = True
) -> CheckpointObserved:
    """Return a complete checkpoint, with its subtasks' parts if asked for.

    `tasks`: of the present, for the rate at which records in flight are worked on.
    """
    inflight = {(s.task, s.index): _inflight(s) for s in metadata.subtasks}
    return CheckpointObserved(
        checkpoint=metadata.checkpoint,
        outcome="completed",
        mode=metadata.mode,
        started_ms=metadata.created_ms,
        duration_ms=metadata.duration_ns / 1e6,
        aligned_estimate_ms=_aligned_ms(metadata, tasks),
        state_bytes=sum(state_bytes(s) for s in metadata.subtasks),
        inflight_bytes=sum(inflight.values()),
        reason=None,
        savepoint=metadata.savepoint,
        subtasks=[_part(s, inflight[s.task, s.index]) for s in metadata.subtasks] if parts else [],
    )


def _part(snapshot: SubtaskSnapshot, inflight_bytes: int) -> SubtaskCheckpoint:
    return SubtaskCheckpoint(
        task=snapshot.task,
        subtask=snapshot.index,
        start_delay_ms=snapshot.start_delay_ns / 1e6,
        alignment_ms=snapshot.alignment_ns / 1e6,
        sync_ms=snapshot.sync_ns / 1e6,
        async_ms=snapshot.async_ns / 1e6,
        state_bytes=state_bytes(snapshot),
        inflight_bytes=inflight_bytes,
    )


def _inflight(snapshot: SubtaskSnapshot) -> int:
    return sum(held_on(snapshot, side).size_bytes for side in _SIDES)


def _aligned_ms(metadata: CheckpointMetadata, tasks: Sequence[TaskObserved]) -> float | None:
    """What an aligned checkpoint would have taken: a barrier waits for all records before it.

    The records in flight before each task, at the rate at which the task works now, along the
    longest way. None: the rate of a task with records in flight is not known.
    """
    if metadata.mode == "aligned":
        return metadata.duration_ns / 1e6
    rates = {(t.index, s.subtask): s.in_per_s for t in tasks for s in t.subtasks}
    waits_s: dict[int, float] = {}
    for snapshot in metadata.subtasks:
        records = sum(held_on(snapshot, side).records for side in _SIDES)
        rate = rates.get((snapshot.task, snapshot.index), 0.0)
        if records and not rate:
            return None
        wait_s = records / rate if records else 0.0
        waits_s[snapshot.task] = max(wait_s, waits_s.get(snapshot.task, 0.0))
    longest_ms = _longest(metadata, waits_s) * 1e3
    return max(longest_ms, metadata.duration_ns / 1e6)


def _longest(metadata: CheckpointMetadata, waits_s: dict[int, float]) -> float:
    """The sum of waits along the longest way from a source to a sink."""
    until_s: dict[int, float] = {}
    for task in sorted(waits_s):  # producers come before their consumers, but for back-edges
        before = [e.producer for e in metadata.edges if e.consumer == task and e.producer < task]
        first_s = max((until_s.get(producer, 0.0) for producer in before), default=0.0)
        until_s[task] = first_s + waits_s[task]
    return max(until_s.values(), default=0.0)


def _failed(failed: FailedCheckpoint, at_ms: int) -> CheckpointObserved:
    return CheckpointObserved(
        checkpoint=failed.checkpoint,
        outcome="failed",
        mode=failed.mode,
        started_ms=failed.created_ms,
        duration_ms=float(max(0, at_ms - failed.created_ms)),
        aligned_estimate_ms=None,
        state_bytes=None,
        inflight_bytes=None,
        reason=failed.reason,
        savepoint=failed.savepoint,
        subtasks=[],
    )


def _under_way(under_way: CheckpointUnderWay, wall_ms: int, reason: str) -> CheckpointObserved:
    return CheckpointObserved(
        checkpoint=under_way.checkpoint,
        outcome="running",
        mode=under_way.mode,
        started_ms=under_way.created_ms,
        duration_ms=float(max(0, wall_ms - under_way.created_ms)),
        aligned_estimate_ms=None,
        state_bytes=None,
        inflight_bytes=None,
        reason=reason,
        savepoint=under_way.savepoint,
        subtasks=[],
    )


def waits_for(under_way: CheckpointUnderWay, status: Status, names: Sequence[str]) -> str:
    """Say what a checkpoint under way waits for: the first subtask without a cut, storage, or its
    metadata. `names`: by task.
    """
    if not under_way.missing:
        return "its metadata"
    late = [
        place
        for place in places_of(status, under_way.missing)
        if status.numbers[place].cut < under_way.checkpoint
    ]
    if not late:
        return "storage"
    # Tasks are in the order of the records: those behind the first wait for its barrier.
    task, subtask = late[0]
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    return f"{names[task]} #{subtask}{more}"


def places_of(status: Status, workers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the places of the subtasks that these workers hold, as far as they told numbers."""
    return sorted(place for place in status.numbers if status.places.get(place) in workers)

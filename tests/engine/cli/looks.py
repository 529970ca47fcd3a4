"""A small plan, and looks at it as it runs."""

from __future__ import annotations

from msgspec import structs

import headrace as hr
from headrace.engine.contract.messages import SubtaskNumbers
from headrace.engine.coordinator.coordinator_events import Notice, NoticeKind
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.status import Status
from headrace.engine.observation.observed import Observation
from headrace.engine.observation.observer import Observer
from headrace.recovery.metadata import CheckpointMetadata

#: Two tasks: "numbers" and "totals -> out".
JOB = hr.Job(
    "looked-at",
    hr.read.sequence(1, name="numbers")
    .key_by("key")
    .aggregate(n=hr.count(), name="totals")
    .write.blackhole(name="out"),
    parallelism=1,
)
PLAN = JOB.plan()

CHECKPOINT = CheckpointMetadata(
    job="looked-at",
    checkpoint=7,
    epoch=1,
    mode="aligned",
    savepoint=False,
    created_ms=0,
    duration_ns=38_000_000,
    max_parallelism=128,
    tasks=[],
    edges=[],
    subtasks=[],
    transactions=[],
)
COMPLETE = Notice(NoticeKind.CHECKPOINT, "chk-7 is complete", CHECKPOINT)
FAILED = Notice(NoticeKind.CHECKPOINT_FAILED, "chk-8 was given up: disk full")


def status_of(
    *numbers: SubtaskNumbers, epoch: int = 1, restarts: int = 0, notices: tuple[Notice, ...] = ()
) -> Status:
    """A look at the job."""
    complete = tuple(n.checkpoint for n in notices if n.checkpoint is not None)
    return Status(
        phase=Phase.RUNNING,
        epoch=epoch,
        restarts=restarts,
        numbers={(n.task, n.subtask): n for n in numbers},
        notices=tuple(enumerate(notices, start=1)),
        checkpoints=complete,
        completed=len(complete),
    )


def observed(
    *numbers: SubtaskNumbers, restarts: int = 0, notices: tuple[Notice, ...] = ()
) -> Observation:
    """An observation of it, by the numbers of one look."""
    status = status_of(*numbers, restarts=restarts, notices=notices)
    return Observer(PLAN).look(status, 0, 0)


def numbers_of(task: int, **known: int) -> SubtaskNumbers:
    """The numbers of a task's only subtask; what is not given is zero."""
    nothing = SubtaskNumbers(task, 0, 0, 0, 0, 0, 0, 0, 0)
    return structs.replace(nothing, **known)


#: The aggregate, hard at work.
BUSY = numbers_of(
    1,
    rows_in=5_000_000,
    rows_out=10,
    busy_ns=3_900_000_000,
    idle_ns=100_000_000,
    queued_bytes=3 << 20,
)

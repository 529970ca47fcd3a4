"""Has a job that had finished anything more to do?

Each source is asked in the driver: a reader takes up the state of all subtasks, and is polled. A
source that gives a record, or may give one later, has grown. Then every subtask is open again, from
the final checkpoint: those without new records end again.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from msgspec.structs import replace as restruct

from headrace.channels.events import MIN_WATERMARK
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.store import Store

from ..contract.execution import ExecutionPlan, OperatorPlan
from ..contract.operators import OperatorContext, SourceStatus
from ..drivers.restore import Restore
from ..storage.snapshots import states_of


def had_finished(metadata: CheckpointMetadata | None) -> bool:
    """The checkpoint was taken after the end of all input."""
    return metadata is not None and all(s.finished for s in metadata.subtasks)


def has_grown(plan: ExecutionPlan, store: Store, metadata: CheckpointMetadata) -> bool:
    """Tell whether some source of the plan has more than the checkpoint covers; a job that was
    drained is over.

    Args:
        store: where the checkpoint lies.
    """
    if metadata.drained:
        return False
    sources = [o for task in plan.tasks for o in task.operators if o.source is not None]
    return any(_has_more(plan, source, store, metadata) for source in sources)


def reopened(restore: Restore) -> Restore:
    """Let every subtask go on where it ended. Event time begins anew with the new records."""
    metadata = restore.metadata
    assert metadata is not None, "nothing is restored"
    opened = restruct(metadata, subtasks=[_opened(s) for s in metadata.subtasks])
    return replace(restore, metadata=opened)


def _opened(snapshot: SubtaskSnapshot) -> SubtaskSnapshot:
    received = [restruct(p, ended=False, watermark=MIN_WATERMARK) for p in snapshot.received]
    return restruct(snapshot, finished=False, received=received, watermark=MIN_WATERMARK)


def _has_more(
    plan: ExecutionPlan, source: OperatorPlan, store: Store, metadata: CheckpointMetadata
) -> bool:
    states = states_of(store, metadata, source.name)
    assert source.source is not None, "a source"
    reader = source.source()
    try:
        context = OperatorContext(plan.job, source.name, 0, 1, plan.max_parallelism, 0)
        reader.open(context)
        if states:
            reader.restore(states)
        polled = reader.poll(1)
        return polled.status is not SourceStatus.END or any(b.num_rows for b in polled.batches)
    except Exception:
        return True  # the run itself meets the failure, and tells it with all that belongs to it
    finally:
        with contextlib.suppress(Exception):
            reader.close()

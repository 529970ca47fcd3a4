"""Whether the program can take the states that a checkpoint holds, asked before the job claims anything.

Names and edges are `recovery/assignment.py`'s; here it is about types. An operator that keeps declared state says by itself
what it could not restore (`ChecksStates`), from the columns alone: no rows are read. Operators that do not, and state that is
damaged, are found out by the restore.
"""

from __future__ import annotations

from headrace.inflight.segment import InvalidTable, schema_from_ipc
from headrace.recovery.layout import store_path
from headrace.recovery.metadata import CheckpointMetadata, StateHandle
from headrace.recovery.store import NotFound, Store, StoreError, StoreRejected

from ..api.errors import StorageUnreachable
from ..operators.base import ChecksStates, RestoredState, StateKind
from ..plan.execution import ExecutionPlan

#: The head of a stored table, in which its columns are; a schema that is longer is left to the restore.
_HEAD_BYTES = 64 * 1024


def check_states(plan: ExecutionPlan, store: Store, metadata: CheckpointMetadata) -> None:
    """Refuse states whose type no operator of the plan can take. Raises UserError, StorageUnreachable.

    Args:
        store: where the checkpoint lies.
    """
    held = _held(metadata)
    for task in plan.tasks:
        for planned in task.operators:
            handles = held.get(planned.name)
            if handles and planned.operator is not None:
                operator = planned.operator()
                if isinstance(operator, ChecksStates):
                    operator.check_states(_without_rows(store, metadata.job, handles))


def _held(metadata: CheckpointMetadata) -> dict[str, list[StateHandle]]:
    """{operator: one handle of each of its states}."""
    chosen: dict[tuple[str, str], StateHandle] = {}
    for snapshot in metadata.subtasks:
        for handle in snapshot.states:
            chosen.setdefault((handle.operator, handle.state), handle)
    by_operator: dict[str, list[StateHandle]] = {}
    for (operator, _), handle in sorted(chosen.items()):
        by_operator.setdefault(operator, []).append(handle)
    return by_operator


def _without_rows(store: Store, job: str, handles: list[StateHandle]) -> list[RestoredState]:
    states = []
    for handle in handles:
        try:
            length = min(handle.length, _HEAD_BYTES)
            head = store.get(store_path(job, handle.path), handle.offset, length)
            table = schema_from_ipc(head).empty_table()
        except (InvalidTable, NotFound, StoreRejected):
            continue
        except StoreError as error:
            raise StorageUnreachable(f"the checkpoint cannot be read: {error}") from error
        states.append(RestoredState(handle.state, StateKind(handle.kind), table))
    return states

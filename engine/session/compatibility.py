"""Can the program take the states of a checkpoint? Asked before the job claims anything.

`recovery/assignment.py` compares names and edges; this module compares types. An operator that
keeps state tells which columns it could not restore (`ChecksStates`), of tables and of databases
alike: no rows are read. The restore finds out operators that do not tell, and damaged state.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.inflight.segment import InvalidTable, schema_from_ipc
from headrace.recovery.handles import StateHandle, StateSchema
from headrace.recovery.layout import store_path
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.store import NotFound, Store, StoreError, StoreRejected

from ..contract.errors import StorageUnreachable
from ..contract.execution import ExecutionPlan
from ..contract.operators import ChecksStates, RestoredState, StateKind
from ..state.tables import KEY_GROUP

#: The head of a stored table, with its columns; a longer schema is left to the restore.
_HEAD_BYTES = 64 * 1024

#: The place that tells the columns of a state: the head of its table, or beside its database.
_Columns = StateHandle | StateSchema


def check_states(plan: ExecutionPlan, store: Store, metadata: CheckpointMetadata) -> None:
    """Refuse states whose type no operator of the plan can take. Raises UserError,
    StorageUnreachable.

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


def _held(metadata: CheckpointMetadata) -> dict[str, list[_Columns]]:
    """Return {operator: the places that tell the columns of each of its states}."""
    chosen: dict[tuple[str, str], _Columns] = {}
    for snapshot in metadata.subtasks:
        for handle in snapshot.states:
            chosen.setdefault((handle.operator, handle.state), handle)
        for database in snapshot.databases:
            for schema in database.schemas:
                chosen.setdefault((database.operator, schema.state), schema)
    by_operator: dict[str, list[_Columns]] = {}
    for (operator, _), columns in sorted(chosen.items()):
        by_operator.setdefault(operator, []).append(columns)
    return by_operator


def _without_rows(store: Store, job: str, handles: list[_Columns]) -> list[RestoredState]:
    states = []
    for handle in handles:
        try:
            length = min(handle.length, _HEAD_BYTES)
            head = store.get(store_path(job, handle.path), handle.offset, length)
            schema = schema_from_ipc(head)
        except (InvalidTable, NotFound, StoreRejected):
            continue
        except StoreError as error:
            raise StorageUnreachable(f"the checkpoint cannot be read: {error}") from error
        kind = StateKind.KEYED
        if isinstance(handle, StateHandle):
            kind = StateKind(handle.kind)
        else:
            # What the rows of a database are given when they are read.
            schema = pa.schema([KEY_GROUP, *schema])
        states.append(RestoredState(handle.state, kind, schema.empty_table()))
    return states

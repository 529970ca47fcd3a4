"""Can the program take the states and in-flight records of a checkpoint? Asked before the job
claims anything.

`recovery/assignment.py` compares names and edges; this module compares types. An operator that
keeps state tells which columns it could not restore (`ChecksStates`), of tables and of databases
alike: no rows are read. Records in flight must have the columns that their edge has now. The
restore finds out operators that do not tell, and damaged data.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from headrace.channels.schemas import UnsupportedSchema, WireSchema
from headrace.inflight.handle import BufferHandle
from headrace.inflight.segment import InvalidTable, inflate, schema_from_ipc
from headrace.recovery.handles import StateHandle, StateSchema
from headrace.recovery.layout import store_path
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.redistribution import Incompatible
from headrace.recovery.store import NotFound, Store, StoreError, StoreRejected

from ..contract.errors import StorageUnreachable
from ..contract.execution import ExecutionPlan
from ..contract.operators import ChecksStates, RestoredState, StateKind
from ..state.tables import KEY_GROUP

#: The head of a stored table, with its columns; a longer schema is left to the restore.
_HEAD_BYTES = 64 * 1024
#: A compressed blob is read whole; a larger one is left to the restore.
_COMPRESSED_BYTES_MAX = 16 * 1024**2

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


def check_in_flight(plan: ExecutionPlan, store: Store, metadata: CheckpointMetadata) -> None:
    """Refuse in-flight records whose columns are not those of their edge any more.

    Args:
        store: where the checkpoint lies.

    Raises: Incompatible, StorageUnreachable.
    """
    flying = _flying(metadata)
    for edge in plan.edges:
        for buffer in flying.get(edge.key, ()):
            stored = _schema_of(store, metadata.job, buffer)
            if stored is not None and _columns(stored) != _columns(edge.schema):
                raise Incompatible(
                    f"chk-{metadata.checkpoint} holds in-flight records of edge {edge.key!r} with"
                    f" the columns {_columns(stored)}, and the edge now has"
                    f" {_columns(edge.schema)}: change them between an aligned checkpoint and its"
                    " restore, which holds none"
                )


def _flying(metadata: CheckpointMetadata) -> dict[str, list[BufferHandle]]:
    """Return {edge: the first stored buffer of each of its generations}.

    Records left to replay may be of a program before the last.
    """
    chosen: dict[tuple[str, int], BufferHandle] = {}
    for handle in (handle for s in metadata.subtasks for handle in s.inflight):
        if handle.buffers:
            generation = handle.first if handle.side == "replay" else -1
            place = (metadata.edges[handle.edge].key, generation)
            chosen.setdefault(place, handle.buffers[0])
    by_edge: dict[str, list[BufferHandle]] = {}
    for (key, _), buffer in sorted(chosen.items()):
        by_edge.setdefault(key, []).append(buffer)
    return by_edge


def _columns(schema: pa.Schema) -> str:
    """Names and types as they travel; ends may differ in nullability and metadata."""
    with suppress(UnsupportedSchema):  # such columns stay within a process
        schema = WireSchema.of(schema).wire
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _schema_of(store: Store, job: str, handle: _Columns | BufferHandle) -> pa.Schema | None:
    """Return the columns of a stored table; None: the restore will find out.

    Raises: StorageUnreachable.
    """
    inflated = handle.inflated if isinstance(handle, BufferHandle) else 0
    if inflated > _COMPRESSED_BYTES_MAX:
        return None
    length = handle.length if inflated else min(handle.length, _HEAD_BYTES)
    try:
        head = store.get(store_path(job, handle.path), handle.offset, length)
        return schema_from_ipc(inflate(head, inflated) if inflated else head)
    except (InvalidTable, NotFound, StoreRejected):
        return None
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint cannot be read: {error}") from error


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
        schema = _schema_of(store, job, handle)
        if schema is None:
            continue
        kind = StateKind.KEYED
        if isinstance(handle, StateHandle):
            kind = StateKind(handle.kind)
        else:
            # What the rows of a database are given when they are read.
            schema = pa.schema([KEY_GROUP, *schema])
        states.append(RestoredState(handle.state, kind, schema.empty_table()))
    return states

"""Snapshots to storage and back: what the storage threads of a worker do for a checkpoint.

All subtasks of a worker share one file a checkpoint (`inflight/segment.py` draws it); an Arrow stream a piece of state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.channels.keygroups import key_group_range
from headrace.inflight.segment import (
    Blob,
    CorruptBlob,
    InvalidTable,
    SegmentBuilder,
    read_blob,
    table_from_ipc,
    table_to_ipc,
)
from headrace.recovery.layout import handle_path, segment_path, store_path
from headrace.recovery.metadata import StateHandle
from headrace.recovery.store import NotFound, Store

from ..operators.base import RestoredState, StateKind, StateSnapshot
from .work import SubtaskId

#: By subtask: (operator name, its frozen state).
Snapshots = Mapping[SubtaskId, Sequence[tuple[str, StateSnapshot]]]


class CorruptState(Exception):
    """A checkpoint's data is missing or damaged; the message names file and place."""


def write_snapshots(
    store: Store | None, job: str, checkpoint: int, worker: int, epoch: int, snapshots: Snapshots
) -> dict[SubtaskId, list[StateHandle]]:
    """Serialise and store, durably. Without a store nothing is written and there are no handles. Raises StoreError."""
    if store is None:
        return {subtask: [] for subtask in snapshots}
    path = segment_path(job, checkpoint, worker, epoch)
    segment = SegmentBuilder()
    handles: dict[SubtaskId, list[StateHandle]] = {}
    for subtask, states in snapshots.items():
        handles[subtask] = []
        for operator, state in states:
            table = state.table()
            blob = segment.append(table_to_ipc(table))
            handles[subtask].append(
                StateHandle(
                    operator=operator,
                    state=state.name,
                    kind=state.kind.value,
                    path=handle_path(job, path),
                    offset=blob.offset,
                    length=blob.length,
                    checksum=blob.checksum,
                    rows=table.num_rows,
                )
            )
    if not segment.is_empty:
        store.put(path, b"".join(segment.parts()))
    return handles


def read_states(
    store: Store,
    job: str,
    handles: Sequence[StateHandle],
    *,
    max_parallelism: int,
    parallelism: int,
    subtask: int,
) -> dict[str, list[RestoredState]]:
    """Read what a subtask starts from, by operator; keyed state is cut to its key groups. Raises CorruptState, StoreError."""
    mine = key_group_range(max_parallelism, parallelism, subtask)
    states: dict[str, list[RestoredState]] = {}
    for handle in handles:
        kind = StateKind(handle.kind)
        table = _read(store, store_path(job, handle.path), handle)
        if kind is StateKind.KEYED:
            table = _cut(table, mine)
        states.setdefault(handle.operator, []).append(RestoredState(handle.state, kind, table))
    return states


def _read(store: Store, path: str, handle: StateHandle) -> pa.Table:
    where = f"{path}, state {handle.state!r} of {handle.operator!r}"
    blob = Blob(handle.offset, handle.length, handle.checksum)
    try:
        table = table_from_ipc(read_blob(lambda o, n: store.get(path, o, n), blob))
    except (CorruptBlob, InvalidTable, NotFound) as damage:
        raise CorruptState(f"{where}: {damage}") from damage
    if table.num_rows != handle.rows:
        raise CorruptState(f"{where}: expected {handle.rows} rows, found {table.num_rows}")
    return table


def _cut(table: pa.Table, mine: range) -> pa.Table:
    """Rows of the key groups in `mine`; the table is sorted by key group."""
    groups = table.column("__key_group")
    inside = pc.and_(pc.greater_equal(groups, mine.start), pc.less(groups, mine.stop))
    return table.filter(inside)

"""Snapshots to storage and back: the calls of a worker's storage threads for a checkpoint.

All subtasks of a worker share one file a checkpoint (`inflight/segment.py` draws the format), with
an Arrow stream a piece of state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from headrace.channels.buffer import Buffer
from headrace.channels.keygroups import key_group_range
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.spilled import Records, RunFile
from headrace.inflight.confirmed import Confirmed
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.segment import (
    Blob,
    CorruptBlob,
    InvalidTable,
    SegmentBuilder,
    inflate,
    read_blob,
    table_from_ipc,
    table_to_ipc,
)
from headrace.inflight.writer import Piece, write_buffers
from headrace.recovery.handles import DatabaseHandle, StateHandle
from headrace.recovery.layout import (
    CheckpointKind,
    handle_path,
    log_path,
    segment_path,
    store_path,
)
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.store import NotFound, Store, StoreError, StoreRejected, is_short

from ..contract.execution import SubtaskId
from ..contract.operators import Restored, RestoredState, Snapshot, StateKind, StateSnapshot
from ..worker.subtask_events import CapturedRun, Cut
from .ahead import FilesAhead
from .checkpoint_storage import open_store
from .databases import (
    CorruptState,
    Destination,
    Origin,
    SharedFiles,
    StoredFiles,
    read_databases,
    release_all,
    write_databases,
)
from .spill_files import RunContent, no_runs

__all__ = [
    "CorruptState",
    "Origin",
    "Passes",
    "Written",
    "destination_of",
    "passes_of",
    "read_buffer",
    "read_states",
    "restored_states",
    "write_checkpoint",
    "write_piece",
]

#: By subtask: (operator name, its frozen state).
Snapshots = Mapping[SubtaskId, Sequence[tuple[str, Snapshot]]]

#: (batch, parallelism, consumer) -> boolean mask of the records that go to that consumer.
Passes = Callable[[pa.RecordBatch, int, int], pa.Array]


@dataclass(frozen=True, slots=True)
class Written:
    """The handles of one worker's part of a checkpoint, by subtask."""

    states: dict[SubtaskId, list[StateHandle]]
    inflight: dict[SubtaskId, list[ChannelStateHandle]]
    databases: dict[SubtaskId, list[DatabaseHandle]] = field(default_factory=dict)
    #: {database: its immutable files}
    files: dict[str, SharedFiles] = field(default_factory=dict)


def destination_of(
    savepoint: str | None,
    own: Store | None,
    job: str,
    origin: Origin | None,
    *,
    full: bool = False,
) -> tuple[Store | None, Origin | None, CheckpointKind]:
    """Return the store to write to, the directory to copy from, and the kind of checkpoint.

    Recovered records that were not replayed are copied from that directory (None: named).

    Args:
        savepoint: URL of its directory (empty: the job's own); None: it is a checkpoint.
        full: the checkpoint names no file of an older one.

    Raises: UserError, StorageUnreachable.
    """
    if savepoint is None:
        named = origin is None or (origin.ours and not full)
        copied = None if named else origin
        return own, copied, CheckpointKind.CHECKPOINT
    assert own is not None, "a savepoint without a checkpoint directory"
    target = open_store(savepoint) if savepoint else own
    return target, origin or Origin(own, job, ours=True), CheckpointKind.SAVEPOINT


def write_checkpoint(
    store: Store | None,
    job: str,
    checkpoint: int,
    worker: int,
    epoch: int,
    snapshots: Snapshots,
    cuts: Sequence[Cut],
    confirmed: Confirmed,
    copied: Origin | None = None,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    stored: StoredFiles | None = None,
    *,
    compresses: bool = False,
    full: bool = False,
    runs: RunContent = no_runs,
) -> Written:
    """Store state and in-flight data in one file, durably; databases' immutable files apart.

    Files of databases that `stored` knows are named, not stored again. Databases are released.
    In-flight records in `confirmed` are named, not written; so are records left to replay, unless
    they are to be `copied` from their directory. Spilled records are copied from their `runs`.
    Without a store there are no writes and no handles. A savepoint has an empty `confirmed` and
    copies, so that it needs no other files; so does a `full` checkpoint.
    Raises StoreError, OSError, CorruptRun.
    """
    try:
        if store is None:
            return Written({id: [] for id in snapshots}, {id: [] for id in snapshots})
        to = Destination(store, job, checkpoint, worker, epoch, kind, full)
        return _write(
            to, snapshots, cuts, confirmed, copied, stored or StoredFiles(), compresses, runs
        )
    finally:
        for pieces in snapshots.values():
            release_all(pieces)


def _write(
    to: Destination,
    snapshots: Snapshots,
    cuts: Sequence[Cut],
    confirmed: Confirmed,
    copied: Origin | None,
    stored: StoredFiles,
    compresses: bool,
    runs: RunContent,
) -> Written:
    path = segment_path(to.job, to.checkpoint, to.worker, to.epoch, to.kind)
    segment = SegmentBuilder()
    shown = handle_path(to.job, path)
    states = {id: _write_states(segment, shown, pieces) for id, pieces in snapshots.items()}
    databases, files = write_databases(to, segment, shown, snapshots, stored)
    inflight = {
        cut.subtask: [
            *(
                _write_run(segment, shown, run, confirmed, compresses, partial(runs, cut.subtask))
                for run in cut.inflight
            ),
            *(h if copied is None else _copied(segment, shown, h, copied) for h in cut.replay),
        ]
        for cut in cuts
    }
    if not segment.is_empty:
        to.store.put(path, segment.parts())
    return Written(states, inflight, databases, files)


def write_piece(
    store: Store, job: str, worker: int, epoch: int, piece: Piece, *, compresses: bool = False
) -> list[ChannelStateHandle]:
    """Store a piece of the in-flight log, durably. Returns its handles. Raises StoreError."""
    path = log_path(job, piece.checkpoint, worker, epoch, piece.number)
    segment, shown = SegmentBuilder(), handle_path(job, path)
    handles = [
        ChannelStateHandle(
            *channel,
            side="output",
            first=buffers[0].first,
            buffers=write_buffers(segment, shown, buffers, compresses=compresses),
            ended=False,
        )
        for channel, buffers in piece.runs
    ]
    store.put(path, segment.parts())
    return handles


def _write_states(
    segment: SegmentBuilder, path: str, states: Sequence[tuple[str, Snapshot]]
) -> list[StateHandle]:
    handles: list[StateHandle] = []
    for operator, state in states:
        if not isinstance(state, StateSnapshot):
            continue
        table = state.table()
        blob = segment.append(*table_to_ipc(table))
        handles.append(
            StateHandle(
                operator=operator,
                state=state.name,
                kind=state.kind.value,
                path=path,
                offset=blob.offset,
                length=blob.length,
                checksum=blob.checksum,
                rows=table.num_rows,
            )
        )
    return handles


def _write_run(
    segment: SegmentBuilder,
    path: str,
    run: CapturedRun,
    confirmed: Confirmed,
    compresses: bool,
    content: Callable[[RunFile], bytes | memoryview],
) -> ChannelStateHandle:
    buffers: list[BufferHandle] = []
    for piece in confirmed.split(run.channel, run.buffers):
        if isinstance(piece, BufferHandle):
            buffers.append(piece)
        else:
            buffers += _write_records(segment, path, piece, compresses, content)
    return ChannelStateHandle(
        edge=run.channel.edge,
        producer=run.channel.producer,
        consumer=run.channel.consumer,
        side=run.side,
        first=run.first,
        buffers=buffers,
        ended=run.ended,
        watermarks=[(position - run.first, time_ns) for position, time_ns in run.watermarks],
    )


def _write_records(
    segment: SegmentBuilder,
    path: str,
    records: Sequence[Records],
    compresses: bool,
    content: Callable[[RunFile], bytes | memoryview],
) -> list[BufferHandle]:
    """Append queued buffers, joined, and spilled runs, each once."""
    handles: list[BufferHandle] = []
    queued: list[Buffer] = []
    #: {number of a run: a handle of all its records}
    copied: dict[int, BufferHandle] = {}
    for item in records:
        if isinstance(item, Buffer):
            queued.append(item)
            continue
        handles += write_buffers(segment, path, queued, compresses=compresses)
        queued = []
        number = item.file.number
        if number not in copied:
            copied[number] = _copy_run(segment, path, item.file, content(item.file))
        handles.append(replace(copied[number], start=item.start, rows=item.rows))
    return [*handles, *write_buffers(segment, path, queued, compresses=compresses)]


def _copy_run(
    segment: SegmentBuilder, path: str, file: RunFile, content: bytes | memoryview
) -> BufferHandle:
    """Copy a spilled run as it is; the handle names all its records."""
    blob = segment.append(content)
    return BufferHandle(
        path=path,
        offset=blob.offset,
        length=blob.length,
        checksum=blob.checksum,
        blob_rows=file.rows,
        start=0,
        rows=file.rows,
    )


def _copied(
    segment: SegmentBuilder, path: str, handle: ChannelStateHandle, origin: Origin
) -> ChannelStateHandle:
    """Copy the records into this checkpoint's file: their owner may delete the other directory."""
    buffers = []
    for buffer in handle.buffers:
        file = store_path(origin.job, buffer.path)
        blob = segment.append(origin.store.get(file, buffer.offset, buffer.length))
        buffers.append(replace(buffer, path=path, offset=blob.offset, checksum=blob.checksum))
    return replace(handle, buffers=buffers)


def passes_of(partitioner: Partitioner) -> Passes:
    """Return the test of records that are given out anew; the partitioner has affinity."""

    def passes(batch: pa.RecordBatch, parallelism: int, consumer: int) -> pa.Array:
        return pa.array(partitioner.router(parallelism)(batch) == consumer)

    return passes


def read_buffer(store: Store, job: str, handle: BufferHandle, passes: Passes) -> pa.RecordBatch:
    """Read the records left of a stored buffer. Raises CorruptState, StoreError."""
    where = f"{store_path(job, handle.path)}, in-flight data"
    table = _read_blob(store, job, handle.path, handle, where)
    if table.num_rows != handle.blob_rows:
        raise CorruptState(f"{where}: expected {handle.blob_rows} rows, found {table.num_rows}")
    batch = table.slice(handle.start, handle.rows).combine_chunks()
    batches = batch.to_batches()
    records = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
    for skip, parallelism, consumer in handle.filters:
        records = records.slice(skip)
        records = records.filter(passes(records, parallelism, consumer))
    return records.slice(handle.skip)


def read_states(
    store: Store,
    job: str,
    handles: Sequence[StateHandle],
    *,
    max_parallelism: int,
    parallelism: int,
    subtask: int,
) -> dict[str, list[RestoredState]]:
    """Read a subtask's states by operator; keyed state is cut to its key groups.

    Raises CorruptState, StoreError.
    """
    mine = key_group_range(max_parallelism, parallelism, subtask)
    states: dict[str, list[RestoredState]] = {}
    for handle in handles:
        kind = StateKind(handle.kind)
        table = _read(store, job, handle)
        if kind is StateKind.KEYED:
            table = _cut(table, mine)
        states.setdefault(handle.operator, []).append(RestoredState(handle.state, kind, table))
    return states


def states_of(store: Store, metadata: CheckpointMetadata, operator: str) -> list[RestoredState]:
    """Read all states of one operator, those of its subtasks together.

    Raises CorruptState, StoreError.
    """
    found = read_states(
        store,
        metadata.job,
        [h for s in metadata.subtasks for h in s.states if h.operator == operator],
        max_parallelism=metadata.max_parallelism,
        parallelism=1,
        subtask=0,
    )
    return found.get(operator, [])


def restored_states(
    origin: Origin,
    snapshot: SubtaskSnapshot,
    *,
    max_parallelism: int,
    parallelism: int,
    ahead: FilesAhead | None = None,
) -> dict[str, list[Restored]]:
    """Read the tables that a subtask starts from, and describe its databases, by operator.

    See `read_databases`. Raises: CorruptState, StoreError.
    """
    tables = read_states(
        origin.store,
        origin.job,
        snapshot.states,
        max_parallelism=max_parallelism,
        parallelism=parallelism,
        subtask=snapshot.index,
    )
    groups = key_group_range(max_parallelism, parallelism, snapshot.index)
    databases = read_databases(origin, snapshot.databases, groups, max_parallelism, ahead=ahead)
    return {
        operator: [*tables.get(operator, ()), *databases.get(operator, ())]
        for operator in tables.keys() | databases.keys()
    }


def _read(store: Store, job: str, handle: StateHandle) -> pa.Table:
    where = f"{store_path(job, handle.path)}, state {handle.state!r} of {handle.operator!r}"
    table = _read_blob(store, job, handle.path, handle, where)
    if table.num_rows != handle.rows:
        raise CorruptState(f"{where}: expected {handle.rows} rows, found {table.num_rows}")
    return table


def _read_blob(
    store: Store, job: str, path: str, handle: StateHandle | BufferHandle, where: str
) -> pa.Table:
    blob = Blob(handle.offset, handle.length, handle.checksum)
    file = store_path(job, path)
    try:
        data = read_blob(lambda o, n: store.get(file, o, n), blob)
        if isinstance(handle, BufferHandle) and handle.inflated:
            data = inflate(data, handle.inflated)
        return table_from_ipc(data)
    except (CorruptBlob, InvalidTable, NotFound) as damage:
        raise CorruptState(f"{where}: {damage}") from damage
    except StoreRejected as refused:
        if _is_short(store, file, blob):
            raise CorruptState(f"{where}: {refused.reason}") from refused
        raise


def _is_short(store: Store, file: str, blob: Blob) -> bool:
    """Return whether the file ends before the blob does, so that another attempt is no use."""
    try:
        return is_short(store, file, blob.offset + blob.length)
    except StoreError:
        return False


def _cut(table: pa.Table, mine: range) -> pa.Table:
    """Rows of the key groups in `mine`; the table is sorted by key group."""
    groups = table.column("__key_group")
    inside = pc.and_(pc.greater_equal(groups, mine.start), pc.less(groups, mine.stop))
    return table.filter(inside)

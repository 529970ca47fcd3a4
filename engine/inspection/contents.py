"""The content of a checkpoint as Arrow tables: an operator's state, or the in-flight records of an
edge.

A `View` is one state or one edge, with its schema and pieces; each piece is read by itself, so that
many readers can share the work. Reading uses the functions of a restore (`storage/snapshots.py`),
and refuses damage with the same words.

Our columns begin with two underscores. State has `__subtask` (the subtask that kept it) before the
columns of the stored table; in-flight records have

    __edge      the edge's key, "producer->consumer/port"
    __producer  the subtask that sent the record
    __consumer  the subtask that was to receive it (side "replay": that still has to replay it)
    __side      "input": received, not consumed; "output": overtaken in the sender's queue;
                "replay": left of the attempt before
    __position  of the record in its channel; null for "replay", since that channel has ended

before the columns of the record. The edge's partitioner tells apart which records a rescale has
left to replay: metadata notes the columns of a hash, but no function of a user, so such records are
refused, not guessed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from headrace.channels.keygroups import key_group_range
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.registry import UnknownPartitioner, partitioner_named
from headrace.inflight.handle import ChannelStateHandle
from headrace.recovery.handles import DatabaseHandle, StateHandle
from headrace.recovery.metadata import CheckpointMetadata, EdgeInfo
from headrace.recovery.store import Store

from ..contract.errors import UserError
from ..contract.operators import RestoredDatabase
from ..state.tables import KEY_GROUP
from ..storage.checkpoint_storage import FsspecStore
from ..storage.databases import Origin, read_databases
from ..storage.snapshots import CorruptState, passes_of, read_buffer, read_states
from .directory import Opened, answers

#: Rows of a batch that is handed out.
_ROWS = 65_536

_SUBTASK = pa.field("__subtask", pa.int32(), nullable=False)
_PLACE = pa.schema(
    [
        pa.field("__edge", pa.string(), nullable=False),
        pa.field("__producer", pa.int32(), nullable=False),
        pa.field("__consumer", pa.int32(), nullable=False),
        pa.field("__side", pa.string(), nullable=False),
        pa.field("__position", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class StatePiece:
    """One subtask's piece of a state; `parallelism` is its task's."""

    parallelism: int
    subtask: int
    handle: StateHandle


@dataclass(frozen=True, slots=True)
class InFlightPiece:
    """Stored records of one side of one channel; `subtask` is the end that stored them."""

    edge: EdgeInfo
    subtask: int
    handle: ChannelStateHandle


@dataclass(frozen=True, slots=True)
class DatabasePiece:
    """One state in one subtask's embedded database; `parallelism` is its task's.

    Reading fetches all files of the database.
    """

    parallelism: int
    subtask: int
    state: str
    handle: DatabaseHandle


Piece = StatePiece | DatabasePiece | InFlightPiece


@dataclass(frozen=True, slots=True)
class View:
    """One state of one operator, or the in-flight records of one edge. Pickles, with the URL of its
    store.

    Attributes:
        what: for errors: "state 'total' of 'totals'".
        schema: ours first.
        pieces: in the order of the metadata.
    """

    store: FsspecStore
    job: str
    checkpoint: int
    max_parallelism: int
    what: str
    schema: pa.Schema
    pieces: tuple[Piece, ...]

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Read one piece, in batches of bounded size.

        Raises: UserError if it is damaged, StorageUnreachable.
        """
        for table in self.tables(piece):
            if not table.schema.equals(self.schema):
                raise UserError(
                    f"{self.where}: its pieces differ, in one the columns are {table.schema.names}"
                    f" and in another {self.schema.names}"
                )
            yield from table.to_batches(max_chunksize=_ROWS)

    @property
    def where(self) -> str:
        """Name the checkpoint and the part of it, for errors."""
        return f"chk-{self.checkpoint} of job {self.job!r}, {self.what}"

    def tables(self, piece: Piece) -> Iterator[pa.Table]:
        """Read one piece as it is stored, a table at a time. Raises as `read` does."""
        try:
            with answers(self.store.url):
                if isinstance(piece, StatePiece):
                    yield _state(self.store, self.job, self.max_parallelism, piece)
                elif isinstance(piece, DatabasePiece):
                    yield _in_database(self.store, self.job, self.max_parallelism, piece)
                else:
                    yield from _in_flight(self.store, self.job, self.max_parallelism, piece)
        except CorruptState as damage:
            raise UserError(f"{self.where} is damaged: {damage}") from damage


def state_of(opened: Opened, operator: str, state: str | None = None) -> View:
    """View a state; `state` may be None where the operator has one only.

    Raises: UserError, StorageUnreachable.
    """
    metadata = opened.metadata
    pieces: list[StatePiece | DatabasePiece] = [
        StatePiece(metadata.tasks[snapshot.task].parallelism, snapshot.index, handle)
        for snapshot in metadata.subtasks
        for handle in snapshot.states
        if handle.operator == operator
    ]
    pieces += [
        DatabasePiece(
            metadata.tasks[snapshot.task].parallelism, snapshot.index, schema.state, database
        )
        for snapshot in metadata.subtasks
        for database in snapshot.databases
        if database.operator == operator
        for schema in database.schemas
    ]
    if not pieces:
        raise UserError(_no_state(metadata, operator))
    names = sorted({_state_name(piece) for piece in pieces})
    if state is None and len(names) > 1:
        raise UserError(f"operator {operator!r} has several states; name one of {', '.join(names)}")
    chosen = names[0] if state is None else state
    if chosen not in names:
        raise UserError(f"operator {operator!r} has no state {chosen!r}; it has {', '.join(names)}")
    mine = [piece for piece in pieces if _state_name(piece) == chosen]
    return _view(opened, f"state {chosen!r} of {operator!r}", pa.schema([_SUBTASK]), mine)


def in_flight_on(opened: Opened, edge: str) -> View:
    """View the in-flight records of an edge.

    Without any, the schema is of our columns alone. Raises: UserError, StorageUnreachable.
    """
    edges = opened.metadata.edges
    if edge not in {info.key for info in edges}:
        known = ", ".join(info.key for info in edges) or "none"
        raise UserError(
            f"chk-{opened.metadata.checkpoint} of job {opened.job!r} has no edge {edge!r}; it has"
            f" {known}"
        )
    pieces = [
        InFlightPiece(edges[handle.edge], snapshot.index, handle)
        for snapshot in opened.metadata.subtasks
        for handle in snapshot.inflight
        if edges[handle.edge].key == edge and handle.buffers
    ]
    return _view(opened, f"in-flight records of {edge!r}", _PLACE, pieces)


def _no_state(metadata: CheckpointMetadata, operator: str) -> str:
    which = f"chk-{metadata.checkpoint} of job {metadata.job!r}"
    if operator not in {name for task in metadata.tasks for name in task.operators}:
        keeping = {h.operator for s in metadata.subtasks for h in s.states}
        holding = sorted(keeping | {d.operator for s in metadata.subtasks for d in s.databases})
        return (
            f"{which} has no operator {operator!r}; state is held of {', '.join(holding) or 'none'}"
        )
    return f"{which} holds no state of operator {operator!r}"


def _view(opened: Opened, what: str, ours: pa.Schema, pieces: Sequence[Piece]) -> View:
    metadata = opened.metadata
    empty = View(
        opened.store,
        opened.job,
        metadata.checkpoint,
        metadata.max_parallelism,
        what,
        ours,
        tuple(pieces),
    )
    if not pieces:
        return empty
    # The smallest piece tells as much about the columns as the others do.
    smallest = min(pieces, key=_size_bytes)
    found = (
        _database_columns(empty, smallest)
        if isinstance(smallest, DatabasePiece)
        else next(empty.tables(smallest)).schema
    )
    if taken := sorted(set(found.names[len(ours) :]) & set(ours.names)):
        raise UserError(
            f"{empty.where}: the stored columns {', '.join(taken)} have names of headrace's own"
        )
    return replace(empty, schema=found)


def _size_bytes(piece: Piece) -> int:
    if isinstance(piece, StatePiece):
        return piece.handle.length
    if isinstance(piece, DatabasePiece):
        return sum(file.length for file in piece.handle.shared)
    return piece.handle.buffers[0].length


def _state_name(piece: StatePiece | DatabasePiece) -> str:
    return piece.handle.state if isinstance(piece, StatePiece) else piece.state


def _database_columns(view: View, piece: DatabasePiece) -> pa.Schema:
    """Return the columns from the metadata; the files need not be read for them."""
    try:
        with answers(view.store.url):
            database = _database(view.store, view.job, view.max_parallelism, piece)
    except CorruptState as damage:
        raise UserError(f"{view.where} is damaged: {damage}") from damage
    (layout,) = [found for found in database.layouts if found.name == piece.state]
    return pa.schema([_SUBTASK, KEY_GROUP, *layout.schema])


def _in_database(store: Store, job: str, max_parallelism: int, piece: DatabasePiece) -> pa.Table:
    tables = _database(store, job, max_parallelism, piece).tables()
    (state,) = [found for found in tables if found.name == piece.state]
    subtask = _same(piece.subtask, state.table.num_rows, _SUBTASK.type)
    return _beside(pa.schema([_SUBTASK]), [subtask], state.table)


def _database(
    store: Store, job: str, max_parallelism: int, piece: DatabasePiece
) -> RestoredDatabase:
    groups = key_group_range(max_parallelism, piece.parallelism, piece.subtask)
    origin = Origin(store, job, ours=False)
    found = read_databases(origin, [piece.handle], groups, max_parallelism)
    return found[piece.handle.operator][0]


def _state(store: Store, job: str, max_parallelism: int, piece: StatePiece) -> pa.Table:
    restored = read_states(
        store,
        job,
        [piece.handle],
        max_parallelism=max_parallelism,
        parallelism=piece.parallelism,
        subtask=piece.subtask,
    )
    (state,) = restored[piece.handle.operator]
    subtask = _same(piece.subtask, state.table.num_rows, _SUBTASK.type)
    return _beside(pa.schema([_SUBTASK]), [subtask], state.table)


def _in_flight(
    store: Store, job: str, max_parallelism: int, piece: InFlightPiece
) -> Iterator[pa.Table]:
    handle, position = piece.handle, piece.handle.first
    replayed = handle.side == "replay"
    for buffer in handle.buffers:
        passes = partial(_passes, piece.edge, max_parallelism)
        batch = read_buffer(store, job, buffer, passes)
        rows = batch.num_rows
        assert replayed or rows == buffer.rows, f"{handle.side} handles have no filters"
        positions = range(position, position + rows)
        place = [
            _same(piece.edge.key, rows, pa.string()),
            _same(handle.producer, rows, pa.int32()),
            _same(piece.subtask if replayed else handle.consumer, rows, pa.int32()),
            _same(handle.side, rows, pa.string()),
            pa.nulls(rows, pa.int64()) if replayed else pa.array(positions, pa.int64()),
        ]
        yield _beside(_PLACE, place, pa.Table.from_batches([batch]))
        position += rows


def _passes(
    edge: EdgeInfo, max_parallelism: int, batch: pa.RecordBatch, parallelism: int, consumer: int
) -> pa.Array:
    """Return the mask of records that an earlier rescale gave to `consumer`."""
    return passes_of(_partitioner(edge, max_parallelism))(batch, parallelism, consumer)


def _partitioner(edge: EdgeInfo, max_parallelism: int) -> Partitioner:
    """Raises: UserError where metadata alone does not give the partitioner back."""
    with contextlib.suppress(UnknownPartitioner):
        kind = partitioner_named(edge.partitioning)
        found = kind.restored(tuple(edge.columns), tuple(edge.parameters), max_parallelism)
        if found is not None:
            return found
    how = edge.partitioning or "a partitioner that it does not name"
    raise UserError(
        f"in-flight records of edge {edge.key!r} were left of a rescale and are told apart by"
        f" {how}, "
        "which needs the program; take a checkpoint when they have been replayed"
    )


def _same(value: str | int, rows: int, type_: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type_), rows)


def _beside(ours: pa.Schema, columns: Sequence[pa.Array], table: pa.Table) -> pa.Table:
    chunked = [pa.chunked_array([column], type=column.type) for column in columns]
    schema = pa.schema([*ours, *table.schema])
    return pa.Table.from_arrays([*chunked, *table.columns], schema=schema)

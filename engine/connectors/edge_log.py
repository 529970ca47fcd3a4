"""The two ends of a logged edge: a sink that adds to the log, and a source that reads it.

A pre-commit makes pieces durable; the commit of the checkpoint adds an entry that names them
(`recovery/edge_log.py`). So readers see a record when the checkpoint behind it is complete, and
never a record of an attempt that has failed.

A writer's state is the position of its lane. Lane i belongs to subtask i; at a lower parallelism
subtask 0 keeps the positions of lanes that have no subtask, so that a later one goes on there.

With `early`, pieces are written as records come, and readers take them by their names, which follow
from lane, epoch and position. A checkpoint of the reading region waits until entries cover it
(`edge_log_cover.py`).

A reader's state is its place in the log. Reader i of p reads the lanes i, i + p, i + 2p..., each in
order. A lane is a split. A reader with nothing to read looks for the next entry, ever less often.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from headrace.channels.events import MIN_WATERMARK
from headrace.recovery import edge_log
from headrace.recovery.edge_log import (
    Cursor,
    Diverged,
    Entry,
    Fenced,
    Piece,
    Place,
    Trimmed,
)
from headrace.recovery.edge_log_files import EdgeLogFiles

from ..contract.connectors import Delivery
from ..contract.errors import CommitLost
from ..contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateKind,
    StateSnapshot,
    Transaction,
)
from .early_pieces import EarlyPieces
from .edge_log_cover import NotNeeded, Pause, await_cover, take_all

#: A writer writes a piece when so much waits, or at the next checkpoint.
_PIECE_BYTES = 8 * 1024**2
#: Pieces that a writer has on their way while it takes further records.
_WRITING_MAX = 2
#: Waits of a reader between two looks for an entry.
_LOOK_FIRST_NS = 2_000_000
_LOOK_LAST_NS = 200_000_000
_EARLY_LOOK_LAST_NS = 20_000_000
#: Waits of a checkpoint between two looks whether entries cover it.
_COVER_LOOK_S = 0.02

_POSITIONS = pa.schema([("lane", pa.int64()), ("position", pa.int64())])
_PLACE = pa.schema([("lane", pa.int64()), ("position", pa.int64()), ("entry", pa.int64())])
#: The row of a place that holds the entry to go on with; rows of lanes hold those read last.
_NO_LANE = -1

#: Makes the entry behind the last one; None: the log says it already.
_Make = Callable[[Entry | None], Entry | None]


class EdgeLogSink:
    """Adds records to a log (a `Sink`).

    Args:
        early: readers do not wait for checkpoints.
    """

    def __init__(self, files: EdgeLogFiles, *, early: bool = False) -> None:
        self._files = files
        self._early = early

    @property
    def delivery(self) -> Delivery:
        """Entries are created with their checkpoint, each once."""
        return "exactly-once"

    def check(self, schema: pa.Schema) -> None:
        """Every stream's records fit."""

    def writer(self) -> EdgeLogWriter:
        """Make the writer of one subtask."""
        return EdgeLogWriter(self._files, early=self._early)

    def committer(self, job: str, operator: str) -> EdgeLogCommitter:
        """Make the committer."""
        return EdgeLogCommitter(self._files)


class EdgeLogWriter:
    """Writes one lane. State: its position.

    Args:
        early: see `EdgeLogSink`.
        thread: writes pieces while the subtask goes on; None: a thread of the writer's own.
    """

    def __init__(
        self, files: EdgeLogFiles, *, early: bool = False, thread: Executor | None = None
    ) -> None:
        self._files = files
        self._early = early
        self._early_pieces: EarlyPieces | None = None
        self._lane = 0
        self._parallelism = 1
        self._epoch = 0
        #: {lane: position} of this writer's lane, and of lanes that it keeps for others.
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._batches: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        #: Written since the last pre-commit.
        self._pieces: list[Piece] = []
        self._watermark = MIN_WATERMARK
        #: Full pieces on their way to storage, in order.
        self._writing: deque[Future[Piece]] = deque()
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="edge-log")

    def open(self, context: OperatorContext) -> None:
        """Take the lane of this subtask."""
        self._lane, self._epoch = context.index, context.epoch
        self._parallelism = context.parallelism
        self._positions = {self._lane: 0}
        self._begin()

    def _begin(self) -> None:
        self._committed = dict(self._positions)
        if self._early:
            write = partial(self._files.write, self._lane, self._epoch)
            self._early_pieces = EarlyPieces(write, self._thread, self._positions[self._lane])

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on behind the checkpoint's last record."""
        saved: dict[int, int] = {}
        for state in states:
            for row in state.table.to_pylist():
                saved[row["lane"]] = max(row["position"], saved.get(row["lane"], 0))
        self._positions = {self._lane: saved.get(self._lane, 0)}
        if self._lane == 0:
            self._positions |= {k: p for k, p in saved.items() if k >= self._parallelism}
        self._begin()

    def tell_event_time(self, watermark_ns: int) -> None:
        """See `TakesEventTime`."""
        self._watermark = watermark_ns

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep records for the next piece. Raises: StoreError."""
        self._batches.append(batch)
        self._positions[self._lane] += batch.num_rows
        if self._early_pieces is not None:
            self._early_pieces.make_room()
            return
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _PIECE_BYTES:
            while len(self._writing) >= _WRITING_MAX:
                self._pieces.append(self._writing.popleft().result())
            # Event time of records that may still wait in this call is not known to have passed.
            self._writing.append(self._thread.submit(self._next_piece(MIN_WATERMARK)))

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Write the last piece; an empty one says that the lane is alive, and how far event time
        has come. Raises: StoreError.
        """
        while self._writing:
            self._pieces.append(self._writing.popleft().result())
        if self._early_pieces is not None:
            self._offer(self._early_pieces)
            self._pieces += self._early_pieces.take()
        if self._batches:
            self._pieces.append(self._next_piece(self._watermark)())
        else:
            end = self._positions[self._lane]
            self._pieces.append(Piece(self._lane, self._epoch, end, end, watermark=self._watermark))
        pieces, self._pieces = self._pieces, []
        return [_transaction(piece, checkpoint) for piece in pieces]

    def commit(self) -> None:
        """Publish the position, and what was written."""
        self._committed = dict(self._positions)
        if self._early_pieces is not None:
            self._offer(self._early_pieces)

    def _offer(self, early: EarlyPieces) -> None:
        batches, self._batches = self._batches, []
        early.offer(batches, self._watermark)

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the position."""
        positions = self._committed
        return (StateSnapshot("positions", StateKind.UNION, lambda: _positions_table(positions)),)

    def close(self) -> None:
        """Drop records that were not pre-committed."""
        self._batches = []
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next_piece(self, watermark: int) -> Callable[[], Piece]:
        """Take the records that wait; the call that writes them may be made in any thread."""
        table = pa.Table.from_batches(self._batches)
        first = self._positions[self._lane] - table.num_rows
        self._batches, self._waiting_bytes = [], 0
        return partial(self._files.write, self._lane, self._epoch, first, table, watermark)


class EdgeLogCommitter:
    """Adds entries to a log, in the coordinator of the producing region."""

    def __init__(self, files: EdgeLogFiles) -> None:
        self._files = files
        self._epoch = 0
        self._last: Entry | None = None

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        """Add an entry for each checkpoint whose pieces the log lacks.

        Raises: CommitLost for pieces that do not follow the log's end; Fenced; StoreError.
        """
        pieces: defaultdict[int, list[Piece]] = defaultdict(list)
        for transaction in transactions:
            number, piece = _piece(transaction)
            pieces[number].append(piece)
        for number in sorted(pieces):
            in_order = sorted(pieces[number], key=lambda piece: (piece.lane, piece.first))
            make = partial(
                edge_log.committed, epoch=self._epoch, checkpoint=number, pieces=in_order
            )
            try:
                self._append(make)
            except Diverged as reason:
                raise CommitLost(f"log {self._files.log!r} cannot go on: {reason}") from reason

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        """Commit again, and delete pieces of attempts up to `epoch` that no entry names."""
        assert epoch is not None, "logs need a checkpoint directory"
        self._epoch, self._last = epoch, None
        self.commit(checkpoint, committed)
        self._files.sweep(epoch + 1)

    def go_on(self, checkpoint: int) -> None:
        """See `GoesBack`: cut the log to the checkpoint from which the attempt starts, and fence
        older coordinators.

        Raises: CommitLost when the log has forgotten the checkpoint, or lost records.
        """
        self.cut(checkpoint, self._epoch)

    def cut(self, checkpoint: int, epoch: int) -> None:
        """Begin attempt `epoch` at a checkpoint. Raises: as `go_on`."""
        self._epoch = epoch
        ends = edge_log.ends_at(self._files.newest_first(), checkpoint)
        if ends is None:
            raise CommitLost(
                f"log {self._files.log!r} no longer knows checkpoint {checkpoint} of the region"
                " that writes it: restore a newer checkpoint, or begin anew with fresh=True"
            )
        self._append(partial(edge_log.restarted, epoch=epoch, checkpoint=checkpoint, ends=ends))
        if checkpoint == 0 and (last := self._files.last(self._last)) is not None:
            # It begins anew: nothing before counts, for whomever.
            self._files.trim(last.number)

    def finish(self) -> None:
        """The producing region has finished: end the log, unless a newer attempt owns it."""
        if not self._epoch:  # nothing ran: it had finished before
            last = self._files.last()
            self._epoch = 0 if last is None else last.epoch
        with suppress(Fenced):
            self._append(partial(edge_log.ended, epoch=self._epoch))

    def _append(self, make: _Make) -> None:
        while True:
            self._last = self._files.last(self._last)
            entry = make(self._last)
            if entry is None or self._files.append(entry):
                return


class EdgeLogSource:
    """Reads a log (a `Source`).

    Args:
        early: do not wait for the writing region's checkpoints.
        bounded: end with the entries that there are.

    Attributes:
        schema: of every batch.
    """

    def __init__(
        self,
        files: EdgeLogFiles,
        schema: pa.Schema,
        *,
        early: bool = False,
        bounded: bool = False,
    ) -> None:
        self._files = files
        self._early = early
        self._bounded = bounded
        self.schema = schema

    def reader(self) -> EdgeLogReader:
        """Make the reader of one subtask."""
        return EdgeLogReader(self._files, early=self._early, bounded=self._bounded)


class EdgeLogReader:
    """Reads the lanes of one subtask. State: its place.

    Args:
        early, bounded: see `EdgeLogSource`.
        pause: between two looks whether entries cover a checkpoint; None: a short sleep.
    """

    def __init__(
        self,
        files: EdgeLogFiles,
        *,
        early: bool = False,
        bounded: bool = False,
        pause: Pause | None = None,
    ) -> None:
        self._files = files
        self._early = early
        self._bounded = bounded
        self._pause = pause or self._sleep
        self._closed = threading.Event()
        #: The piece being read that no entry names yet, its records, and how many were read.
        self._ahead: tuple[Piece, pa.Table, int] | None = None
        self._last_lane = -1
        #: The lanes' ends when the place was published.
        self._committed_ends: Mapping[int, int] = {}
        self._index = 0
        self._parallelism = 1
        self._cursor = Cursor(self._is_mine, Place())
        self._committed = Place()
        #: The piece being read, and its records.
        self._piece: tuple[Piece, pa.Table] | None = None
        self._wait_ns = _LOOK_FIRST_NS
        self._open: frozenset[str] = frozenset()
        self._looked = False

    def open(self, context: OperatorContext) -> None:
        """Begin at the log's first entry."""
        self._index, self._parallelism = context.index, context.parallelism
        self._cursor = Cursor(self._is_mine, Place())
        self._committed = self._cursor.place

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Go on from the furthest positions."""
        rows = [row for state in states for row in state.table.to_pylist()]
        place = place_of(rows)
        self._cursor = Cursor(self._is_mine, place, place.positions)
        self._committed, self._committed_ends = self._cursor.place, place.positions

    def poll(self, rows_max: int) -> Polled:
        """Return the next records of a lane. Raises: HeadraceError, StoreError, CorruptPiece."""
        if self._ahead is not None:
            return self._read_ahead(*self._ahead, rows_max)
        found = self._cursor.next()
        if found is None:
            self._look()
            found = self._cursor.next()
        if found is None:
            self._ahead = self._look_ahead() if self._early else None
            return self._nothing() if self._ahead is None else self.poll(rows_max)
        self._wait_ns = _LOOK_FIRST_NS
        piece, position = found
        batches: Sequence[pa.RecordBatch] = ()
        if not piece.is_empty:
            rows = self._records(piece).slice(position - piece.first, rows_max)
            batches = rows.to_batches()
            position += rows.num_rows
            self._cursor.read(rows.num_rows)
        else:
            self._cursor.read(0)
        watermark = piece.watermark if position == piece.end else MIN_WATERMARK
        return Polled(
            batches, SourceStatus.MORE, split=f"lane-{piece.lane}", watermark_ns=watermark
        )

    def _look_ahead(self) -> tuple[Piece, pa.Table, int] | None:
        """Find a piece that no entry names yet; lanes take turns."""
        # Where nothing is known of the writing region, its subtasks are guessed to be as many.
        lanes = sorted({self._index, *self._cursor.lanes})
        turn = [n for n in lanes if n > self._last_lane] + [
            n for n in lanes if n <= self._last_lane
        ]
        for lane in turn:
            place = self._cursor.ahead(lane)
            found = None if place is None else self._files.early(lane, *place)
            if found is not None:
                self._last_lane = lane
                return *found, 0
        return None

    def _read_ahead(self, piece: Piece, table: pa.Table, read: int, rows_max: int) -> Polled:
        self._wait_ns = _LOOK_FIRST_NS
        rows = table.slice(read, rows_max)
        self._cursor.read_ahead(piece.lane, rows.num_rows)
        read += rows.num_rows
        at_end = read == table.num_rows
        self._ahead = None if at_end else (piece, table, read)
        watermark = piece.watermark if at_end else MIN_WATERMARK
        return Polled(
            rows.to_batches(),
            SourceStatus.MORE,
            split=f"lane-{piece.lane}",
            watermark_ns=watermark,
        )

    def open_splits(self) -> frozenset[str]:
        """The lanes that are written at present."""
        names = frozenset(f"lane-{lane}" for lane in self._cursor.open_lanes)
        if names != self._open:
            self._open = names
        return self._open

    def commit(self) -> None:
        """Publish the place."""
        self._committed = self._cursor.place
        self._committed_ends = self._cursor.ends

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the place; its table is there once entries cover it (`edge_log_cover.py`)."""
        place, ends = self._committed, self._committed_ends

        def table() -> pa.Table:
            if self._early:
                await_cover(self._files, place, ends, self._is_mine, self._pause)
            return _place_table(place)

        return (StateSnapshot("place", StateKind.UNION, table),)

    def close(self) -> None:
        """Drop the piece being read."""
        self._piece = self._ahead = None
        self._closed.set()

    def _sleep(self) -> None:
        if self._closed.wait(_COVER_LOOK_S):
            raise NotNeeded

    def _is_mine(self, lane: int) -> bool:
        return lane % self._parallelism == self._index

    def _look(self) -> None:
        """Take all entries that there are."""
        if not self._looked:
            self._looked = True
            self._check_untrimmed()
        take_all(self._files, self._cursor)

    def _check_untrimmed(self) -> None:
        """Refuse a log whose beginning was deleted: a reader that begins anew would miss it."""
        numbers = self._files.numbers()
        if not numbers or self._cursor.next_entry >= numbers[0]:
            return
        if self._begins_anew(numbers[0]):
            # What was read of the log before, if anything was, this entry refuses.
            place = replace(self._cursor.place, entry=numbers[0])
            self._cursor = Cursor(self._is_mine, place)
        else:
            raise Trimmed(
                f"log {self._files.log!r} begins at entry {numbers[0]}, since all its readers had"
                " read what came before; a region that begins anew cannot read it: begin the whole"
                " job anew with fresh=True"
            )

    def _begins_anew(self, number: int) -> bool:
        entry = self._files.entry(number)
        return entry is not None and entry.begins_anew

    def _nothing(self) -> Polled:
        if self._cursor.is_ended or self._bounded:
            return Polled((), SourceStatus.END)
        # The log may have begun anew under a reader that has read nothing yet.
        self._looked = bool(self._cursor.place.positions)
        last_ns = _EARLY_LOOK_LAST_NS if self._early else _LOOK_LAST_NS
        wait_ns, self._wait_ns = self._wait_ns, min(2 * self._wait_ns, last_ns)
        return Polled((), SourceStatus.IDLE, wait_ns)

    def _records(self, piece: Piece) -> pa.Table:
        if self._piece is None or self._piece[0] != piece:
            self._piece = (piece, self._files.read(piece))
        return self._piece[1]


def _transaction(piece: Piece, checkpoint: int) -> Transaction:
    payload: dict[str, str | int] = {
        "lane": piece.lane,
        "epoch": piece.epoch,
        "first": piece.first,
        "end": piece.end,
        "bytes": piece.size_bytes,
        "checksum": piece.checksum,
        "watermark": piece.watermark,
        "checkpoint": checkpoint,
    }
    return Transaction(f"p{piece.lane}-e{piece.epoch}-{piece.first}-c{checkpoint}", payload)


def _piece(transaction: Transaction) -> tuple[int, Piece]:
    payload = transaction.payload
    piece = Piece(
        lane=int(payload["lane"]),
        epoch=int(payload["epoch"]),
        first=int(payload["first"]),
        end=int(payload["end"]),
        size_bytes=int(payload["bytes"]),
        checksum=str(payload["checksum"]),
        watermark=int(payload["watermark"]),
    )
    return int(payload["checkpoint"]), piece


def place_of(rows: Sequence[Mapping[str, int]]) -> Place:
    """Join the saved rows of all readers of a log."""
    entries = [row["entry"] for row in rows if row["lane"] == _NO_LANE]
    lanes = [
        Place(min(entries), {row["lane"]: row["position"]}, {row["lane"]: row["entry"]})
        for row in rows
        if row["lane"] != _NO_LANE
    ]
    return Place.of_all([*lanes, *(Place(entry) for entry in entries)])


def _positions_table(positions: dict[int, int]) -> pa.Table:
    columns = {"lane": list(positions), "position": list(positions.values())}
    return pa.table(columns, schema=_POSITIONS)


def _place_table(place: Place) -> pa.Table:
    lanes = [_NO_LANE, *place.positions]
    positions = [0, *place.positions.values()]
    entries = [place.entry, *(place.sources.get(lane, 0) for lane in place.positions)]
    return pa.table({"lane": lanes, "position": positions, "entry": entries}, schema=_PLACE)

"""Joins of two streams in session windows.

Records of one key that follow each other within the gap, of either side, share a session. An
aggregate over the union of both sides makes the sessions and counts each side's records
(`session.py`); the records themselves are stored beside the sessions. When the watermark has passed
the end of a session, every record of the left side is joined with every record of the right side,
and all are dropped. An outer join emits a session of one side alone as unmatched records.

A closed session first leaves the open sessions and is then emitted, over several calls if the pairs
are many. Closed sessions are state of their own until all pairs are emitted: a checkpoint may come
in between, and no record can join a closed session.

Late records are dropped and counted, as in `session.py`. A null key matches no record, as in SQL:
the record is a session alone, and an outer join emits the record at once.

Source: Flink's window join with `EventTimeSessionWindows`; deviations: outer joins, and the
lateness of `session.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from headrace.channels.hashing import hash_rows

from ..contract.operators import (
    Advanced,
    OperatorContext,
    RestoredState,
    StateBackend,
    StateKind,
    StateSnapshot,
)
from ..state.backend import SEQUENCE_STATE, RecordTable
from ..state.runs import TIME, Rows
from ..state.tables import keyed_table, refuse_unknown, restored_batches
from . import aggregations
from .backends import KeyedOperator, keyed_backend
from .join import How
from .join_input import JoinInput, have_keys, side_batches
from .join_output import JoinOutput
from .lateness import LateRecords
from .session import SessionOperator
from .session_records import SIDES, Found, Sessions, found_in
from .window_output import window_schema
from .window_store import END, FIRED, START, WindowAggregate
from .windows import SessionWindow, Times, times_of

# Format, never change.
_CLOSING = "closing"
_COUNTS = ("__left", "__right")

_ROW = "__row"
#: Names forbidden for key columns of the left side, besides a window's names.
RESERVED = (*_COUNTS, _ROW, FIRED)
#: Pairs made into a batch at a time.
_PAIRS_MAX = 1 << 16


class SessionJoinOperator(KeyedOperator):
    """Joins the records of the first `left_ports` ports with the records of the other ports."""

    def __init__(
        self,
        left: JoinInput,
        right: JoinInput,
        window: SessionWindow,
        how: How,
        left_ports: int,
        *,
        operator: str,
        backend: StateBackend | None = None,
    ) -> None:
        self._inputs = (left, right)
        self._gap_ns = window.gap_ns
        self._left_ports = left_ports
        self._operator = operator
        self._stated = backend
        self._output = JoinOutput(left, right, window)
        #: By side, whether its records are emitted without a partner.
        self._alone = (how in ("left", "full"), how in ("right", "full"))
        spec = _counted(left)
        self._schema_in = spec.schema_in
        self._sessions = SessionOperator(window, spec, operator=operator, backend=backend)
        self._late = LateRecords()
        self._max_parallelism = 1
        #: Closed sessions, as far as they are not emitted yet; and as committed.
        self._closing = pa.RecordBatch.from_pylist([], schema=spec.schema_out)
        self._committed = self._closing
        #: The present watermark closes no more sessions than those.
        self._all_closed = False

    def open(self, context: OperatorContext) -> None:
        """Make the backend, in which the sessions and the records of both sides are."""
        self._max_parallelism = context.max_parallelism
        self._backend = backend = keyed_backend(self._stated, context)
        self._sessions.open_in(context, backend)
        self._records: list[RecordTable] = [
            backend.records(name, given.schema, given.keys, None, unmatched=False)
            for name, given in zip(SIDES, self._inputs, strict=True)
        ]

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        refuse_unknown(states, self._state_names(), self._operator)
        self._sessions.check_states(self._of_sessions(states))
        for side in (0, 1):
            side_batches(states, SIDES[side], self._inputs[side], self._operator)
        restored_batches(states, _CLOSING, self._closing.schema, self._operator)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Restore sessions and records of this subtask's keys.

        Raises: UserError when the checkpoint's records have other columns.
        """
        refuse_unknown(states, self._state_names(), self._operator)
        self._sessions.restore(self._of_sessions(states))
        self._opened().restore_own(states)
        for side, given in enumerate(self._inputs):
            for batch in side_batches(states, SIDES[side], given, self._operator):
                time = batch.column(TIME.name).to_numpy()
                rows = batch.select(given.schema.names)
                self._records[side].load(rows, time, np.zeros(len(time), np.bool_))
        closing = restored_batches(states, _CLOSING, self._closing.schema, self._operator)
        self._closing = self._committed = pa.concat_batches([self._closing, *closing])

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Take in a batch; of an outer join, emit the records without a key.

        Raises: UserCodeError when a record has no time.
        """
        self._opened().begin()
        # Restored, and event time is behind: these sessions are closed all the same.
        while self._closing.num_rows:
            yield from self._emitted(_PAIRS_MAX)
        side = 0 if port < self._left_ports else 1
        given = self._inputs[side]
        time = times_of(batch, given.event_time, self._operator)
        told = self._told(side, batch)
        valid = have_keys(batch, given.keys)
        late = ~valid & (time + (self._gap_ns - 1) <= self._sessions.passed(told))
        if self._alone[side] and not valid.all():
            alone = np.flatnonzero(~valid & ~late)
            rows, start = batch.take(pa.array(alone)), time[alone]
            yield self._output.alone(side, rows, start, start + self._gap_ns)
        if valid.any():
            self._sessions.process(told.filter(pa.array(valid)), 0)
            for dropped in self._sessions.take_late():
                late[dropped.column(_ROW).to_numpy()] = True
        self._late.add(batch, late)
        kept = valid & ~late
        if kept.any():
            rows = batch.filter(pa.array(kept))
            self._records[side].add(rows, time[kept], np.zeros(rows.num_rows, np.bool_))

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Join the sessions that end up to the watermark.

        Emits about `rows_max` rows, but at least one record with all its matches.
        """
        self._opened().begin()
        if not self._closing.num_rows:
            closed = self._sessions.advance(watermark_ns, rows_max)
            self._closing = pa.concat_batches([self._closing, *closed.batches])
            self._all_closed = closed.done
        batches = self._emitted(rows_max)
        done = self._all_closed and not self._closing.num_rows
        if done:
            self._all_closed = False
        return Advanced(batches, done)

    def finish(self) -> Iterable[pa.RecordBatch]:
        """The last watermark has closed all."""
        return ()

    def take_late(self) -> Sequence[pa.RecordBatch]:
        """Hand out the late records."""
        return self._late.take()

    def commit(self) -> None:
        """Publish records, sessions and the watermark."""
        self._committed = self._closing
        self._sessions.commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the committed state in memory."""
        keys = list(self._inputs[0].keys)
        table = partial(keyed_table, self._committed, keys, self._max_parallelism)
        closing = StateSnapshot(_CLOSING, StateKind.KEYED, table)
        return [*self._sessions.snapshot(), closing]

    def _state_names(self) -> list[str]:
        return [*self._sessions.state_names, *SIDES, SEQUENCE_STATE, _CLOSING]

    def _of_sessions(self, states: Sequence[RestoredState]) -> list[RestoredState]:
        return [state for state in states if state.name in self._sessions.state_names]

    def _told(self, side: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Make the input of the sessions: each record's key, time, side and row in the batch."""
        given, rows = self._inputs[side], batch.num_rows
        counts = [np.full(rows, side == 0, np.int64), np.full(rows, side == 1, np.int64)]
        columns = [
            *(batch.column(key) for key in given.keys),
            batch.column(given.event_time),
            *map(pa.array, counts),
            pa.array(np.arange(rows)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema_in)

    def _emitted(self, rows_max: int) -> list[pa.RecordBatch]:
        """Join as many closed sessions as make at most `rows_max` rows.

        Joins at least one record of the left side.
        """
        closing = self._closing
        if not closing.num_rows:
            return []
        left, right = (closing.column(name).to_numpy() for name in _COUNTS)
        both = (left > 0) & (right > 0)
        rows = np.where(both, left * right, left + right)
        whole = np.searchsorted(np.cumsum(np.minimum(rows, rows_max + 1)), rows_max, "right")
        part = max(1, rows_max // int(right[0])) if not whole and both[0] else 0
        if part >= left[0]:
            part = 0
        count = max(1, int(whole))
        batches = self._joined(closing.slice(0, count), left[:count], right[:count], part)
        rest = closing.slice(count)
        self._closing = pa.concat_batches([_less(closing, part), rest]) if part else rest
        return batches

    def _joined(
        self, closing: pa.RecordBatch, left: Rows, right: Rows, part: int
    ) -> list[pa.RecordBatch]:
        """Join the records of sessions, and drop the joined records.

        Args:
            left, right: number of records of each session, by side.
            part: number of left records to join, of the only session given; 0: all records.
        """
        start = times_of(closing, START, self._operator)
        end = times_of(closing, END, self._operator)
        keys = self._inputs[0].keys
        sessions = Sessions(closing, keys, hash_rows(closing, keys), start, end - self._gap_ns)
        sides = [
            found_in(table, given, sessions)
            for table, given in zip(self._records, self._inputs, strict=True)
        ]
        for found, count in zip(sides, (left, right), strict=True):
            held = np.bincount(found.session, minlength=len(count))
            assert np.array_equal(held, count), "a session has other records than it counted"
        if part:
            sides[0] = sides[0].first(part)
        sides[0].drop()
        if not part:
            sides[1].drop()
        batches = list(self._pairs(sides[0], sides[1], start, end))
        for side, others in ((0, right), (1, left)):
            if self._alone[side]:
                found = sides[side]
                alone = others[found.session] == 0
                of = found.session[alone]
                taken = found.rows.filter(pa.array(alone))
                batches.append(self._output.alone(side, taken, start[of], end[of]))
        return [batch for batch in batches if batch.num_rows]

    def _pairs(
        self, left: Found, right: Found, start: Times, end: Times
    ) -> Iterator[pa.RecordBatch]:
        ones, others = _crossed(left.session, right.session, len(start))
        for first in range(0, len(ones), _PAIRS_MAX):
            one, other = ones[first : first + _PAIRS_MAX], others[first : first + _PAIRS_MAX]
            of = left.session[one]
            yield self._output.pairs(
                left.rows.take(pa.array(one)), right.rows.take(pa.array(other)), start[of], end[of]
            )


def _counted(left: JoinInput) -> WindowAggregate:
    """Describe the sessions' aggregates: the records of each side."""
    schema = pa.schema(
        [
            *(left.schema.field(key) for key in left.keys),
            pa.field(TIME.name, left.schema.field(left.event_time).type),
            *(pa.field(name, pa.int64()) for name in (*_COUNTS, _ROW)),
        ]
    )
    counts = {name: aggregations.sum(name) for name in _COUNTS}
    out = window_schema(left.keys, TIME.name, counts, schema)
    return WindowAggregate(left.keys, TIME.name, 0, counts, schema, out)


def _crossed(left: Rows, right: Rows, sessions: int) -> tuple[Rows, Rows]:
    """Pair each left row with each right row of its session; both sides are sorted by session."""
    counts = np.bincount(right, minlength=sessions)
    begin = np.cumsum(counts) - counts
    each = counts[left]
    ones = np.repeat(np.arange(len(left)), each)
    within = np.arange(len(ones)) - np.repeat(np.cumsum(each) - each, each)
    return ones, begin[left[ones]] + within


def _less(closing: pa.RecordBatch, part: int) -> pa.RecordBatch:
    """Return the first session with `part` fewer left records."""
    first = closing.slice(0, 1)
    at = closing.schema.get_field_index(_COUNTS[0])
    left = pa.array([first.column(at)[0].as_py() - part], pa.int64())
    return first.set_column(at, closing.schema.field(at), left)

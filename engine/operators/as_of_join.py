"""The as-of join: each left record meets the version of its key that is valid at its time.

The right side is a table that changes: a record is a version of its key, valid from the record's
time until the key's next version. A left record waits until the watermark reaches its time, so
versions that are out of order count. Then the left record meets the newest version that is not
newer than itself; of versions with equal times, the version that came last.

Versions wait in `coming`. Once the watermark has reached a version and the left records up to the
watermark are emitted, the version moves to `current`, which holds one version for each key: no left
record that is still to come needs an older version. So one state finds versions by the time at
which they replace others, and a key that falls silent keeps one version as well.

Left records behind the watermark are late, and handed out. A version behind the watermark counts
for the left records that are still to be emitted, and is never late. A null key meets no version.

Source: Flink's `TemporalRowTimeJoinOperator`; deviation: versions never end, since there are no
retractions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK
from headrace.channels.hashing import Hashes, hash_rows

from ..contract.operators import Advanced, OperatorContext, RestoredState, StateBackend
from ..state.arrays import Mask
from ..state.backend import DUE_SUFFIX, SEQUENCE_STATE, Held, RecordTable
from ..state.runs import MATCHED, TIME, Rows, Run, run_of
from ..state.tables import refuse_unknown
from .backends import keyed_backend
from .join_input import JoinInput, equal_keys, have_keys, side_batches
from .join_output import JoinOutput
from .lateness import WATERMARK_STATE, JudgesLateness
from .windows import Times, times_of

HowAsOf = Literal["inner", "left"]

# Format, never change. Not the names of the other joins' states, which mean something else.
_WAITING, _COMING, _CURRENT = "waiting", "coming", "current"
_STATES = (
    *(_WAITING, _COMING, _CURRENT),
    *(_WAITING + DUE_SUFFIX, _COMING + DUE_SUFFIX),
    SEQUENCE_STATE,
    WATERMARK_STATE,
)


class AsOfJoinOperator(JudgesLateness):
    """Joins the records of the first `left_ports` ports with versions from the other ports."""

    def __init__(
        self,
        left: JoinInput,
        right: JoinInput,
        how: HowAsOf,
        left_ports: int,
        *,
        operator: str,
        backend: StateBackend | None = None,
    ) -> None:
        super().__init__()
        self._stated = backend
        self._left, self._right = left, right
        #: Whether left records without a version are emitted.
        self._alone = how == "left"
        self._left_ports = left_ports
        self._operator = operator
        self._output = JoinOutput(left, right, None)

    def open(self, context: OperatorContext) -> None:
        """Make the backend, and the tables of left records and versions."""
        super().open(context)
        self._backend = backend = keyed_backend(self._stated, context)
        left, right = self._left, self._right
        # Kept for 0 ns: `expired` returns what the watermark has reached.
        self._waiting = backend.records(_WAITING, left.schema, left.keys, 0, unmatched=True)
        self._coming = backend.records(_COMING, right.schema, right.keys, 0, unmatched=True)
        self._current = backend.records(_CURRENT, right.schema, right.keys, None, unmatched=False)

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        refuse_unknown(states, _STATES, self._operator)
        for name, given in self._given():
            side_batches(states, name, given, self._operator)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Restore the left records and versions of this subtask's keys.

        Raises: UserError when the checkpoint's records have other columns.
        """
        refuse_unknown(states, _STATES, self._operator)
        self._time.restore(states)
        self._opened().restore_own(states)
        tables = (self._waiting, self._coming, self._current)
        for (name, given), table in zip(self._given(), tables, strict=True):
            for batch in side_batches(states, name, given, self._operator):
                time = batch.column(TIME.name).to_numpy()
                matched = batch.column(MATCHED.name).to_numpy(zero_copy_only=False)
                table.load(batch.select(given.schema.names), time, matched)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Keep left records or versions; of a left join, emit the left records without a key.

        Raises: UserCodeError when a record has no time.
        """
        self._opened().begin()
        if port >= self._left_ports:
            time = times_of(batch, self._right.event_time, self._operator)
            _keep(self._coming, batch, time, have_keys(batch, self._right.keys))
            return ()
        time = times_of(batch, self._left.event_time, self._operator)
        late = time <= self._time.of(batch, self._left.keys)
        self._late.add(batch, late)
        valid = have_keys(batch, self._left.keys)
        _keep(self._waiting, batch, time, valid & ~late)
        alone = np.flatnonzero(~valid & ~late)
        if not self._alone or not len(alone):
            return ()
        return [self._output.alone(0, batch.take(pa.array(alone)), time[alone])]

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Emit the left records up to the watermark, and then replace versions."""
        self._time.advance(watermark_ns)
        self._opened().begin()
        due = self._waiting.expired(watermark_ns, rows_max)
        batches = [self._joined(due.rows, due.time)] if due.rows.num_rows else []
        # A version is replaced only when every left record that needs it has been emitted.
        if not due.done or due.count >= rows_max:
            return Advanced(batches, done=False)
        reached = self._coming.expired(watermark_ns, rows_max - due.count)
        if reached.rows.num_rows:
            self._replace(reached.rows, reached.time)
        return Advanced(batches, reached.done)

    def _given(self) -> list[tuple[str, JoinInput]]:
        return [(_WAITING, self._left), (_COMING, self._right), (_CURRENT, self._right)]

    def _joined(self, rows: pa.RecordBatch, time: Times) -> pa.RecordBatch:
        """Join left records, in the order of time, with their versions."""
        order = np.argsort(time, kind="stable")
        rows, time = rows.take(pa.array(order)), time[order]
        hashes = hash_rows(rows, self._left.keys)
        low = np.full(len(time), MIN_WATERMARK)
        # Current before coming: of versions of one time the last that came counts.
        held = [*self._current.find(hashes, low, time), *self._coming.find(hashes, low, time)]
        newest = np.full(len(time), MIN_WATERMARK)
        source, place = np.full(len(time), -1), np.full(len(time), -1)
        for number, one in enumerate(held):
            found = _newest(one.run, self._right.keys, rows, self._left.keys, hashes, time)
            better = np.flatnonzero(found >= 0)
            better = better[one.run.time[found[better]] >= newest[better]]
            newest[better] = one.run.time[found[better]]
            source[better], place[better] = number, found[better]
        if not self._alone:
            met = np.flatnonzero(source >= 0)
            rows, time = rows.take(pa.array(met)), time[met]
            source, place = source[met], place[met]
        return self._output.pairs(rows, self._versions(held, source, place), time)

    def _versions(self, held: Sequence[Held], source: Rows, place: Rows) -> pa.RecordBatch:
        """Take row `place` of the run `source`, row by row; nulls where `source` is -1."""
        taken = [pa.RecordBatch.from_pylist([], schema=self._right.schema)]
        at, count = np.zeros(len(source), np.int64), 0
        for number, one in enumerate(held):
            mine = np.flatnonzero(source == number)
            taken.append(one.run.rows.take(pa.array(place[mine])))
            at[mine] = np.arange(count, count + len(mine))
            count += len(mine)
        return pa.concat_batches(taken).take(pa.array(at, mask=source < 0))

    def _replace(self, rows: pa.RecordBatch, time: Times) -> None:
        """Make the newest of these versions the current versions of their keys."""
        keys = self._right.keys
        run = run_of(rows, keys, time, np.zeros(len(time), np.bool_))
        hashes = hash_rows(run.rows, keys)
        last = np.full(len(time), time.max())
        newest = np.unique(_newest(run, keys, run.rows, keys, hashes, last))
        rows, time, hashes = run.rows.take(pa.array(newest)), run.time[newest], hashes[newest]
        replaces = np.ones(len(time), np.bool_)
        # A current version may be newer than these: versions may come behind the watermark.
        low, high = np.full(len(time), MIN_WATERMARK), np.full(len(time), MAX_WATERMARK)
        for one in self._current.find(hashes, low, high):
            found = _newest(one.run, keys, rows, keys, hashes, high)
            known = np.flatnonzero(found >= 0)
            older = one.run.time[found[known]] <= time[known]
            one.drop(found[known[older]])
            replaces[known[~older]] = False
        _keep(self._current, rows, time, replaces)


def _keep(table: RecordTable, batch: pa.RecordBatch, time: Times, kept: Mask) -> None:
    """Add the records that `kept` marks."""
    if not kept.all():
        batch, time = batch.filter(pa.array(kept)), time[kept]
    if batch.num_rows:
        table.add(batch, time, np.zeros(batch.num_rows, np.bool_))


def _newest(
    run: Run,
    run_keys: Sequence[str],
    rows: pa.RecordBatch,
    keys: Sequence[str],
    hashes: Hashes,
    high: Times,
) -> Rows:
    """Find for each of `rows` the newest record of the run with its key and time <= high.

    Returns rows of the run; -1: there is none. Of equal times the last row counts.
    """
    first, end = run.spans(hashes, np.full(len(high), MIN_WATERMARK), high)
    newest = np.full(len(high), -1)
    at = end - 1
    open_ = np.flatnonzero(at >= first)
    # A dropped version, which a run may still hold, is older than its key's current version, and
    # so never the newest. More than one round only where different keys have one hash.
    while len(open_):
        candidates = at[open_]
        equal = equal_keys(rows, keys, open_, run.rows, run_keys, candidates)
        newest[open_[equal]] = candidates[equal]
        open_ = open_[~equal]
        at[open_] -= 1
        open_ = open_[at[open_] >= first[open_]]
    return newest

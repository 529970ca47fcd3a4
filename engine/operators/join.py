"""Joins of two streams by key and event time.

A record is joined with the stored records of the other side, and stored until the watermark
excludes further matches. An interval join matches by distance in time, a windowed join by window.
In both, a record has a *time* (its own, or the start of its window), and the times of a pair differ
within fixed bounds. So even a windowed join emits a pair as soon as both records are there; an
outer join emits unmatched records when the watermark has passed.

Records behind the watermark (with windows behind the watermark) are late, dropped and counted. A
null key matches no record, as in SQL.

Source: Flink's `IntervalJoinOperator`; deviations: outer joins, and windowed joins that do not wait
for the window's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.channels.hashing import Hashes, hash_rows

from ..contract.operators import (
    Advanced,
    OperatorContext,
    RestoredState,
    StateBackend,
)
from ..state.arrays import Mask
from ..state.backend import DUE_SUFFIX, SEQUENCE_STATE, RecordTable
from ..state.runs import MATCHED, TIME, Rows, Run
from ..state.tables import refuse_unknown
from .backends import keyed_backend
from .join_input import JoinInput, equal_keys, have_keys, side_batches
from .join_output import JoinOutput
from .lateness import WATERMARK_STATE, JudgesLateness
from .windows import Times, TimeWindow, times_of

How = Literal["inner", "left", "right", "full"]

# Format, never change.
SIDES = ("left", "right")

#: Pairs made into a batch at a time.
_PAIRS_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Interval:
    """left.time + low <= right.time <= left.time + high, in nanoseconds."""

    low_ns: int
    high_ns: int


class JoinOperator(JudgesLateness):
    """Joins the records of the first `left_ports` ports with the records of the other ports."""

    def __init__(
        self,
        left: JoinInput,
        right: JoinInput,
        match: Interval | TimeWindow,
        how: How,
        left_ports: int,
        *,
        operator: str,
        backend: StateBackend | None = None,
    ) -> None:
        super().__init__()
        self._stated = backend
        self._inputs = (left, right)
        self._window = match if isinstance(match, TimeWindow) else None
        self._bounds = match if isinstance(match, Interval) else Interval(0, 0)
        self._left_ports = left_ports
        self._operator = operator
        self._output = JoinOutput(left, right, self._window)
        #: By side, whether its records are emitted without a partner.
        self._alone = (how in ("left", "full"), how in ("right", "full"))
        #: By side: nanoseconds beyond its time in which a record may still meet a record of the
        #: other side.
        self._kept_ns = (
            (match.size_ns - 1,) * 2
            if isinstance(match, TimeWindow)
            else (match.high_ns, -match.low_ns)
        )

    def open(self, context: OperatorContext) -> None:
        """Make the backend, and a table for each side."""
        super().open(context)
        self._backend = backend = keyed_backend(self._stated, context)
        self._sides: list[RecordTable] = [
            backend.records(name, given.schema, given.keys, kept_ns, unmatched=alone)
            for name, given, kept_ns, alone in zip(
                SIDES, self._inputs, self._kept_ns, self._alone, strict=True
            )
        ]

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        refuse_unknown(states, _STATES, self._operator)
        for side in (0, 1):
            self._batches(states, side)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Restore the records of this subtask's keys.

        Raises: UserError when the checkpoint's records have other columns.
        """
        refuse_unknown(states, _STATES, self._operator)
        self._time.restore(states)
        self._opened().restore_own(states)
        for side, given in enumerate(self._inputs):
            for batch in self._batches(states, side):
                time = batch.column(TIME.name).to_numpy()
                matched = batch.column(MATCHED.name).to_numpy(zero_copy_only=False)
                self._sides[side].load(batch.select(given.schema.names), time, matched)

    def _batches(self, states: Sequence[RestoredState], side: int) -> list[pa.RecordBatch]:
        return side_batches(states, SIDES[side], self._inputs[side], self._operator)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit the pairs of a batch with stored records of the other side, and store the batch.

        Raises: UserCodeError when a record has no time.
        """
        self._opened().begin()
        side = 0 if port < self._left_ports else 1
        batch, time = self._in_time(side, batch)
        valid = have_keys(batch, self._inputs[side].keys)
        if not valid.all():
            if self._alone[side]:
                alone = np.flatnonzero(~valid)
                yield self._output.alone(side, batch.take(pa.array(alone)), time[alone])
            batch, time = batch.filter(pa.array(valid)), time[valid]
        if not batch.num_rows:
            return
        matched = np.zeros(batch.num_rows, np.bool_)
        yield from self._probe(side, batch, time, matched)
        self._sides[side].add(batch, time, matched)

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Drop expired records; in an outer join, emit unmatched records."""
        self._time.advance(watermark_ns)
        self._opened().begin()
        batches: list[pa.RecordBatch] = []
        room, done = rows_max, True
        for side, table in enumerate(self._sides):
            expired = table.expired(watermark_ns, room)
            if self._alone[side] and expired.rows.num_rows:
                batches.append(self._output.alone(side, expired.rows, expired.time))
            room -= expired.count
            done = done and expired.done
        return Advanced(batches, done)

    def _in_time(self, side: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Times]:
        """Set late records aside. Returns the others, once for each window, with their times."""
        given = self._inputs[side]
        time = times_of(batch, given.event_time, self._operator)
        passed = self._time.of(batch, given.keys)
        if self._window is None:
            late = time <= passed
            self._late.add(batch, late)
            return (batch.filter(pa.array(~late)), time[~late]) if late.any() else (batch, time)
        rows, starts = self._window.starts(time)
        if rows is None:
            rows = np.arange(len(time))
        accepted = starts + (self._window.size_ns - 1) > (
            passed if isinstance(passed, int) else passed[rows]
        )
        late = np.ones(len(time), np.bool_)
        late[rows[accepted]] = False
        self._late.add(batch, late)
        if len(rows) == len(time) and accepted.all():
            return batch, starts
        return batch.take(pa.array(rows[accepted])), starts[accepted]

    def _probe(
        self, side: int, batch: pa.RecordBatch, time: Times, matched: Mask
    ) -> Iterator[pa.RecordBatch]:
        """Emit the pairs with the other side's records; mark matches on both sides."""
        mine = self._inputs[side]
        low, high = self._bounds.low_ns, self._bounds.high_ns
        if side == 1:
            low, high = -high, -low
        hashes = hash_rows(batch, mine.keys)
        for held in self._sides[1 - side].find(hashes, time + low, time + high):
            probing, found = self._met(side, batch, held.run, hashes, time + low, time + high)
            matched[probing] = True
            if self._alone[1 - side] and len(found):
                held.met(found)
            yield from self._pairs(side, batch, held.run, time, probing, found)

    def _met(
        self, side: int, batch: pa.RecordBatch, run: Run, hashes: Hashes, low: Times, high: Times
    ) -> tuple[Rows, Rows]:
        """Find matches. Returns pairs (row of the batch, row of the run)."""
        mine, theirs = self._inputs[side], self._inputs[1 - side]
        probing, found = run.probe(hashes, low, high)
        equal = equal_keys(batch, mine.keys, probing, run.rows, theirs.keys, found)
        return probing[equal], found[equal]

    def _pairs(
        self, side: int, batch: pa.RecordBatch, run: Run, time: Times, probing: Rows, found: Rows
    ) -> Iterator[pa.RecordBatch]:
        for first in range(0, len(probing), _PAIRS_MAX):
            own = pa.array(probing[first : first + _PAIRS_MAX])
            other = pa.array(found[first : first + _PAIRS_MAX])
            sides = (batch.take(own), run.rows.take(other))
            times = time[probing[first : first + _PAIRS_MAX]]
            yield self._output.pairs(*(sides if side == 0 else sides[::-1]), times)


_STATES = (
    *SIDES,
    *(side + DUE_SUFFIX for side in SIDES),
    SEQUENCE_STATE,
    WATERMARK_STATE,
)

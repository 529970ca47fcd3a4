"""What a join in sessions keeps of its two sides, and how the records of a session are found in it.

A record lies where the hash of its key and its time put it (`join_runs.py`, `rocks_records.py`). It is not told which session it is in, since
sessions merge: those of a session are the records of its key between its first and its last. Sessions of a key do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.channels.hashing import Hashes

from ..contract.operators import RestoredState, StateKind, StateLayout, StateSnapshot
from ..state.arrays import Mask
from .join_runs import JoinInput, Rows, Run, appended, equal_keys, run_of, table_of
from .windows import Times

# Format, never change. Not the names of the other joins' states, which mean something else.
SIDES = ("left_records", "right_records")


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions whose records are wanted: of each the key and its hash, and the times of its first and last record."""

    rows: pa.RecordBatch
    keys: Sequence[str]
    hashes: Hashes
    first: Times
    last: Times


@dataclass(frozen=True, slots=True)
class Found:
    """Records of sessions, ordered by session.

    Attributes:
        session: of each record, the row of its session.
        run, place: where it lies.
    """

    rows: pa.RecordBatch
    session: Rows
    run: Rows
    place: Rows

    def first(self, count: int) -> Found:
        """The first `count` of them."""
        return Found(
            self.rows.slice(0, count), self.session[:count], self.run[:count], self.place[:count]
        )


class SessionRecords(Protocol):
    """The records of both sides of one subtask's join."""

    @property
    def layouts(self) -> dict[str, StateLayout]:
        """The states that lie in a database, by name."""
        ...

    def begin(self) -> None:
        """Before a batch or a slice. Subtask thread, as all but `commit` and `snapshot`."""
        ...

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take back what is not records."""
        ...

    def load(self, side: int, batch: pa.RecordBatch, time: Times) -> None:
        """Take back records; they count as committed."""
        ...

    def add(self, side: int, batch: pa.RecordBatch, time: Times) -> None:
        """Keep the records of a batch."""
        ...

    def find(self, side: int, sessions: Sessions) -> Found:
        """Find the records of sessions."""
        ...

    def drop(self, side: int, found: Found) -> None:
        """Forget records that were found last."""
        ...

    def commit(self) -> None:
        """Publish what was added and dropped; in a database, when that is committed next. Owner thread."""
        ...

    def snapshot(self) -> list[StateSnapshot]:
        """Freeze what is committed in memory. Owner thread."""
        ...


class HeapRecords:
    """Records in memory. A mark in a `Run` (`matched`) says that a record was dropped: the rest is not sorted anew for each session."""

    def __init__(self, inputs: Sequence[JoinInput], max_parallelism: int) -> None:
        self._inputs = inputs
        self._max_parallelism = max_parallelism
        self._runs: list[tuple[Run, ...]] = [(), ()]
        self._committed = tuple(self._runs)

    @property
    def layouts(self) -> dict[str, StateLayout]:
        """There is no database."""
        return {}

    def begin(self) -> None:
        """Nothing is to be done."""

    def restore(self, states: Sequence[RestoredState]) -> None:
        """There is nothing but records."""

    def load(self, side: int, batch: pa.RecordBatch, time: Times) -> None:
        """See `SessionRecords`."""
        self.add(side, batch, time)
        self.commit()

    def add(self, side: int, batch: pa.RecordBatch, time: Times) -> None:
        """See `SessionRecords`."""
        keys = self._inputs[side].keys
        run = run_of(batch, keys, time, np.zeros(batch.num_rows, np.bool_))
        self._runs[side] = appended(self._runs[side], run, keys)

    def find(self, side: int, sessions: Sessions) -> Found:
        """See `SessionRecords`."""
        given = self._inputs[side]
        found = [
            found_in(run, number, given, sessions) for number, run in enumerate(self._runs[side])
        ]
        return joined_found(found, given)

    def drop(self, side: int, found: Found) -> None:
        """See `SessionRecords`."""
        runs = [
            _without(run, found.place[found.run == number])
            for number, run in enumerate(self._runs[side])
        ]
        self._runs[side] = tuple(run for run in runs if run is not None)

    def commit(self) -> None:
        """See `SessionRecords`."""
        self._committed = tuple(self._runs)

    def snapshot(self) -> list[StateSnapshot]:
        """Keep the committed runs; they do not change."""
        return [
            StateSnapshot(
                name, StateKind.KEYED, partial(_table, runs, given, self._max_parallelism)
            )
            for name, runs, given in zip(SIDES, self._committed, self._inputs, strict=True)
        ]


def found_in(run: Run, number: int, given: JoinInput, sessions: Sessions) -> Found:
    """Find the records of sessions in the run of that number."""
    session, place = run.probe(sessions.hashes, sessions.first, sessions.last)
    wanted = equal_keys(sessions.rows, sessions.keys, session, run.rows, given.keys, place)
    wanted &= ~run.matched[place]
    session, place = session[wanted], place[wanted]
    return Found(run.rows.take(pa.array(place)), session, np.full(len(place), number), place)


def joined_found(found: Sequence[Found], given: JoinInput) -> Found:
    """Bring what was found in several runs into the order of sessions."""
    if not found:
        none = np.zeros(0, np.int64)
        return Found(pa.RecordBatch.from_pylist([], schema=given.schema), none, none, none)
    session = np.concatenate([f.session for f in found])
    order = np.argsort(session, kind="stable")
    rows = pa.concat_batches([f.rows for f in found]).take(pa.array(order))
    run = np.concatenate([f.run for f in found])[order]
    return Found(rows, session[order], run, np.concatenate([f.place for f in found])[order])


def _without(run: Run, places: Rows) -> Run | None:
    """Mark records as dropped; when they are the greater part, leave them out. None: there are no others."""
    if not len(places):
        return run
    marked = run.met(places)
    dropped: Mask = marked.matched
    few = 2 * np.count_nonzero(dropped) < len(dropped)
    return marked if few else marked.without(dropped)


def _table(runs: Sequence[Run], given: JoinInput, max_parallelism: int) -> pa.Table:
    kept = [run.without(run.matched) for run in runs]
    return table_of([run for run in kept if run is not None], given, max_parallelism)

"""The records of a session in a table of records.

A table finds records by the hash of their key and by time. The table does not know sessions, since
sessions merge: the records of a session are the key's records between the session's first and last
time. Sessions of a key do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.channels.hashing import Hashes

from ..state.backend import Held, RecordTable
from ..state.runs import Rows
from .join_input import JoinInput, equal_keys
from .windows import Times

# Format, never change. Not the names of the other joins' states, which mean something else.
SIDES = ("left_records", "right_records")


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions to find records of: key, hash of the key, times of the first and last record."""

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
        held: where the records are stored.
        run, place: of each record, the index in `held`, and the row there.
    """

    rows: pa.RecordBatch
    session: Rows
    held: Sequence[Held]
    run: Rows
    place: Rows

    def first(self, count: int) -> Found:
        """Return the first `count` records."""
        rows, session = self.rows.slice(0, count), self.session[:count]
        return Found(rows, session, self.held, self.run[:count], self.place[:count])

    def drop(self) -> None:
        """Forget the records."""
        for number, held in enumerate(self.held):
            held.drop(self.place[self.run == number])


def found_in(table: RecordTable, given: JoinInput, sessions: Sessions) -> Found:
    """Find the records of sessions in the table of one side."""
    held = table.find(sessions.hashes, sessions.first, sessions.last)
    batches = [pa.RecordBatch.from_pylist([], schema=given.schema)]
    none = np.zeros(0, np.int64)
    session, runs, place = [none], [none], [none]
    for number, one in enumerate(held):
        of, rows = _found_in(one, given, sessions)
        batches.append(one.run.rows.take(pa.array(rows)))
        session.append(of)
        runs.append(np.full(len(rows), number))
        place.append(rows)
    whole = np.concatenate(session)
    order = np.argsort(whole, kind="stable")
    found = pa.concat_batches(batches).take(pa.array(order))
    return Found(
        found, whole[order], held, np.concatenate(runs)[order], np.concatenate(place)[order]
    )


def _found_in(held: Held, given: JoinInput, sessions: Sessions) -> tuple[Rows, Rows]:
    """Return the session of each record, and the record's row."""
    run = held.run
    session, rows = run.probe(sessions.hashes, sessions.first, sessions.last)
    wanted = equal_keys(sessions.rows, sessions.keys, session, run.rows, given.keys, rows)
    wanted &= ~run.matched[rows]
    return session[wanted], rows[wanted]

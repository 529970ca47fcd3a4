"""The records of a join in sessions that lie in RocksDB, beside the sessions themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.channels.keygroups import key_group_range

from ..contract.operators import OperatorContext, RestoredState, StateLayout, StateSnapshot
from ..state.rocks.database import RocksDatabase
from .join_runs import JoinInput
from .rocks_records import Numbers, RocksRecords
from .session_records import SIDES, Found, Sessions, found_in, joined_found
from .windows import Times


class RocksSessionRecords:
    """See `SessionRecords`. Whoever has the database commits it."""

    def __init__(
        self, database: RocksDatabase, inputs: Sequence[JoinInput], context: OperatorContext
    ) -> None:
        self._database = database
        self._inputs = inputs
        self._sides = [
            RocksRecords(database, name, given, context.max_parallelism)
            for name, given in zip(SIDES, inputs, strict=True)
        ]
        groups = key_group_range(context.max_parallelism, context.parallelism, context.index)
        self._numbers = Numbers(groups)
        #: By side, the stored keys of what was read last.
        self._read: list[Sequence[bytes]] = [(), ()]

    @property
    def layouts(self) -> dict[str, StateLayout]:
        """See `SessionRecords`."""
        return {side.rows.layout.name: side.rows.layout for side in self._sides}

    def begin(self) -> None:
        """Apply what earlier calls wrote."""
        if not any(side.rows.is_written for side in self._sides):
            self._database.settle()

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take back from which number on records have none yet."""
        self._numbers.restore(states)

    def load(self, side: int, batch: pa.RecordBatch, time: Times) -> None:
        """See `SessionRecords`."""
        self._sides[side].rows.load(self._entries(side, batch, time))
        self._numbers.commit()

    def add(self, side: int, batch: pa.RecordBatch, time: Times) -> None:
        """See `SessionRecords`."""
        self._sides[side].rows.put(self._entries(side, batch, time))

    def find(self, side: int, sessions: Sessions) -> Found:
        """See `SessionRecords`."""
        given = self._inputs[side]
        held = self._sides[side].candidates(sessions.hashes, sessions.first, sessions.last)
        if held is None:
            return joined_found([], given)
        self._read[side] = held.keys
        return joined_found([found_in(held.run, 0, given, sessions)], given)

    def drop(self, side: int, found: Found) -> None:
        """See `SessionRecords`."""
        keys = self._read[side]
        self._sides[side].drop(keys[place] for place in found.place.tolist())

    def commit(self) -> None:
        """Hand over what was written, just before the database commits."""
        self._numbers.commit()
        for side in self._sides:
            side.rows.stage()

    def snapshot(self) -> list[StateSnapshot]:
        """Freeze the number of the next record."""
        return [self._numbers.snapshot()]

    def _entries(self, side: int, batch: pa.RecordBatch, time: Times) -> list[tuple[bytes, bytes]]:
        unmarked = np.zeros(batch.num_rows, np.bool_)
        entries = self._sides[side].entries(batch, time, unmarked, self._numbers.next)
        self._numbers.next += batch.num_rows
        return entries

"""Running aggregates per key that expire: a key without records for its time to live begins anew.

Each key has one row: its aggregates and its expiry, which every record postpones. The row is a
window of the key that never fires and is dropped at its end, so the state of windows serves here:
columns in memory or rows in RocksDB, and an index of the rows to drop.

"Now" is a record's own time, or the watermark if higher. So a record sees the same state in a
replay after a failure: the state depends only on the records of its key and their order, and no
record can see dropped state. One running maximum over the batch, sorted by key, separates several
lives of a key within a batch. Expiry of a key emits no row.

Source: Flink's `StateTtlConfig` (update on write, never return expired); deviation: event time,
where Flink has processing time alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..contract.errors import UserError
from ..contract.operators import Advanced, StateBackend
from ..state.arrays import Mask
from ..state.slots import Slots
from .aggregations import Aggregation
from .session import reached
from .window import WindowOperator
from .window_output import window_schema
from .window_store import END, FIRED, NEVER, START, WindowAggregate
from .windows import Times, times_of

_AT = pa.field("__at", pa.timestamp("ns"))
#: In memory, rows of expired keys are looked for so often in the time that a key lives.
_ROUNDS_PER_TTL = 4


class ExpiringAggregate(WindowOperator):
    """Aggregates by key, and emits the keys of each batch. A row's slot is its key's slot.

    Args:
        event_time: the event-time column.
        ttl_ns: time from a key's last record to its expiry.

    Raises: UserError when a key or an aggregation has a name that the state needs.
    """

    state_name = "expiring"

    def __init__(
        self,
        keys: Sequence[str],
        event_time: str,
        ttl_ns: int,
        aggregations: Mapping[str, Aggregation],
        schema_in: pa.Schema,
        *,
        operator: str,
        backend: StateBackend | None = None,
    ) -> None:
        for name in (START, END, FIRED, _AT.name):
            if name in (*keys, *aggregations):
                raise UserError(
                    f"aggregate: {name!r} is a name that state with a ttl needs for itself; rename"
                    " it with select() before"
                )
        # Expiry is in nanoseconds whatever the column's unit: a watermark may lie between two times
        # of the column.
        told = pa.schema([*(field for field in schema_in if field.name != _AT.name), _AT])
        out = window_schema(keys, _AT.name, aggregations, told)
        spec = WindowAggregate(keys, _AT.name, 0, aggregations, told, out)
        super().__init__(spec, operator=operator, backend=backend)
        self._event_time = event_time
        self._ttl_ns = ttl_ns
        self._names = [*keys, *aggregations]
        #: Event time when rows of expired keys were last looked for.
        self._swept_ns = MIN_WATERMARK

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Drop expired keys; at the end of input expired keys may stay."""
        if watermark_ns == MAX_WATERMARK:
            return Advanced((), done=True)
        advanced = super().advance(watermark_ns, rows_max)
        due_ns = self._swept_ns + self._ttl_ns // _ROUNDS_PER_TTL
        if watermark_ns >= due_ns:
            self._swept_ns = watermark_ns
            self._compact()
        return advanced

    def _forget(self) -> None:
        """Slots are the keys' own."""

    def _times(self, batch: pa.RecordBatch) -> Times:
        return times_of(batch, self._event_time, self._operator)

    def _emits(self, changed: Slots) -> Slots:
        return changed

    def _output(self, slots: Slots) -> pa.RecordBatch:
        return super()._output(slots).select(self._names)

    def _numbered(self, batch: pa.RecordBatch) -> Slots:
        slots = self._store.keys.lookup(batch)
        self._grow()
        return slots

    def _assign(self, batch: pa.RecordBatch, times: Times, watermark: Times | int) -> Slots:
        store = self._store
        slots = self._numbered(batch)
        self._rows.recall()
        touched, expires, anew, kept = self._lives(slots, np.maximum(times, watermark))
        store.aggregates.clear(anew)
        if kept.all():
            store.aggregates.add(slots, batch.column)
        else:
            store.aggregates.add(slots[kept], batch.filter(pa.array(kept)).column)
        store.open(touched, touched, np.zeros_like(touched), expires)
        store.fire_at.working[touched] = NEVER
        return touched

    def _lives(self, slots: Slots, now: Times) -> tuple[Slots, Times, Slots, Mask]:
        """Find the lives of keys in a batch.

        Returns: the keys, their new expiry, the keys that begin anew, and a mask of the records in
        each key's present life.
        """
        order = np.argsort(slots, kind="stable")
        key, time = slots[order], now[order]
        begins = np.ones(len(key), np.bool_)
        begins[1:] = key[1:] != key[:-1]
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(key)) - 1
        expires = self._store.last.working[key[first]]
        before = np.where(expires == NEVER, MIN_WATERMARK, expires - self._ttl_ns)
        highest = time.copy()
        highest[first] = np.maximum(time[first], before)
        written = reached(key, highest)
        previous = np.append(before[:1], written[:-1])
        previous[first] = before
        anew = (previous != MIN_WATERMARK) & (previous + self._ttl_ns <= time)
        newest = np.maximum.accumulate(np.where(anew, np.arange(len(key)), -1))[last]
        life = np.maximum(newest, first)
        kept = np.empty(len(key), np.bool_)
        kept[order] = np.arange(len(key)) >= np.repeat(life, last - first + 1)
        return key[first], written[last] + self._ttl_ns, key[first][newest >= first], kept

    def _grow(self) -> None:
        """Give new keys rows; an unwritten row does not expire."""
        known = self._store.count
        self._store.grow(self._store.keys.count)
        new = np.arange(known, self._store.count)
        self._store.key.working[new] = new
        self._store.last.working[new] = NEVER

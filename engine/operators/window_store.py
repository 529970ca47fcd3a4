"""Windows of keys with their aggregates: the state that every window operator works on.

A row is one window of one key: bounds, firing time, and one value of each aggregate, in columns
(`engine.state.columns`). The operator numbers rows. Dead rows stay until `compacted` makes a new
store of the rest; the old store remains unchanged, so checkpoints may read the old store until the
new store is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK

from ..state.arrays import Mask, Values
from ..state.columns import StateColumn
from ..state.keys import KeySlots
from ..state.slots import Slots
from .aggregates import Aggregates
from .aggregations import Aggregation
from .windows import Times, from_times, times_of

# Format, never change.
START, END, FIRED = "window_start", "window_end", "window_fired"
#: Metadata of the column `START` in a checkpoint: the kind of windows.
_WINDOW = b"window"

#: `fire_at` of a row that has fired, or is no more.
NEVER = MAX_WATERMARK

_INT64 = np.dtype(np.int64)
#: Fewer dead rows than this are not worth a compaction.
_DEAD_ROWS_MIN = 4096


@dataclass(frozen=True, slots=True)
class WindowAggregate:
    """A windowed aggregate per key: columns, windows and aggregations.

    Attributes:
        keys: key columns.
        event_time: the event-time column.
        lateness_ns: how long a window stays after its end.
        aggregations: {column of the result: aggregation}.
        schema_out: of the result: key columns, bounds, aggregates (`window_output.window_schema`).
        window: identifies the kind of windows; stored with the columns. Empty: any windows will do.
    """

    keys: Sequence[str]
    event_time: str
    lateness_ns: int
    aggregations: Mapping[str, Aggregation]
    schema_in: pa.Schema
    schema_out: pa.Schema
    window: str = ""


class WindowStore:
    """The windows of one subtask.

    Attributes:
        keys: numbers the keys; `key` refers to this number.
        start: of the window, in nanoseconds since 1970.
        last: the last nanosecond of the window.
        fire_at: the watermark at which the window fires; `NEVER` once fired.
        gone: True for a row that was merged into another.
        count: rows, provisional rows included.
        committed: published rows.
    """

    def __init__(self, spec: WindowAggregate, operator: str) -> None:
        self._spec = spec
        self._operator = operator
        self._time_type = spec.schema_in.field(spec.event_time).type
        self.keys = KeySlots(spec.schema_in, spec.keys)
        self.aggregates = Aggregates(spec.aggregations, spec.schema_in, operator)
        self.key = StateColumn(_INT64, 0)
        self.start = StateColumn(_INT64, 0)
        self.last = StateColumn(_INT64, 0)
        self.fire_at = StateColumn(_INT64, NEVER)
        self.gone = StateColumn(np.dtype(np.bool_), False)
        self._columns = (self.key, self.start, self.last, self.fire_at, self.gone)
        self.count = 0
        self.committed = 0
        self.schema = pa.schema(
            [
                *self.keys.fields,
                pa.field(START, self._time_type, nullable=False, metadata=_told(spec.window)),
                pa.field(END, self._time_type, nullable=False),
                pa.field(FIRED, pa.bool_(), nullable=False),
                *self.aggregates.fields,
            ]
        )

    def grow(self, count: int) -> None:
        """Make room for `count` rows; new rows have no bounds yet and never fire."""
        for column in self._columns:
            column.grow(count)
        self.aggregates.grow(count)
        self.count = count

    def open(self, slots: Slots, keys: Slots, starts: Times, lasts: Times) -> None:
        """Set key and bounds of windows; a window fires when event time has passed its end."""
        self.key.working[slots] = keys
        self.start.working[slots] = starts
        self.last.working[slots] = lasts
        self.fire_at.working[slots] = lasts

    def stage(self, slots: Slots) -> None:
        """Note that these rows changed."""
        for column in self._columns:
            column.stage(slots)
        self.aggregates.stage(slots)

    def commit(self) -> None:
        """Publish the staged changes, and the new rows."""
        for column in self._columns:
            column.commit()
        self.aggregates.commit()
        self.keys.commit()
        self.committed = self.count

    def due(self, watermark_ns: int) -> Slots:
        """Find the rows that fire at this watermark, earliest end first."""
        due = np.flatnonzero(self.fire_at.working[: self.count] <= min(watermark_ns, NEVER - 1))
        return due[
            np.lexsort((self.key.working[due], self.start.working[due], self.last.working[due]))
        ]

    def next_due(self, slots: Slots | None = None) -> int:
        """The lowest watermark at which one of these rows, or any, fires; `NEVER`: none fires."""
        rows = slice(self.count) if slots is None else slots
        return int(self.fire_at.working[rows].min(initial=NEVER))

    def fired(self, slots: Slots) -> None:
        """Note that these rows have been emitted in their present state."""
        self.fire_at.working[slots] = NEVER
        self.fire_at.stage(slots)

    def output(self, slots: Slots, schema: pa.Schema) -> pa.RecordBatch:
        """Make the emitted rows: key columns, bounds, aggregates."""
        columns = [
            *self.keys.take(self.key.working[slots]),
            from_times(self.start.working[slots], self._time_type),
            from_times(self.last.working[slots] + 1, self._time_type),
            *self.aggregates.results(slots),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def freeze(self, kept_ns: int, watermark_ns: int) -> Callable[[], pa.RecordBatch]:
        """Copy the committed live rows.

        A live row has not fired, or has fired less than `kept_ns` of event time ago.
        """
        count = self.committed
        keys = self.keys.freeze()
        key, start, last, fire_at, gone = (column.freeze(count) for column in self._columns)
        aggregates = self.aggregates.freeze(count)

        def rows() -> pa.RecordBatch:
            live = np.flatnonzero(_live(last, fire_at, gone, kept_ns, watermark_ns))
            taken = pa.array(live)
            return self._batch(
                [column.take(pa.array(key[live])) for column in keys()],
                (start[live], last[live], fire_at[live]),
                [column.take(taken) for column in aggregates()],
            )

        return rows

    def live(self, slots: Slots, kept_ns: int, watermark_ns: int) -> Mask:
        """Tell which rows live; see `freeze`."""
        last, fire_at, gone = (
            column.working[slots] for column in (self.last, self.fire_at, self.gone)
        )
        return _live(last, fire_at, gone, kept_ns, watermark_ns)

    def due_at(self, rows: pa.RecordBatch, kept_ns: int) -> Times:
        """Return the watermarks at which stored rows fire or, once fired, are dropped."""
        last = times_of(rows, END, self._operator) - 1
        fired = rows.column(FIRED).to_numpy(zero_copy_only=False)
        due: Times = last + kept_ns * fired.astype(np.int64)
        return due

    def compacted(
        self, kept_ns: int, watermark_ns: int
    ) -> tuple[WindowStore, pa.RecordBatch] | None:
        """Make an empty store and the rows to load into the store, if enough rows are dead."""
        last, fire_at, gone = (
            column.working[: self.count] for column in (self.last, self.fire_at, self.gone)
        )
        live = np.flatnonzero(_live(last, fire_at, gone, kept_ns, watermark_ns))
        # Late records leave keys behind that have no rows.
        if max(self.count, self.keys.count) - len(live) < max(_DEAD_ROWS_MIN, len(live)):
            return None
        return WindowStore(self._spec, self._operator), self.rows(live)

    def rows(self, slots: Slots) -> pa.RecordBatch:
        """Make rows of `schema` of some slots from the working values."""
        columns = [*self.names(slots), *self.values(slots)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def names(self, slots: Slots) -> list[pa.Array]:
        """Make the key columns and the starts of some windows."""
        keys = self.keys.take(self.key.working[slots])
        return [*keys, from_times(self.start.working[slots], self._time_type)]

    def values(self, slots: Slots) -> list[pa.Array]:
        """Make the other columns."""
        ends = from_times(self.last.working[slots] + 1, self._time_type)
        fired = pa.array(self.fire_at.working[slots] == NEVER)
        return [ends, fired, *self.aggregates.working(slots)]

    def load(self, slots: Slots, batch: pa.RecordBatch) -> None:
        """Restore rows of `schema`; restored rows count as committed."""
        fired = batch.column(FIRED).to_numpy(zero_copy_only=False)
        last = times_of(batch, END, self._operator) - 1
        self.key.load(slots, self.keys.lookup(batch))
        self.start.load(slots, times_of(batch, START, self._operator))
        self.last.load(slots, last)
        self.fire_at.load(slots, np.where(fired, NEVER, last))
        first = batch.schema.get_field_index(FIRED) + 1
        self.aggregates.load(slots, batch.columns[first:])
        self.keys.commit()
        self.committed = self.count

    def _batch(
        self, keys: list[pa.Array], bounds: tuple[Values, Values, Values], stored: list[pa.Array]
    ) -> pa.RecordBatch:
        start, last, fire_at = bounds
        columns = [
            *keys,
            from_times(start, self._time_type),
            from_times(last + 1, self._time_type),
            pa.array(fire_at == NEVER),
            *stored,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def window_of(schema: pa.Schema) -> str:
    """Tell size and step of stored windows from the metadata of their columns; empty if unknown."""
    noted: bytes = (schema.field(START).metadata or {}).get(_WINDOW, b"")
    return noted.decode()


def _told(window: str) -> dict[bytes, bytes] | None:
    return {_WINDOW: window.encode()} if window else None


def _live(last: Values, fire_at: Values, gone: Values, kept_ns: int, watermark_ns: int) -> Mask:
    live: Mask = ~gone & ((fire_at != NEVER) | (last + kept_ns > watermark_ns))
    return live

"""Aggregates over tumbling and sliding windows of keys, and the base of session windows.

Every row of the result is a key, a window and its aggregates, emitted when the watermark passes the
window's end. With `lateness` the window stays for that long beyond its end, and each batch with
records for the window emits the window again. Records are late when all their windows are dropped:
late records go to the chain's late output and are counted.

No Python runs per record: a batch becomes windows, the windows' slots, and a scatter per aggregate.
Firing is cut into slices. The operator is also its table's `DueRowsAtHand`: a window is due at its
end, and with lateness a second time, to be dropped.

Source: Flink's `WindowOperator` with `EventTimeTrigger`, accumulating; deviation: a late batch
emits one update per window, not one per record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from ..contract.errors import UserError
from ..contract.operators import (
    Advanced,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateBackend,
    StateLayout,
)
from ..state.arrays import Mask
from ..state.backend import DUE_SUFFIX, DueTable, KeyedBackend
from ..state.slots import IntegerSlots, Slots
from ..state.tables import refuse_unknown, restored_batches
from .backends import keyed_backend
from .lateness import WATERMARK_STATE, JudgesLateness
from .window_store import END, NEVER, START, WindowAggregate, WindowStore, window_of
from .windows import Times, TimeWindow, times_of

_CODE_BITS = 32


class WindowOperator(JudgesLateness, ABC):
    """Assigns records to windows and fires them; how windows are found is the subclass's.

    Attributes:
        state_name: of the windows in a checkpoint. Format, never change.
    """

    state_name: ClassVar[str]

    def __init__(
        self, spec: WindowAggregate, *, operator: str, backend: StateBackend | None = None
    ) -> None:
        super().__init__()
        self._stated = backend
        self._spec = spec
        self._lateness_ns = spec.lateness_ns
        self._operator = operator
        self._store = WindowStore(spec, operator)
        #: Read by snapshots: another store than `_store` while a compaction is not committed.
        self._committed = self._store

    @abstractmethod
    def _assign(self, batch: pa.RecordBatch, times: Times, watermark: Times | int) -> Slots:
        """Add a batch to the store, set late records aside.

        Returns the slots of changed windows, some perhaps repeated.
        """

    @abstractmethod
    def _numbered(self, batch: pa.RecordBatch) -> Slots:
        """Give slots to the rows of a snapshot or compaction."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget all slots: the store is empty again."""

    def open(self, context: OperatorContext) -> None:
        """Make the backend."""
        self.open_in(context, keyed_backend(self._stated, context))

    def open_in(self, context: OperatorContext, backend: KeyedBackend) -> None:
        """Open with a backend, which may hold other tables too.

        The operator commits and closes the backend.
        """
        super().open(context)
        self._backend = backend
        self._rows: DueTable = backend.due_rows(self)

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        refuse_unknown(states, self.state_names, self._operator)
        restored_batches(states, self.state_name, self._store.schema, self._operator)

    def restore_databases(self, databases: Sequence[RestoredDatabase]) -> bool:
        """See `KeepsDatabase`. Raises: UserError when the checkpoint's windows are others."""
        if not self._opened().restore(databases):
            return False
        for slots in self._rows.scan():
            self._check(self._store.rows(slots))
            break
        return True

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Restore the windows of this subtask's keys.

        Raises: UserError when the checkpoint's windows have other columns, or are other windows.
        """
        refuse_unknown(states, self.state_names, self._operator)
        self._time.restore(states)
        for batch in restored_batches(states, self.state_name, self._store.schema, self._operator):
            self._check(batch)
            self._rows.load(batch)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Add a batch; emit again the windows of the batch that have fired before.

        Raises: UserCodeError when a record has no time, or a sum of integers leaves the range of
        int64.
        """
        times = self._times(batch)
        watermark = self.passed(batch)
        self._opened().begin()
        changed = np.unique(self._assign(batch, times, watermark))
        if not len(changed):
            return []
        emitted = self._emits(changed)
        self._rows.keep(changed)
        return [self._output(emitted)] if len(emitted) else []

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Emit at most `rows_max` windows that end up to the watermark."""
        self._time.advance(watermark_ns)
        self._opened().begin()
        due, done = self._rows.due(min(watermark_ns, NEVER - 1), rows_max)
        firing = due[self._store.fire_at.working[due] != NEVER]
        batches = [self._output(firing)] if len(firing) else []
        self._store.fired(firing)
        self._rows.passed(due)
        if done and len(firing):
            self._compact()
        return Advanced(batches, done)

    def passed(self, batch: pa.RecordBatch) -> Times | int:
        """Return the watermark of each record; one number if all are equal."""
        return self._time.of(batch, self._spec.keys)

    @property
    def state_names(self) -> list[str]:
        """Names of all states that a checkpoint may hold of the operator."""
        return [self.state_name, self.state_name + DUE_SUFFIX, WATERMARK_STATE]

    # --- `DueRowsAtHand` --------------------------------------------------------------------------

    @property
    def layout(self) -> StateLayout:
        """See `RowsAtHand`. Key and start identify a window."""
        return StateLayout(self.state_name, self.grouped + 1, self._store.schema)

    @property
    def grouped(self) -> int:
        """See `RowsAtHand`."""
        return len(self._spec.keys)

    @property
    def count(self) -> int:
        """See `RowsAtHand`."""
        return self._store.count

    def forget(self) -> None:
        """See `RowsAtHand`."""
        self._store = WindowStore(self._spec, self._operator)
        self._forget()

    def keys(self) -> list[pa.Array]:
        """See `RowsAtHand`."""
        return self._store.keys.columns()

    def names(self, slots: Slots) -> list[pa.Array]:
        """See `RowsAtHand`."""
        return self._store.names(slots)

    def values(self, slots: Slots) -> list[pa.Array]:
        """See `RowsAtHand`."""
        return self._store.values(slots)

    def number(self, rows: pa.RecordBatch) -> Slots:
        """See `RowsAtHand`."""
        return self._numbered(rows)

    def load(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """See `RowsAtHand`."""
        self._store.load(slots, rows)

    def stage(self, slots: Slots) -> None:
        """See `RowsAtHand`."""
        self._store.stage(slots)

    def publish(self) -> None:
        """See `RowsAtHand`."""
        self._store.commit()
        self._committed = self._store

    def freeze(self) -> Callable[[], pa.RecordBatch]:
        """See `RowsAtHand`."""
        return self._committed.freeze(self._lateness_ns, self._time.committed)

    def live(self, slots: Slots) -> Mask:
        """See `DueRowsAtHand`."""
        return self._store.live(slots, self._lateness_ns, self._time.current)

    def due_at(self, rows: pa.RecordBatch) -> Times:
        """See `DueRowsAtHand`."""
        return self._store.due_at(rows, self._lateness_ns)

    def due(self, until_ns: int) -> Slots:
        """See `DueRowsAtHand`.

        In memory compaction drops windows, so only firing windows are due.
        """
        return self._store.due(until_ns)

    def next_due(self, slots: Slots | None = None) -> int:
        """See `DueRowsAtHand`."""
        return self._store.next_due(slots)

    # --- helpers ----------------------------------------------------------------------------------

    def _check(self, batch: pa.RecordBatch) -> None:  # sessions have any length
        """Refuse windows that this operator would not make. Raises: UserError."""

    def _times(self, batch: pa.RecordBatch) -> Times:
        return times_of(batch, self._spec.event_time, self._operator)

    def _emits(self, changed: Slots) -> Slots:
        """Select the changed windows to be emitted with their batch: fired windows."""
        past = changed[self._fires_again(changed)] if self._lateness_ns else changed[:0]
        self._store.fire_at.working[past] = NEVER
        return past

    def _output(self, slots: Slots) -> pa.RecordBatch:
        return self._store.output(slots, self._spec.schema_out)

    def _fires_again(self, slots: Slots) -> Mask:
        """Find the windows that have fired, and the new windows that are due already."""
        fire_at = self._store.fire_at.working[slots]
        again: Mask = (fire_at == NEVER) | (fire_at <= self._time.current)
        return again

    def _compact(self) -> None:
        compacted = self._store.compacted(self._lateness_ns, self._time.current)
        if compacted is None:
            return
        self._store, live = compacted
        self._forget()
        if live.num_rows:
            self.load(self.number(live), live)


class TimeWindowOperator(WindowOperator):
    """Tumbling and sliding windows: a slot for each pair of key and start."""

    state_name = "windows"

    def __init__(
        self,
        window: TimeWindow,
        spec: WindowAggregate,
        *,
        operator: str,
        backend: StateBackend | None = None,
    ) -> None:
        told = f"{window.size_ns / 1e9:g} s, every {window.every_ns / 1e9:g} s"
        super().__init__(replace(spec, window=told), operator=operator, backend=backend)
        self._window = window
        self._forget()

    def _forget(self) -> None:
        #: Code of each start, and slot of each (key, code of start).
        self._starts, self._slots = IntegerSlots(), IntegerSlots()

    def _assign(self, batch: pa.RecordBatch, times: Times, watermark: Times | int) -> Slots:
        rows, starts = self._window.starts(times)
        if rows is None:
            rows = np.arange(len(times))
        lasts = starts + (self._window.size_ns - 1)
        accepted = lasts + self._lateness_ns > (
            watermark if isinstance(watermark, int) else watermark[rows]
        )
        whole = len(rows) == len(times) and bool(accepted.all())
        if not whole:
            rows, starts, lasts = rows[accepted], starts[accepted], lasts[accepted]
            late = np.ones(len(times), np.bool_)
            late[rows] = False
            self._late.add(batch, late)
        keys = self._store.keys.lookup(batch)[rows]
        known = self._slots.count
        slots = self._lookup(keys, starts)
        new = slots >= known
        self._store.open(slots[new], keys[new], starts[new], lasts[new])
        self._rows.recall()
        taken = None if whole else pa.array(rows)
        self._store.aggregates.add(
            slots,
            lambda name: batch.column(name) if taken is None else batch.column(name).take(taken),
        )
        return slots

    def _check(self, batch: pa.RecordBatch) -> None:
        starts = times_of(batch, START, self._operator)
        sizes = times_of(batch, END, self._operator) - starts
        if (sizes != self._window.size_ns).any() or (starts % self._window.every_ns).any():
            raise self._others(f"{sizes[0] / 1e9:g} s")

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`.

        Refuses also windows of another size or step; old checkpoints do not state size and step.
        """
        super().check_states(states)
        for state in states:
            if state.name == self.state_name:
                held = window_of(state.table.schema)
                if held and held != self._spec.window:
                    raise self._others(held)

    def _others(self, held: str) -> UserError:
        return UserError(
            f"operator {self._operator!r}: the checkpoint holds windows of {held}, and the program"
            " has others now "
            f"({self._spec.window}); give the changed operator a new name= or start without the"
            " checkpoint"
        )

    def _numbered(self, batch: pa.RecordBatch) -> Slots:
        starts = times_of(batch, START, self._operator)
        return self._lookup(self._store.keys.lookup(batch), starts)

    def _lookup(self, keys: Slots, starts: Times) -> Slots:
        slots = self._slots.lookup((keys << _CODE_BITS) | self._starts.lookup(starts))
        self._store.grow(self._slots.count)
        return slots

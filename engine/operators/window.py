"""Aggregates over windows of keys: what tumbling, sliding and session windows have in common, and the first two.

Every row of the result is a key, a window and its aggregates. It is emitted when the watermark passes the window's end. With `lateness` the window is
kept for that long beyond, and each batch with records for it emits it again, as it is then. Records whose windows are all past and dropped
are late: they are given out for the chain's late output, and counted.

No Python runs per record: a batch becomes windows, the windows' slots, and a scatter per aggregate. Firing is cut into slices.

Source: Flink's `WindowOperator` with `EventTimeTrigger`, accumulating; deviation: a late batch emits one update per window, not one per record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from ..contract.errors import UserError
from ..contract.operators import (
    Advanced,
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateBackend,
    StateKind,
    StateLayout,
    StateSnapshot,
)
from ..state.arrays import Mask
from ..state.slots import IntegerSlots, Slots
from ..state.tables import refuse_unknown, restored_batches
from .backends import make_database
from .lateness import WATERMARK_STATE, JudgesLateness
from .window_store import DUE_SUFFIX, END, NEVER, START, WindowAggregate, WindowStore, window_of
from .windows import Times, TimeWindow, times_of

if TYPE_CHECKING:
    from ..state.rocks.database import RocksDatabase
    from .rocks_windows import RocksWindows

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
        #: Where windows lie, if not in memory; then `_store` holds those of the batch at hand.
        self._disk: RocksWindows | None = None
        #: What was read for the batch at hand, and its slots in `_store`.
        self._recalled: tuple[Slots, pa.RecordBatch] | None = None
        self._spec = spec
        self._lateness_ns = spec.lateness_ns
        self._operator = operator
        self._store = WindowStore(spec, operator)
        #: What snapshots read: another one than `_store` while a compaction is not committed.
        self._committed = self._store
        #: No window fires before the watermark has come to here.
        self._next_due = NEVER
        #: What is left to fire for the present watermark.
        self._firing: Slots | None = None

    @abstractmethod
    def _assign(self, batch: pa.RecordBatch, times: Times, watermark: Times | int) -> Slots:
        """Take a batch into the store, put late records aside. Returns the slots of the windows that changed; may repeat some."""

    @abstractmethod
    def _numbered(self, batch: pa.RecordBatch) -> Slots:
        """Give slots to the rows of a snapshot or compaction."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget all slots: the store is empty again."""

    def open(self, context: OperatorContext) -> None:
        """Note where this instance runs, and name the database if its windows lie in one."""
        backend = self._stated or context.backend
        self.open_in(context, None if backend.kind == "heap" else make_database(backend, context))

    def open_in(self, context: OperatorContext, database: RocksDatabase | None) -> None:
        """The same, with a database that may hold other states as well; None: windows lie in memory."""
        super().open(context)
        if database is not None:
            # Not at the top: jobs on the heap need not wait for rocksdict.
            from .rocks_windows import RocksWindows

            schema, keys = self._store.schema, len(self._store.keys.fields)
            self._disk = RocksWindows(
                database, self.state_name, schema, keys, self._lateness_ns, context
            )

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        refuse_unknown(states, self.state_names, self._operator)
        restored_batches(states, self.state_name, self._store.schema, self._operator)

    def restore_databases(self, databases: Sequence[RestoredDatabase]) -> bool:
        """See `KeepsDatabase`. Raises: UserError when the checkpoint's windows are others."""
        if self._disk is None or not self._disk.restore(databases):
            return False
        sample = self._disk.sample()
        if sample is not None:
            self._check(sample)
        return True

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take back the windows of the keys that this subtask owns now.

        Raises: UserError when the checkpoint's windows have other columns, or are others.
        """
        refuse_unknown(states, self.state_names, self._operator)
        self._time.restore(states)
        for batch in restored_batches(states, self.state_name, self._store.schema, self._operator):
            self._check(batch)
            if self._disk is not None:
                self._disk.load(batch)
            else:
                self._load(batch)
        self._next_due = self._store.next_due()

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Take in a batch; emit again the windows in it that have fired before.

        Raises: UserCodeError when a record has no time, or a sum of integers leaves the range of int64.
        """
        times = self._times(batch)
        watermark = self.passed(batch)
        self._begin()
        changed = np.unique(self._assign(batch, times, watermark))
        if not len(changed):
            return []
        self._next_due = min(self._next_due, int(self._store.fire_at.working[changed].min()))
        emitted = self._emits(changed)
        if self._disk is None:
            self._store.stage(changed)
        else:
            self._write_back(self._disk, changed)
        return [self._output(emitted)] if len(emitted) else []

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Emit the windows that end up to the watermark, at most `rows_max`."""
        if self._disk is not None:
            return self._advance_on_disk(self._disk, watermark_ns, rows_max)
        if self._firing is None:
            self._time.advance(watermark_ns)
            if self._next_due > min(watermark_ns, NEVER - 1):
                return Advanced((), done=True)
            self._firing = self._store.due(watermark_ns)
        slots, self._firing = self._firing[:rows_max], self._firing[rows_max:]
        batches = [self._output(slots)] if len(slots) else []
        self._store.fired(slots)
        if len(self._firing):
            return Advanced(batches, done=False)
        self._firing = None
        self._next_due = self._store.next_due()
        self._compact()
        return Advanced(batches, done=True)

    @property
    def layouts(self) -> dict[str, StateLayout]:
        """The states that lie in a database, by name."""
        return {} if self._disk is None else self._disk.layouts

    def passed(self, batch: pa.RecordBatch) -> Times | int:
        """Tell the watermark that counts for each record; one number if it is the same for all."""
        return self._time.of(batch, self._spec.keys)

    def commit(self) -> None:
        """Publish the changed windows and the watermark."""
        self._time.commit()
        if self._disk is not None:
            self._disk.commit()
            return
        self._store.commit()
        self._committed = self._store

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Copy the committed windows that live in memory."""
        if self._disk is not None:
            return [self._time.snapshot()]
        table = self._committed.freeze(
            self._lateness_ns, self._time.committed, self._max_parallelism
        )
        return [
            StateSnapshot(self.state_name, StateKind.KEYED, table),
            self._time.snapshot(),
        ]

    def freeze_database(self) -> DatabaseSnapshot | None:
        """Freeze the committed windows that lie in a database."""
        return None if self._disk is None else self._disk.snapshot()

    def close(self) -> None:
        """Remove the database."""
        if self._disk is not None:
            self._disk.close()

    @property
    def state_names(self) -> list[str]:
        """Of all that a checkpoint may hold of it."""
        return [self.state_name, self.state_name + DUE_SUFFIX, WATERMARK_STATE]

    def _begin(self) -> None:
        """Before a batch or a slice: on disk lie all windows, so the store is a new one."""
        if self._disk is not None:
            self._disk.begin()
            self._store = WindowStore(self._spec, self._operator)
            self._recalled = None
            self._forget()

    def _recall(self, found: pa.RecordBatch) -> None:
        """Take windows into the store that were read for this batch."""
        self._recalled = (self._load(found), found)

    def _write_back(self, disk: RocksWindows, changed: Slots) -> None:
        """Write what a batch changed in place of what was read for it."""
        slots, found = self._recalled or (changed[:0], self._store.rows(changed[:0]))
        replaced = self._store.gone.working[slots] | np.isin(slots, changed)
        disk.replace(found.filter(pa.array(replaced)), self._store.rows(changed))

    def _advance_on_disk(self, disk: RocksWindows, watermark_ns: int, rows_max: int) -> Advanced:
        self._time.advance(watermark_ns)
        self._begin()
        rows, done = disk.due(min(watermark_ns, NEVER - 1), rows_max)
        if not rows.num_rows:
            return Advanced((), done)
        return Advanced([self._output(self._load(rows))], done)

    def _check(self, batch: pa.RecordBatch) -> None:  # sessions have any length
        """Refuse windows that this operator would not make. Raises: UserError."""

    def _load(self, batch: pa.RecordBatch) -> Slots:
        slots = self._numbered(batch)
        self._store.load(slots, batch)
        return slots

    def _times(self, batch: pa.RecordBatch) -> Times:
        return times_of(batch, self._spec.event_time, self._operator)

    def _emits(self, changed: Slots) -> Slots:
        """Tell which of the windows that a batch changed are emitted with it: those that have fired."""
        past = changed[self._fires_again(changed)] if self._lateness_ns else changed[:0]
        self._store.fire_at.working[past] = NEVER
        return past

    def _output(self, slots: Slots) -> pa.RecordBatch:
        return self._store.output(slots, self._spec.schema_out)

    def _fires_again(self, slots: Slots) -> Mask:
        """Which windows have fired, or would have if they had been there."""
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
            self._load(live)


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
        if self._disk is not None:
            self._recall(self._disk.find(*self._store.names_of(np.unique(slots))))
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
        """See `ChecksStates`. Windows of another size or step are refused as well; checkpoints of old do not tell theirs."""
        super().check_states(states)
        for state in states:
            if state.name == self.state_name:
                held = window_of(state.table.schema)
                if held and held != self._spec.window:
                    raise self._others(held)

    def _others(self, held: str) -> UserError:
        return UserError(
            f"operator {self._operator!r}: the checkpoint holds windows of {held}, and the program has others now "
            f"({self._spec.window}); give the changed operator a new name= or start without the checkpoint"
        )

    def _numbered(self, batch: pa.RecordBatch) -> Slots:
        starts = times_of(batch, START, self._operator)
        return self._lookup(self._store.keys.lookup(batch), starts)

    def _lookup(self, keys: Slots, starts: Times) -> Slots:
        slots = self._slots.lookup((keys << _CODE_BITS) | self._starts.lookup(starts))
        self._store.grow(self._slots.count)
        return slots

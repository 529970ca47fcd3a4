"""The keyed process function: the user's own code per record, with declared state.

For work beyond the columnar operators, at a few hundred thousand to some million records a second.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.channels.events import MIN_WATERMARK
from headrace.channels.hashing import key_hashers

from ..contract.errors import UserCodeError, UserError
from ..contract.operators import (
    HEAP,
    OperatorContext,
    RestoredState,
    StateBackend,
)
from ..contract.user_code import (
    Row,
    cells_of,
    raised,
    returned_rows,
    rows_of,
    rows_to_batch,
    slices,
)
from ..state.expiry import SWEPT_MAX, stamps_of
from ..state.keyed import OUTSIDE, CurrentKey, KeyedState
from ..state.keys import KeySlots
from ..state.tables import refuse_unknown, restored_batches
from ..state.timers import PROCESSING_TIMERS, TIMERS, ProcessingTimers, TimerQueue, Timers
from ..state.types import Key
from .backends import KeyedOperator, bound_states, keyed_backend
from .batch import to_batches
from .windows import Times, times_of

_NAN = float("nan")


class StatefulProcessor:
    """Base of users' keyed functions.

    Declare state as class attributes and implement `process` or `process_batch`.

    Example:
        class Totals(StatefulProcessor):
            total = value_state(pa.int64(), default=0)

            def process(self, key, row):
                self.total.value += row["amount"]
                yield {"customer": key, "total": self.total.value}
                self.timers.set(row["at"] + timedelta(minutes=10))

            def on_timer(self, key, time_ns):
                self.total.clear()

    A state declared with `ttl="1h"` expires an hour after its last write, key by key. Time is the
    time of the record at hand (of the timer that fires; of the latest record given to
    `process_batch`), or the watermark if higher: event time, so that a replay sees the same state
    as the first run. No call sees expired state; it is removed some keys at a time.

    Attributes:
        timers: of the current key, by event time. Timers and expiring states need `with_watermark`.
        processing_timers: of the current key, by the clock; need no event time.
    """

    # Outside a job they refuse every use.
    timers: Timers = Timers(TimerQueue(), OUTSIDE, fires=True)
    processing_timers: ProcessingTimers = ProcessingTimers(TimerQueue(), OUTSIDE, fires=True)

    def open(self) -> None:
        """Prepare; states are bound, but no key is current.

        Each subtask calls `open` once, before the first record.
        """

    def process(self, key: Any, row: dict[str, Any]) -> Iterable[dict[str, Any]] | None:
        """Handle one record; return the records to emit.

        `key` is the value of the key column, or a tuple if there are several.
        """
        raise NotImplementedError("implement process(key, row) or process_batch(key, rows)")

    def process_batch(self, key: Any, rows: pa.RecordBatch) -> Any:
        """Handle the records of one key in a piece of work, in order.

        Implement `process_batch` instead of `process` where faster. Returns any result that a
        `map_batches` function may return, or an iterable of dicts.
        """
        raise NotImplementedError

    def on_timer(self, key: Any, time_ns: int) -> Iterable[dict[str, Any]] | None:
        """Handle a timer of `key` that event time has reached; return the records to emit.

        Timers fire in order of their times. No record up to `time_ns` is expected any more, except
        late records.

        Args:
            time_ns: the timer's time, in nanoseconds since 1970.
        """
        raise NotImplementedError("implement on_timer(key, time_ns), or set no timers")

    def on_processing_timer(self, key: Any, time_ns: int) -> Iterable[dict[str, Any]] | None:
        """Handle a timer of `key` that the clock has reached; return the records to emit.

        The result depends on the moment of the call, so a replay after a failure may differ from
        the first run; still each record counts once.

        Args:
            time_ns: the timer's time, in nanoseconds since 1970.
        """
        raise NotImplementedError("implement on_processing_timer(key, time_ns), or set none")


class ProcessOperator(KeyedOperator):
    """Runs a `StatefulProcessor`.

    Each subtask has its own instance: of the class, or a deep copy of the instance given.

    Attributes:
        fires, fires_by_clock: the processor may set timers (`timed_process.TimedProcessOperator`).
    """

    fires = False
    fires_by_clock = False
    #: Column of a record's time, if states expire.
    _event_time: str | None = None
    #: All timers up to here have fired, and state that had expired by then may be gone.
    _watermark_ns = MIN_WATERMARK

    def __init__(
        self,
        processor: StatefulProcessor | type[StatefulProcessor],
        keys: Sequence[str],
        schema_in: pa.Schema,
        schema_out: pa.Schema,
        *,
        operator: str,
        backend: StateBackend | None = None,
    ) -> None:
        try:
            if keys:
                key_hashers(schema_in, keys)
        except (ValueError, TypeError) as error:
            raise UserError(f"operator {operator!r}: {error}") from error
        self._given = processor
        self._keys = list(keys)
        self._key_fields = KeySlots(schema_in, keys).fields if keys else []
        self._schema_in = schema_in
        self._schema_out = schema_out
        self._operator = operator
        self._stated = backend
        self._current = CurrentKey()
        self._states: dict[str, KeyedState] = {}
        self._timers = TimerQueue()
        self._alarms = TimerQueue()
        self._processor: StatefulProcessor | None = None

    def open(self, context: OperatorContext) -> None:
        """Make the processor and bind its states.

        Raises: UserCodeError when the constructor or `open` raises.
        """
        self._backend = keyed_backend(self._stated if self._keys else HEAP, context)
        try:
            given = self._given
            processor = given() if isinstance(given, type) else copy.deepcopy(given)
            self._bind(processor, declared_states(type(processor)), context)
            processor.timers = Timers(self._timers, self._current, fires=self.fires)
            processor.processing_timers = ProcessingTimers(
                self._alarms, self._current, fires=self.fires_by_clock
            )
            processor.open()
        except BaseException as error:
            raise raised(self._operator, error) from error
        self._processor = processor

    def _bind(
        self,
        processor: StatefulProcessor,
        declared: Mapping[str, KeyedState],
        context: OperatorContext,
    ) -> None:
        """Bind the processor's states."""
        fields, current = self._key_fields, self._current
        self._states = bound_states(declared, self._opened(), fields, current)
        for name in declared:
            setattr(processor, name, self._states[name])

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Restore the keys of this subtask.

        Raises: UserError when the checkpoint holds an undeclared state, or a state of another type.
        """
        refuse_unknown(states, self._states, self._operator)
        self._restore_keyed(states)

    def _restore_keyed(self, states: Sequence[RestoredState]) -> None:
        values = len(self._key_fields)
        for name, state in self._states.items():
            for batch in self._batches(states, name, state):
                state.load(self._keys_of(batch), batch.column(values).to_pylist())

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        declared = self._declared()
        refuse_unknown(states, declared, self._operator)
        self._check_keyed(states, declared)

    def _declared(self) -> dict[str, KeyedState]:
        """Find all states, the times of last writes included."""
        given = self._given
        declared = declared_states(given if isinstance(given, type) else type(given))
        return {**declared, **stamps_of(declared)}

    def _check_keyed(
        self, states: Sequence[RestoredState], declared: Mapping[str, KeyedState]
    ) -> None:
        for name, state in declared.items():
            self._batches(states, name, state)

    def _batches(
        self, states: Sequence[RestoredState], name: str, state: KeyedState
    ) -> list[pa.RecordBatch]:
        schema = pa.schema([*self._key_fields, pa.field(name, state.type)])
        return restored_batches(states, name, schema, self._operator, state.default)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit the processor's results.

        Raises: UserCodeError when the processor raises, returns a result that does not fit, or sets
        a state to a value of another type.
        """
        assert self._processor is not None, "opened"
        self._opened().begin()
        if type(self._processor).process_batch is not StatefulProcessor.process_batch:
            return self._process_groups(batch, self._processor.process_batch)
        return self._process_rows(batch, self._processor.process)

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Emit no records: none are held back."""
        return ()

    def commit(self) -> None:
        """Commit the writes of the last call."""
        for state in self._states.values():
            state.commit()
        super().commit()

    def _process_rows(
        self,
        batch: pa.RecordBatch,
        process: Callable[[Key, Row], Iterable[Row] | None],
        *,
        keyless: Key | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Call with each row; `keyless` stands in for the key of rows without key."""
        current, operator = self._current, self._operator
        for piece in slices(batch):
            rows: list[Row] = []
            times = None
            if keyless is None:
                keys = self._keys_of(piece)
                self._opened().prefetch(keys)
                times = self._now(piece)
            else:
                keys = [keyless] * piece.num_rows
            for index, (key, row) in enumerate(zip(keys, rows_of(piece), strict=True)):
                current.key = key
                if times is not None:
                    current.now_ns = int(times[index])
                try:
                    rows.extend(returned_rows(operator, process(key, row)))
                except UserCodeError:
                    raise
                except BaseException as error:
                    record = piece.slice(index, 1).to_pylist()[0]
                    raise raised(self._operator, error, record=record) from error
            yield from self._batches_of(rows)

    def _process_groups(
        self, batch: pa.RecordBatch, process_batch: Callable[[Key, pa.RecordBatch], Any]
    ) -> Iterator[pa.RecordBatch]:
        """Call with the rows of each key, keys in order of their first rows."""
        for key, rows in self._groups_of(batch):
            self._current.key = key
            times = self._now(rows)
            if times is not None:
                self._current.now_ns = int(times.max())
            try:
                results = self._results(process_batch(key, rows))
            except UserCodeError:
                raise
            except BaseException as error:
                raise raised(self._operator, error, record={"key": key}) from error
            yield from results

    def _groups_of(self, batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        """Yield each key with its rows, keys in order of their first rows."""
        slots = KeySlots(self._schema_in, self._keys).lookup(batch)
        order = np.argsort(slots, kind="stable")
        grouped = batch.take(pa.array(order))
        starts = np.flatnonzero(np.diff(slots[order], prepend=-1))
        ends = np.append(starts[1:], batch.num_rows)
        by_first_row = np.argsort(order[starts])
        keys = self._keys_of(grouped.take(pa.array(starts)))
        self._opened().prefetch(keys)
        for group in by_first_row.tolist():
            yield keys[group], grouped.slice(starts[group], ends[group] - starts[group])

    def _now(self, batch: pa.RecordBatch) -> Times | None:
        """Return the time at each record, for states that expire; None without expiring states.

        The later of the record's own time and the watermark: no record sees state that may be
        removed.
        """
        if self._event_time is None:
            return None
        times = times_of(batch, self._event_time, self._operator)
        found: Times = np.maximum(times, self._watermark_ns)
        return found

    def _sweep(self) -> None:
        """Remove expired state of a bounded number of keys."""
        if self._event_time is not None:
            for state in self._states.values():
                state.sweep(self._watermark_ns, SWEPT_MAX)

    def _results(self, returned: Any) -> list[pa.RecordBatch]:
        if isinstance(returned, Iterator | list | tuple):
            items = list(returned)
            if all(isinstance(item, pa.RecordBatch | pa.Table) for item in items):
                return [
                    batch
                    for item in items
                    for batch in to_batches(self._operator, item, self._schema_out)
                ]
            return [rows_to_batch(self._operator, items, self._schema_out)]
        return to_batches(self._operator, returned, self._schema_out)

    def _keys_of(self, batch: pa.RecordBatch) -> list[Key]:
        if not self._keys:
            return [None] * batch.num_rows
        arrays = [batch.column(name) for name in self._keys]
        columns = [_one_nan(cells_of(array), array.type) for array in arrays]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def _batches_of(self, rows: list[Row]) -> list[pa.RecordBatch]:
        return [rows_to_batch(self._operator, rows, self._schema_out)] if rows else []


def has_timers(processor: type) -> bool:
    """Say whether a processor class implements `on_timer`."""
    on_timer = getattr(processor, "on_timer", None)
    return on_timer is not None and on_timer is not StatefulProcessor.on_timer


def has_processing_timers(processor: type) -> bool:
    """Say whether a processor class implements `on_processing_timer`."""
    given = getattr(processor, "on_processing_timer", None)
    return given is not None and given is not StatefulProcessor.on_processing_timer


def expires(processor: type[StatefulProcessor]) -> bool:
    """Say whether a processor class declares states that expire."""
    return any(state.ttl_ns is not None for state in declared_states(processor).values())


def declared_states(processor: type[StatefulProcessor]) -> dict[str, KeyedState]:
    """Find the states of a processor class and its bases, in order of declaration.

    Returns: {attribute name: state}.
    """
    found: dict[str, KeyedState] = {}
    for owner in reversed(processor.__mro__):
        for name, declared in vars(owner).items():
            if isinstance(declared, KeyedState):
                found[name] = declared
            else:
                found.pop(name, None)
    for name in (TIMERS, PROCESSING_TIMERS):
        if name in found:
            raise UserError(
                f"{processor.__name__}: a state cannot be called {name!r}, which are the timers;"
                " rename it"
            )
    return found


def _one_nan(keys: list[Any], type_: pa.DataType) -> list[Any]:
    """Replace all NaNs by one object, since a dictionary finds a NaN only by identity."""
    if not pa.types.is_floating(type_):
        return keys
    return [_NAN if key is not None and math.isnan(key) else key for key in keys]

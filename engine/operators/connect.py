"""Two streams in one process function: the records of the one, and what every subtask is told by the other.

The broadcast side changes broadcast state; the main side, keyed or not, reads it while its records are processed. Which records of the main side
see a change is a matter of when it arrives.

Source: Flink's `KeyedBroadcastProcessFunction` and `BroadcastProcessFunction`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..contract.errors import UserCodeError
from ..contract.operators import (
    HEAP,
    Advanced,
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateBackend,
    StateKind,
    StateSnapshot,
)
from ..contract.user_code import Row, cells_of, raised, rows_of, rows_to_batch, shown, slices
from ..state.backend import Key, KeyedBackend
from ..state.broadcast import BroadcastState
from ..state.expiry import SWEPT_MAX, stamps_of
from ..state.keyed import CurrentKey, KeyedState
from ..state.keys import KeySlots
from ..state.tables import check_state, refuse_unknown, restored_batches
from .backends import bound_states, keyed_backend
from .process import StatefulProcessor, declared_states
from .windows import Times, times_of

_NAN = float("nan")


class BroadcastProcessor(StatefulProcessor):
    """Base of users' functions of two streams. Declare state as class attributes, and implement `process` and `process_broadcast`.

    `process` gets the records of the main stream, with the key that is current or, of a stream without keys, None. It may read broadcast state.

    Example:
        class Rules(BroadcastProcessor):
            limits = broadcast_state(pa.string(), pa.int64())

            def process_broadcast(self, row):
                self.limits[row["kind"]] = row["limit"]

            def process(self, key, row):
                if row["amount"] > self.limits.get(row["kind"], 100):
                    yield row
    """

    def process_broadcast(self, row: dict[str, Any]) -> Iterable[dict[str, Any]] | None:
        """Handle one record of the broadcast stream, in every subtask; return the records to emit, each subtask its own."""
        raise NotImplementedError("implement process_broadcast(row)")


class _NoKey:
    """What is current while no key is: state per key cannot be asked for it."""

    def __hash__(self) -> int:
        raise TypeError("there is no key, and so no state per key, in process_broadcast")


_NO_KEY = _NoKey()


class ConnectOperator:
    """Runs a `BroadcastProcessor`: the first `main_ports` ports are the main stream, the rest is broadcast."""

    def __init__(
        self,
        processor: BroadcastProcessor | type[BroadcastProcessor],
        keys: Sequence[str],
        main_ports: int,
        schema_in: pa.Schema,
        schema_out: pa.Schema,
        *,
        operator: str,
        backend: StateBackend | None = None,
    ) -> None:
        self._given = processor
        self._stated = backend
        self._keys = list(keys)
        self._key_fields = KeySlots(schema_in, keys).fields if keys else []
        self._main_ports = main_ports
        self._schema_out = schema_out
        self._operator = operator
        self._current = CurrentKey()
        self._keyed: dict[str, KeyedState] = {}
        self._broadcast: dict[str, BroadcastState] = {}
        self._processor: BroadcastProcessor | None = None
        self._backend: KeyedBackend | None = None

    def open(self, context: OperatorContext) -> None:
        """Make the processor and bind its states.

        Raises: UserCodeError when its constructor or `open` raises.
        """
        stated = self._stated if self._keys else HEAP
        self._backend = keyed_backend(stated, context)
        # Broadcast state is small, and always in memory.
        memory = keyed_backend(HEAP, context)
        try:
            given = self._given
            processor = given() if isinstance(given, type) else copy.deepcopy(given)
            declared = declared_states(type(processor))
            for name, state in declared.items():
                if isinstance(state, BroadcastState):
                    values = memory.values(name, (), state.type, state.from_arrow)
                    self._broadcast[name] = state.bind(name, self._current, values)
            keyed = {n: s for n, s in declared.items() if n not in self._broadcast}
            self._keyed = bound_states(keyed, self._backend, self._key_fields, self._current)
            for name, state in {**self._keyed, **self._broadcast}.items():
                setattr(processor, name, state)
            processor.open()
        except Exception as error:
            raise raised(self._operator, error) from error
        self._processor = processor

    def restore_databases(self, databases: Sequence[RestoredDatabase]) -> bool:
        """See `KeepsDatabase`."""
        return self._opened().restore(databases)

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        given = self._given
        declared = declared_states(given if isinstance(given, type) else type(given))
        declared |= stamps_of(declared)
        refuse_unknown(states, declared, self._operator)
        for name, state in declared.items():
            if isinstance(state, BroadcastState):
                for held in states:
                    if held.name == name:
                        check_state(name, held.table.schema, state.schema, self._operator)
            else:
                self._batches(states, name, state)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take back the keys that this subtask owns now, and one copy of the broadcast state.

        Raises: UserError when the checkpoint holds a state that is not declared, or another type.
        """
        refuse_unknown(states, [*self._keyed, *self._broadcast], self._operator)
        for name, state in self._keyed.items():
            for batch in self._batches(states, name, state):
                state.load(self._keys_of(batch), batch.column(len(self._keys)).to_pylist())
        for given in states:
            if given.name in self._broadcast:
                found = self._broadcast[given.name]
                check_state(given.name, given.table.schema, found.schema, self._operator)
                found.load_entries(given.table)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit what the processor returns.

        Raises: UserCodeError when it raises, returns what does not fit, or sets a state to a value of another type.
        """
        processor = self._processor
        assert processor is not None, "opened"
        self._opened().begin()
        if port < self._main_ports:
            return self._rows(batch, self._keys_of, processor.process)
        return self._told(batch, processor)

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Nothing is held back."""
        return ()

    def commit(self) -> None:
        """Merge the writes of the work that ended."""
        for state in (*self._keyed.values(), *self._broadcast.values()):
            state.commit()
        self._opened().commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze what lies on the heap; broadcast state, which always does, needs no copy."""
        return self._opened().snapshot() + [
            StateSnapshot(name, StateKind.BROADCAST, state.freeze_entries())
            for name, state in self._broadcast.items()
        ]

    def freeze_database(self) -> DatabaseSnapshot | None:
        """Freeze what lies in a database."""
        return self._opened().freeze_database()

    def close(self) -> None:
        """Release the backend."""
        if self._backend is not None:
            self._backend.close()

    def _opened(self) -> KeyedBackend:
        assert self._backend is not None, "opened"
        return self._backend

    def _batches(
        self, states: Sequence[RestoredState], name: str, state: KeyedState
    ) -> list[pa.RecordBatch]:
        schema = pa.schema([*self._key_fields, pa.field(name, state.type)])
        return restored_batches(states, name, schema, self._operator, state.default)

    def _told(
        self, batch: pa.RecordBatch, processor: BroadcastProcessor
    ) -> Iterator[pa.RecordBatch]:
        def keyless(piece: pa.RecordBatch) -> list[Key]:
            return [_NO_KEY] * piece.num_rows

        for state in self._broadcast.values():
            state.changeable = True
        try:
            yield from self._rows(batch, keyless, lambda _, row: processor.process_broadcast(row))
        finally:
            for state in self._broadcast.values():
                state.changeable = False

    def _rows(
        self,
        batch: pa.RecordBatch,
        keys_of: Callable[[pa.RecordBatch], list[Key]],
        call: Callable[[Key, Row], Iterable[Row] | None],
    ) -> Iterator[pa.RecordBatch]:
        for piece in slices(batch):
            rows: list[Row] = []
            keys = keys_of(piece)
            times = None
            if keys[0] is not _NO_KEY:
                self._opened().prefetch(keys)
                times = self._now(piece)
            for index, (key, row) in enumerate(zip(keys, rows_of(piece), strict=True)):
                self._current.key = key
                if times is not None:
                    self._current.now_ns = int(times[index])
                try:
                    returned = call(key, row)
                    if returned is not None:
                        if isinstance(returned, Mapping | str | bytes):
                            raise self._not_rows(returned)
                        rows.extend(returned)
                except UserCodeError:
                    raise
                except Exception as error:
                    record = piece.slice(index, 1).to_pylist()[0]
                    raise raised(self._operator, error, record=record) from error
            if rows:
                yield rows_to_batch(self._operator, rows, self._schema_out)

    def _now(self, batch: pa.RecordBatch) -> Times | None:
        """Tell what time it is at each record, for states that expire; None if none do."""
        return None

    def _keys_of(self, batch: pa.RecordBatch) -> list[Key]:
        if not self._keys:
            return [None] * batch.num_rows
        columns = [_one_nan(cells_of(batch.column(name))) for name in self._keys]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def _not_rows(self, returned: object) -> UserCodeError:
        return UserCodeError(
            self._operator,
            f"returned {type(returned).__name__} {shown(returned)} where an iterable of dicts is due",
        )


class ExpiringConnectOperator(ConnectOperator):
    """Runs a `BroadcastProcessor` with state per key that expires. Broadcast state does not: subtasks come to a point in event time at
    different moments, and it is to be equal in all of them.

    Args:
        event_time: the column that tells the time of a record of the main stream.
    """

    def __init__(
        self,
        processor: BroadcastProcessor | type[BroadcastProcessor],
        keys: Sequence[str],
        main_ports: int,
        schema_in: pa.Schema,
        schema_out: pa.Schema,
        *,
        event_time: str,
        operator: str,
        backend: StateBackend | None = None,
    ) -> None:
        super().__init__(
            processor, keys, main_ports, schema_in, schema_out, operator=operator, backend=backend
        )
        self._event_time = event_time
        #: What had expired by then may have been removed.
        self._watermark_ns = MIN_WATERMARK

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """See `ConnectOperator`."""
        emitted = super().process(batch, port)
        for state in self._keyed.values():
            state.sweep(self._watermark_ns, SWEPT_MAX)
        return emitted

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Note how far event time has come; the end of input forgets nothing."""
        if watermark_ns != MAX_WATERMARK:
            self._watermark_ns = max(self._watermark_ns, watermark_ns)
        return Advanced((), done=True)

    def _now(self, batch: pa.RecordBatch) -> Times | None:
        """The record's own time, or the watermark where that has passed it: a late record must not see what may have been removed."""
        found: Times = np.maximum(
            times_of(batch, self._event_time, self._operator), self._watermark_ns
        )
        return found


def _one_nan(keys: list[Any]) -> list[Any]:
    """All NaNs are one key, but a dictionary finds a NaN only if it is the same object."""
    return [_NAN if isinstance(key, float) and math.isnan(key) else key for key in keys]

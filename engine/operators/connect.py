"""Two streams in one process function: a main stream, and a broadcast to every subtask.

The broadcast side changes broadcast state; the main side, keyed or not, reads broadcast state while
processing its records. The arrival of a change decides which records of the main side see the
change.

Source: Flink's `KeyedBroadcastProcessFunction` and `BroadcastProcessFunction`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK

from ..contract.operators import (
    HEAP,
    Advanced,
    OperatorContext,
    RestoredState,
    StateBackend,
    StateKind,
    StateSnapshot,
)
from ..state.broadcast import BroadcastState
from ..state.keyed import KeyedState
from ..state.tables import check_state, refuse_unknown
from .backends import keyed_backend
from .process import ProcessOperator, StatefulProcessor


class BroadcastProcessor(StatefulProcessor):
    """Base of users' functions of a main and a broadcast stream.

    Declare state as class attributes, and implement `process` and `process_broadcast`.

    `process` gets the records of the main stream, each with its key (None in a stream without
    keys), and may read broadcast state.

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
        """Handle one record of the broadcast stream; return the records to emit.

        Every subtask calls this method and emits its own records.
        """
        raise NotImplementedError("implement process_broadcast(row)")


class _NoKey:
    """Stands in for a key while no key is current: state per key is out of reach."""

    def __hash__(self) -> int:
        raise TypeError("there is no key, and so no state per key, in process_broadcast")


_NO_KEY = _NoKey()


class ConnectOperator(ProcessOperator):
    """Runs a `BroadcastProcessor`.

    The first `main_ports` ports are the main stream, the rest is broadcast.
    """

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
        super().__init__(processor, keys, schema_in, schema_out, operator=operator, backend=backend)
        self._main_ports = main_ports
        self._broadcast: dict[str, BroadcastState] = {}

    def _bind(
        self,
        processor: StatefulProcessor,
        declared: Mapping[str, KeyedState],
        context: OperatorContext,
    ) -> None:
        # Broadcast state is small, and always in memory.
        memory = keyed_backend(HEAP, context)
        for name, state in declared.items():
            if isinstance(state, BroadcastState):
                values = memory.values(name, (), state.type, state.from_arrow)
                self._broadcast[name] = state.bind(name, self._current, values)
                setattr(processor, name, self._broadcast[name])
        keyed = {name: s for name, s in declared.items() if name not in self._broadcast}
        super()._bind(processor, keyed, context)

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        declared = self._declared()
        refuse_unknown(states, declared, self._operator)
        broadcast = {n: s for n, s in declared.items() if isinstance(s, BroadcastState)}
        for held in states:
            if held.name in broadcast:
                wanted = broadcast[held.name].schema
                check_state(held.name, held.table.schema, wanted, self._operator)
        self._check_keyed(states, {n: s for n, s in declared.items() if n not in broadcast})

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Restore the keys of this subtask, and one copy of the broadcast state.

        Raises: UserError when the checkpoint holds an undeclared state, or a state of another type.
        """
        refuse_unknown(states, [*self._states, *self._broadcast], self._operator)
        self._restore_keyed(states)
        for given in states:
            if given.name in self._broadcast:
                found = self._broadcast[given.name]
                check_state(given.name, given.table.schema, found.schema, self._operator)
                found.load_entries(given.table)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """See `ProcessOperator`."""
        processor = self._processor
        assert isinstance(processor, BroadcastProcessor), "opened"
        self._opened().begin()
        if port < self._main_ports:
            return self._process_rows(batch, processor.process)
        return self._told(batch, processor)

    def commit(self) -> None:
        """Commit the writes of the last call."""
        super().commit()
        for state in self._broadcast.values():
            state.commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze tables outside a database; broadcast state needs no copy."""
        broadcast = [
            StateSnapshot(name, StateKind.BROADCAST, state.freeze_entries())
            for name, state in self._broadcast.items()
        ]
        return [*super().snapshot(), *broadcast]

    def _told(
        self, batch: pa.RecordBatch, processor: BroadcastProcessor
    ) -> Iterator[pa.RecordBatch]:
        for state in self._broadcast.values():
            state.changeable = True
        try:
            yield from self._process_rows(
                batch, lambda _, row: processor.process_broadcast(row), keyless=_NO_KEY
            )
        finally:
            for state in self._broadcast.values():
                state.changeable = False


class ExpiringConnectOperator(ConnectOperator):
    """Runs a `BroadcastProcessor` with state per key that expires.

    Broadcast state does not expire: it must be equal in all subtasks, and subtasks reach a point in
    event time at different moments.

    Args:
        event_time: the event-time column of the main stream.
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

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """See `ConnectOperator`."""
        emitted = super().process(batch, port)
        self._sweep()
        return emitted

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Note the watermark; the end of input expires no state."""
        if watermark_ns != MAX_WATERMARK:
            self._watermark_ns = max(self._watermark_ns, watermark_ns)
        return Advanced((), done=True)

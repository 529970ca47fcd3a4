"""A processor alone: the user's class under the operator that runs it in a job, call by call.

Each call is one piece of work: its writes are committed when it returns. `crash` keeps what a
checkpoint would keep, the committed state and timers, and begins a new process with it: attributes
of the instance and of the class, and globals of the user's modules, are as on the first day.

A call that raises leaves nothing behind, as in a job, which restarts: the harness crashes by itself
and passes the error on.

The clock and event time stand still until `advance_time` and `advance_watermark` move them. Not
here: threads, batches of several records, and the way of state to storage and back, which
`simulate` and `Simulated` have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..contract.errors import UserError
from ..contract.operators import EventTimeOperator, OperatorContext, RestoredState, StateKind
from ..contract.suggestion import did_you_mean, name_of_class
from ..contract.units import Duration, duration_ns
from ..contract.user_code import Row, rows_of
from ..operators.co_process import CoProcessor
from ..operators.connect import BroadcastProcessor
from ..operators.process import (
    ProcessOperator,
    StatefulProcessor,
    declared_states,
    expires,
)
from ..operators.timed_process import TimedProcessOperator
from ..state.broadcast import BroadcastState
from ..state.keyed import KeyedState, ListState, MapState, ValueState
from ..state.timers import to_ns
from ..state.types import Key
from .fresh import Program
from .given_keys import GivenKey, operator_of
from .states import MAX_PARALLELISM

#: Timers that one piece of work fires, as in a job.
_FIRED_MAX = 4096


@dataclass(frozen=True, slots=True)
class HarnessSnapshot:
    """What a checkpoint holds of a processor, at one moment; for `Harness.restore`."""

    keys: pa.Schema | None
    states: tuple[RestoredState, ...]
    watermark_ns: int


class Harness:
    """Runs one processor, for a unit test.

    `process`, `advance_watermark` and `advance_time` return the records that the call emitted, and
    `output` holds those of all calls.

    Example:
        harness = hr.testing.Harness(Totals)
        harness.process("ann", {"amount": 3})
        harness.crash()
        assert harness.process("ann", {"amount": 4}) == [{"customer": "ann", "total": 7}]
    """

    def __init__(
        self,
        processor: StatefulProcessor | type[StatefulProcessor],
        *,
        key: pa.DataType | Sequence[pa.DataType] | None = None,
        schema: pa.Schema | None = None,
        output: pa.Schema | None = None,
        event_time: str | None = None,
    ) -> None:
        """Take a class or an instance, as `process`, `connect` and a job do.

        Args:
            key: type of the key column, or types of several; None: as the first key looks.
            schema: columns of the records; None: as each record looks.
            output: columns of the results, which a job states with `schema=`; None: any.
            event_time: column of a record's time; for states that expire.

        Raises: UserError.
        """
        class_ = processor if isinstance(processor, type) else type(processor)
        if not issubclass(class_, StatefulProcessor):
            raise UserError(f"Harness takes a StatefulProcessor, got {processor!r}")
        if expires(class_) and event_time is None:
            raise UserError(
                f"Harness: {class_.__name__} has state with a ttl, which goes by the time of"
                " records; give the column of their time with event_time="
            )
        if class_.process_batch is not StatefulProcessor.process_batch and output is None:
            raise UserError(
                f"Harness: {class_.__name__}.process_batch returns batches, whose columns a job"
                " states; give them with output="
            )
        self._class = class_
        self._name = name_of_class(class_)
        self._program = Program(processor, what=f"Harness: {class_.__name__}")
        self._keys = None if key is None else _key_schema(key)
        self._schema, self._output, self._event_time = schema, output, event_time
        self._operator: GivenKey | None = None
        self._output_rows: list[Row] = []
        self._taken = 0
        self._watermark_ns = MIN_WATERMARK
        self._clock_ns = 0

    # --- calls ------------------------------------------------------------------------------------

    def process(self, key: Any, row: Mapping[str, Any]) -> list[Row]:
        """Give the processor a record; of several key columns `key` is a tuple.

        Raises: UserError when the record does not fit `schema`; UserCodeError as in a job.
        """
        self._refuse(CoProcessor, "process_left(key, row) or process_right(key, row)")
        return self._give(key, row, port=0)

    def process_left(self, key: Any, row: Mapping[str, Any]) -> list[Row]:
        """Give a `CoProcessor` a record of the left stream. Raises: as `process`."""
        self._require(CoProcessor)
        return self._give(key, row, port=0)

    def process_right(self, key: Any, row: Mapping[str, Any]) -> list[Row]:
        """Give a `CoProcessor` a record of the right stream. Raises: as `process`."""
        self._require(CoProcessor)
        return self._give(key, row, port=1)

    def process_broadcast(self, row: Mapping[str, Any]) -> list[Row]:
        """Give a `BroadcastProcessor` a record of the broadcast stream. Raises: as `process`."""
        self._require(BroadcastProcessor)
        return self._give(None, row, port=1)

    def advance_watermark(self, time: datetime | int) -> list[Row]:
        """Let event time reach `time`: timers up to it fire, in the order of their times.

        Args:
            time: a datetime (naive: UTC), or nanoseconds since 1970; never earlier than before.

        Raises: UserError; UserCodeError as in a job.
        """
        time_ns = to_ns(time)
        if time_ns < self._watermark_ns:
            raise UserError(
                f"advance_watermark: event time stands at {self._watermark_ns} ns and never goes"
                f" back, to {time_ns} ns"
            )
        rows = self._worked(lambda operator: self._advance(operator, time_ns))
        self._watermark_ns = time_ns
        return rows

    def advance_time(self, by: Duration) -> list[Row]:
        """Let the clock go on by "5s", seconds or a timedelta: processing-time timers fire.

        The clock begins at 0 ns, in 1970. Raises: UserError; UserCodeError as in a job.
        """
        time_ns = self._clock_ns + duration_ns(by, option="advance_time")
        rows = self._worked(lambda operator: self._fire(operator, time_ns))
        self._clock_ns = time_ns
        return rows

    def finish(self) -> list[Row]:
        """End the input: all timers fire. Raises: UserCodeError as in a job."""
        rows = self.advance_watermark(MAX_WATERMARK)
        return rows + self._worked(lambda operator: self._take(operator, operator.finish()))

    # --- what there is ----------------------------------------------------------------------------

    @property
    def output(self) -> list[Row]:
        """All results so far, crashes or not."""
        return list(self._output_rows)

    def take(self) -> list[Row]:
        """Return the results since the last `take`."""
        taken, self._taken = self._output_rows[self._taken :], len(self._output_rows)
        return taken

    def state(self, key: Any = None) -> dict[str, Any]:
        """Return the states of a key: a value, a list or a dictionary each, by name.

        Broadcast states are the same for every key. Changing the result changes no state.
        """
        operator = self._at(key)
        return {name: _content(state) for name, state in _states_of(operator)}

    def set_state(self, key: Any, **states: Any) -> None:
        """Set states of a key, as if the processor had.

        Raises: UserError when there is no such state, StateTypeError when a value does not fit.
        """
        operator = self._at(key)
        known = dict(_states_of(operator))
        for name, value in states.items():
            if name not in known:
                raise UserError(
                    f"{self._class.__name__} declares no state {name!r};"
                    f" {did_you_mean(name, list(known))}"
                )
            _set(known[name], value)
        operator.commit()

    def timers(self, key: Any) -> list[int]:
        """Return the event-time timers of a key, in nanoseconds since 1970, ascending."""
        operator = self._at(key)
        return list(operator._timers.of(operator._current.key))

    def processing_timers(self, key: Any) -> list[int]:
        """Return the processing-time timers of a key, in nanoseconds since 1970, ascending."""
        operator = self._at(key)
        return list(operator._alarms.of(operator._current.key))

    # --- crashes ----------------------------------------------------------------------------------

    def crash(self) -> None:
        """Kill the process and begin another with the committed state and timers."""
        self.restore(self.snapshot())

    def snapshot(self) -> HarnessSnapshot:
        """Take a checkpoint: the committed state and timers."""
        if self._operator is None:
            return HarnessSnapshot(self._keys, (), self._watermark_ns)
        frozen = self._operator.snapshot()
        # Without key columns there is no state per key.
        held = [state for state in frozen if self._keys or state.kind is not StateKind.KEYED]
        states = tuple(RestoredState(state.name, state.kind, state.table()) for state in held)
        return HarnessSnapshot(self._keys, states, self._watermark_ns)

    def restore(self, snapshot: HarnessSnapshot) -> None:
        """Begin anew from a snapshot, of this harness or of another one.

        So a test sees what becomes of the state of an older program.

        Raises: UserError when a state does not fit; UserCodeError when `open` raises.
        """
        self._keys, self._watermark_ns = snapshot.keys, snapshot.watermark_ns
        if self._operator is not None:
            self._operator.close()
            self._operator = None
        if self._keys is not None:
            operator = self._open(self._keys)
            operator.restore(snapshot.states)
            self._catch_up(operator)

    # --- inside -----------------------------------------------------------------------------------

    def _give(self, key: Key, row: Mapping[str, Any], *, port: int) -> list[Row]:
        batch = self._batch_of(row)
        is_keyed = issubclass(self._class, CoProcessor) or port == 0
        given = (self._keyed(key, self._at(key)),) if is_keyed else ()
        if self._operator is None:
            self._begin(_schema_of(None))

        def give(operator: GivenKey) -> list[Row]:
            operator.given = given
            _tell_time(operator, self._clock_ns)
            rows = self._take(operator, operator.process(batch, port))
            operator.given = ()
            return rows

        return self._worked(give)

    def _batch_of(self, row: Mapping[str, Any]) -> pa.RecordBatch:
        names = list(row) if self._schema is None else self._schema.names
        if not row:
            raise UserError("the record has no columns; give it at least one")
        if set(row) != set(names):
            raise UserError(
                f"the record has the columns {', '.join(row)}; schema= has {', '.join(names)}"
            )
        try:
            return pa.RecordBatch.from_pylist([dict(row)], schema=self._schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(f"the record does not fit into columns: {error}") from error

    def _worked(self, call: Callable[[GivenKey], list[Row]]) -> list[Row]:
        """Make a call; a call that raises ends the process. Without a process nothing happens."""
        if self._operator is None:
            return []
        try:
            rows = call(self._operator)
        except BaseException:
            self.crash()
            raise
        self._output_rows += rows
        return rows

    def _take(self, operator: GivenKey, batches: Iterable[pa.RecordBatch]) -> list[Row]:
        """Draw the results of a call, and commit it."""
        rows = [row for batch in batches for row in rows_of(batch)]
        rows += operator.emitted
        operator.emitted = []
        operator.commit()
        return rows

    def _advance(self, operator: GivenKey, time_ns: int) -> list[Row]:
        rows: list[Row] = []
        done = not isinstance(operator, EventTimeOperator)
        while not done:
            assert isinstance(operator, EventTimeOperator), "asked above"
            advanced = operator.advance(time_ns, _FIRED_MAX)
            rows += self._take(operator, advanced.batches)
            done = advanced.done
        return rows

    def _fire(self, operator: GivenKey, time_ns: int) -> list[Row]:
        if not isinstance(operator, TimedProcessOperator):
            return []
        operator.tell_time(time_ns)
        rows: list[Row] = []
        while (next_ns := operator.next_timer_ns()) is not None and next_ns <= time_ns:
            rows += self._take(operator, operator.fire(time_ns, _FIRED_MAX))
        return rows

    def _at(self, key: Any) -> GivenKey:
        """Return the operator, opened, with this key as the current one."""
        operator = self._operator
        if operator is None:
            operator = self._begin(_schema_of(key) if self._keys is None else self._keys)
        elif not self._keys and key is not None:
            # So far it has seen records without key: broadcast ones, whose state goes on.
            states = self.snapshot().states
            self.restore(HarnessSnapshot(_schema_of(key), states, self._watermark_ns))
            operator = self._operator
            assert operator is not None, "restored with keys"
        operator._current.key = self._keyed(key, operator)
        operator._current.now_ns = max(operator._current.now_ns, self._watermark_ns)
        return operator

    def _keyed(self, key: Any, operator: GivenKey) -> Key:
        try:
            return operator.key_of(key)
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
            types = ", ".join(str(field.type) for field in operator._key_fields)
            raise UserError(
                f"key {key!r} is not of type {types or 'None'}; state it with Harness(..., key=...)"
            ) from error

    def _begin(self, keys: pa.Schema) -> GivenKey:
        """Begin the first process."""
        operator = self._open(keys)
        self._catch_up(operator)
        return operator

    def _open(self, keys: pa.Schema) -> GivenKey:
        operator = operator_of(
            self._program.load(), keys, self._output, name=self._name, event_time=self._event_time
        )
        operator.open(OperatorContext("harness", self._name, 0, 1, MAX_PARALLELISM, 1))
        self._keys, self._operator = keys, operator
        return operator

    def _catch_up(self, operator: GivenKey) -> None:
        """Tell a new process the time."""
        _tell_time(operator, self._clock_ns)
        if self._watermark_ns > MIN_WATERMARK:
            self._output_rows += self._advance(operator, self._watermark_ns)

    def _refuse(self, class_: type, instead: str) -> None:
        if issubclass(self._class, class_):
            raise UserError(
                f"{self._class.__name__} is a {class_.__name__}; call {instead} of its harness"
            )

    def _require(self, class_: type) -> None:
        if not issubclass(self._class, class_):
            raise UserError(
                f"{self._class.__name__} is no {class_.__name__}; call process(key, row) of its"
                " harness"
            )


def _tell_time(operator: ProcessOperator, now_ns: int) -> None:
    if isinstance(operator, TimedProcessOperator):
        operator.tell_time(now_ns)


def _schema_of(key: Any) -> pa.Schema:
    """Key columns as this key looks."""
    if key is None:
        return pa.schema([])
    parts = key if isinstance(key, tuple) else (key,)
    return _key_schema([pa.array([part]).type for part in parts])


def _key_schema(types: pa.DataType | Sequence[pa.DataType]) -> pa.Schema:
    if isinstance(types, pa.DataType):
        types = [types]
    return pa.schema([(f"key{i}" if i else "key", type_) for i, type_ in enumerate(types)])


def _states_of(operator: ProcessOperator) -> Iterator[tuple[str, KeyedState]]:
    """The bound states that the class declares."""
    assert operator._processor is not None, "opened"
    for name in declared_states(type(operator._processor)):
        yield name, getattr(operator._processor, name)


def _content(state: KeyedState) -> Any:
    match state:
        case ValueState():
            return state.value
        case ListState():
            return list(state)
        case MapState():
            return dict(state)
        case _:
            raise AssertionError(f"{type(state).__name__} is another kind of state")


def _set(state: KeyedState, value: Any) -> None:
    match state:
        case ValueState():
            state.value = value
        case ListState():
            state.replace(value)
        case MapState():
            if isinstance(state, BroadcastState):
                state.changeable = True
            state.clear()
            state.update(value)
            if isinstance(state, BroadcastState):
                state.changeable = False

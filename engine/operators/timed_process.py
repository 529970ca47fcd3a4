"""The keyed process function with time, for a `StatefulProcessor` with timers or expiring states.

A class of its own, because the runtime finds the operators of event time by asking an operator
whether it acts on event time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..contract.errors import UserCodeError
from ..contract.operators import (
    Advanced,
    OperatorContext,
    RestoredState,
    StateBackend,
    StateKind,
    StateSnapshot,
)
from ..contract.user_code import Row, raised, returned_rows
from ..state.tables import restored_batches
from ..state.timers import PROCESSING_TIMERS, TIMERS, TimerQueue, timers_schema
from ..state.types import Key
from .process import ProcessOperator, StatefulProcessor, has_processing_timers, has_timers

#: Timers that fire at the end of input before their rows are passed on.
_FIRED_MAX = 4096


class TimedProcessOperator(ProcessOperator):
    """Runs a processor, and its timers as event time moves on.

    Args:
        event_time: the event-time column, if states expire.
    """

    _max_parallelism = 0

    def __init__(
        self,
        processor: StatefulProcessor | type[StatefulProcessor],
        keys: Sequence[str],
        schema_in: pa.Schema,
        schema_out: pa.Schema,
        *,
        operator: str,
        backend: StateBackend | None = None,
        event_time: str | None = None,
    ) -> None:
        super().__init__(processor, keys, schema_in, schema_out, operator=operator, backend=backend)
        class_ = processor if isinstance(processor, type) else type(processor)
        self.fires = has_timers(class_)
        self.fires_by_clock = has_processing_timers(class_)
        self._event_time = event_time

    def open(self, context: OperatorContext) -> None:
        """See `ProcessOperator`."""
        self._max_parallelism = context.max_parallelism
        super().open(context)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """See `ProcessOperator`."""
        emitted = super().process(batch, port)
        self._sweep()
        return emitted

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        super().check_states(self._without_timers(states))
        for name in self._queues():
            self._stored(states, name)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Restore the keys and timers of this subtask.

        Raises: UserError as `ProcessOperator` does.
        """
        super().restore(self._without_timers(states))
        fields = self._key_fields
        for name, queue in self._queues().items():
            for batch in self._stored(states, name):
                queue.load(self._keys_of(batch), batch.column(len(fields)).to_pylist())

    @property
    def loop_fault(self) -> str | None:
        """See `JudgesLoops`; a loop ends after its last processing-time timer."""
        by_event_time = self.fires or self._event_time is not None
        return "acts on event time" if by_event_time else None

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Fire at most `rows_max` due timers.

        Raises: UserCodeError when `on_timer` raises, or returns a result that does not fit.
        """
        assert self._processor is not None, "opened"
        self._opened().begin()
        if watermark_ns == MAX_WATERMARK:
            self._timers.close()
        call = self._processor.on_timer
        rows, done = self._fired(self._timers, call, watermark_ns, rows_max)
        if done and watermark_ns != MAX_WATERMARK:
            self._watermark_ns = max(self._watermark_ns, watermark_ns)
        return Advanced(self._batches_of(rows), done)

    def tell_time(self, now_ns: int) -> None:
        """See `ProcessingTimeOperator`."""
        self._current.clock_ns = max(now_ns, self._current.clock_ns)

    def next_timer_ns(self) -> int | None:
        """See `ProcessingTimeOperator`."""
        return self._alarms.next_ns()

    def fire(self, now_ns: int, rows_max: int) -> Iterable[pa.RecordBatch]:
        """Fire at most `rows_max` due processing-time timers.

        Raises: UserCodeError when `on_processing_timer` raises, or returns a result that does not
        fit.
        """
        if not self.fires_by_clock:
            return ()
        assert self._processor is not None, "opened"
        self._opened().begin()
        call = self._processor.on_processing_timer
        rows, _ = self._fired(self._alarms, call, now_ns, rows_max)
        return self._batches_of(rows)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Fire all processing-time timers at the end of input, whatever the clock says."""
        self._alarms.close()
        while self._alarms.next_ns() is not None:
            yield from self.fire(MAX_WATERMARK, _FIRED_MAX)

    def commit(self) -> None:
        """Commit the writes of the last call."""
        super().commit()
        for queue in self._queues().values():
            queue.commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the state on the heap; timers are always on the heap."""
        fields = self._key_fields
        timers = [
            StateSnapshot(name, StateKind.KEYED, queue.freeze(fields, self._max_parallelism))
            for name, queue in self._queues().items()
        ]
        return [*super().snapshot(), *timers]

    def _queues(self) -> dict[str, TimerQueue]:
        """The processor's timer queues, by the name of their state."""
        queues = {TIMERS: self._timers}
        return queues | {PROCESSING_TIMERS: self._alarms} if self.fires_by_clock else queues

    def _without_timers(self, states: Sequence[RestoredState]) -> list[RestoredState]:
        queues = self._queues()
        return [state for state in states if state.name not in queues]

    def _stored(self, states: Sequence[RestoredState], name: str) -> list[pa.RecordBatch]:
        return restored_batches(states, name, timers_schema(self._key_fields), self._operator)

    def _fired(
        self,
        queue: TimerQueue,
        call: Callable[[Key, int], Iterable[Row] | None],
        until_ns: int,
        rows_max: int,
    ) -> tuple[list[Row], bool]:
        """Call the processor for at most `rows_max` timers up to `until_ns`.

        Returns also whether no due timer is left.
        """
        rows: list[Row] = []
        for _ in range(rows_max):
            due = queue.pop(until_ns)
            if due is None:
                return rows, True
            key, time_ns = due
            self._current.key = key
            of_event_time = queue is self._timers
            self._current.now_ns = max(
                time_ns if of_event_time else MIN_WATERMARK, self._watermark_ns
            )
            try:
                rows.extend(returned_rows(self._operator, call(key, time_ns)))
            except UserCodeError:
                raise
            except BaseException as error:
                where = {"key": key, "timer": time_ns}
                raise raised(self._operator, error, record=where) from error
            if len(rows) >= rows_max:
                break
        return rows, False

"""The keyed process function with event time: what `process` runs for a `StatefulProcessor` that implements `on_timer`, or has states that
expire.

A class of its own, because the runtime tells operators of event time by asking whether they act on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..api.errors import UserCodeError
from ..state.tables import restored_batches
from ..state.timers import TIMERS, timers_schema
from .base import (
    Advanced,
    OperatorContext,
    RestoredState,
    StateBackend,
    StateKind,
    StateSnapshot,
)
from .process import ProcessOperator, StatefulProcessor, has_timers
from .user_code import Row, raised
from .windows import Times, times_of

#: Keys that a call looks at for state that has expired, for each state: a fraction of a millisecond.
_SWEPT_MAX = 1000


class TimedProcessOperator(ProcessOperator):
    """Runs a processor, and its timers as event time moves on.

    Args:
        event_time: the column that tells the time of a record, if states expire.
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
        self.fires = has_timers(processor if isinstance(processor, type) else type(processor))
        self._event_time = event_time
        #: All timers up to here have fired, and what had expired by then may have been removed.
        self._watermark_ns = MIN_WATERMARK

    def open(self, context: OperatorContext) -> None:
        """See `ProcessOperator`."""
        self._max_parallelism = context.max_parallelism
        super().open(context)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """See `ProcessOperator`."""
        emitted = super().process(batch, port)
        self._sweep()
        return emitted

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take back the keys and timers that this subtask owns now.

        Raises: UserError as `ProcessOperator` does.
        """
        super().restore([state for state in states if state.name != TIMERS])
        fields = self._key_slots.fields
        for batch in restored_batches(states, TIMERS, timers_schema(fields), self._operator):
            self._timers.load(self._keys_of(batch), batch.column(len(fields)).to_pylist())

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        super().check_states([state for state in states if state.name != TIMERS])
        schema = timers_schema(self._key_slots.fields)
        restored_batches(states, TIMERS, schema, self._operator)

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Fire the timers that are due, `rows_max` at most.

        Raises: UserCodeError when `on_timer` raises, or returns what does not fit.
        """
        assert self._processor is not None, "opened"
        self._opened().begin()
        if watermark_ns == MAX_WATERMARK:
            self._timers.close()
        rows: list[Row] = []
        for _ in range(rows_max):
            due = self._timers.pop(watermark_ns)
            if due is None:
                if watermark_ns != MAX_WATERMARK:
                    self._watermark_ns = max(self._watermark_ns, watermark_ns)
                return Advanced(self._batches_of(rows), done=True)
            key, time_ns = due
            self._current.key = key
            self._current.now_ns = max(time_ns, self._watermark_ns)
            try:
                rows.extend(self._rows_of(self._processor.on_timer(key, time_ns)))
            except UserCodeError:
                raise
            except Exception as error:
                where = {"key": key, "timer": time_ns}
                raise raised(self._operator, error, record=where) from error
            if len(rows) >= rows_max:
                break
        return Advanced(self._batches_of(rows), done=False)

    def commit(self) -> None:
        """Merge the writes of the work that ended."""
        super().commit()
        self._timers.commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze what lies on the heap: timers always do."""
        frozen = self._timers.freeze(self._key_slots.fields, self._max_parallelism)
        return [*super().snapshot(), StateSnapshot(TIMERS, StateKind.KEYED, frozen)]

    def _now(self, batch: pa.RecordBatch) -> Times | None:
        """The record's own time, or the watermark where that has passed it: a late record must not see what may have been removed."""
        if self._event_time is None:
            return None
        times = times_of(batch, self._event_time, self._operator)
        found: Times = np.maximum(times, self._watermark_ns)
        return found

    def _sweep(self) -> None:
        """Remove what has expired, of a bounded number of keys."""
        if self._event_time is not None:
            for state in self._states.values():
                state.sweep(self._watermark_ns, _SWEPT_MAX)

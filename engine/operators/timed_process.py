"""The keyed process function with timers: what `process` runs for a `StatefulProcessor` that implements `on_timer`.

A class of its own, because the runtime tells operators of event time by asking whether they act on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.channels.events import MAX_WATERMARK

from ..api.errors import UserCodeError
from ..state.tables import restored_batches
from ..state.timers import TIMERS, timers_schema
from .base import Advanced, OperatorContext, RestoredState, StateKind, StateSnapshot
from .process import ProcessOperator
from .user_code import Row, raised


class TimedProcessOperator(ProcessOperator):
    """Runs a processor, and its timers as event time moves on."""

    fires = True
    _max_parallelism = 0

    def open(self, context: OperatorContext) -> None:
        """See `ProcessOperator`."""
        self._max_parallelism = context.max_parallelism
        super().open(context)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take back the keys and timers that this subtask owns now.

        Raises: UserError as `ProcessOperator` does.
        """
        super().restore([state for state in states if state.name != TIMERS])
        fields = self._key_slots.fields
        for batch in restored_batches(states, TIMERS, timers_schema(fields), self._operator):
            self._timers.load(self._keys_of(batch), batch.column(len(fields)).to_pylist())

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
                return Advanced(self._batches_of(rows), done=True)
            key, time_ns = due
            self._current.key = key
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

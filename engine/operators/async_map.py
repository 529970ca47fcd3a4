"""`map_async`: one call of a user's function for each record, many under way at a time.

Records of calls under way are state: a checkpoint holds the *records*, never results, and a
restored operator makes the calls again. So no checkpoint waits for a call. Calls that a piece of
work began are not state before the piece is committed: until then its records count as not yet
consumed.

A watermark goes on when the calls of all records before it have ended, so records do not become
late behind this operator.

Source: Flink's async I/O (FLIP-12). Deviation: with `ordered`, results wait for each other also
across watermarks; unordered results may pass each other only between two watermarks in Flink, here
anywhere, while the watermark waits for the slowest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK

from ..contract.errors import UserCodeError
from ..contract.operators import (
    Advanced,
    OperatorContext,
    RestoredState,
    StateKind,
    StateSnapshot,
)
from ..contract.user_code import Row, raised, rows_of, rows_to_batch
from ..state.tables import KEY_GROUP, check_state, keyed_table, refuse_unknown
from .async_calls import Answer, Call, CallLimits, Calls, LoopCalls
from .failures import Failures, OnError

#: The state with the records of calls under way. Format, never change.
PENDING = "pending"

#: A full operator waits so long for an answer before it looks again.
_WAIT_S = 1.0
#: With calls under way, answers are looked for so often; a call of 20 ms and less is waited for
#: twice as long as it takes at worst.
_LOOK_NS_MIN, _LOOK_NS_MAX = 1_000_000, 10_000_000
_LOOKS_PER_CALL = 16


@dataclass(slots=True)
class _Pending:
    """A record whose call has not ended, or whose result waits for its turn."""

    batch: pa.RecordBatch
    index: int
    row: Row
    began_ns: int = 0
    answer: Answer | None = None

    @property
    def record(self) -> pa.RecordBatch:
        """The record as it came."""
        return self.batch.slice(self.index, 1)


class AsyncMapOperator:
    """Calls `function` with each record.

    Args:
        function: takes a row; returns the row to emit, or an awaitable of it. Or a class: each
            subtask makes an instance and calls it.
        ordered: emit results in the order of their records.
        keys: by which records come to this subtask; their calls go where the key goes. Empty: by
            none.
        on_error: what happens to a record whose last attempt failed, or whose result does not fit.
        calls: makes the calls; None: `LoopCalls`. The simulation has calls of its own.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        schema_in: pa.Schema,
        schema_out: pa.Schema,
        limits: CallLimits,
        *,
        ordered: bool,
        operator: str,
        keys: Sequence[str] = (),
        on_error: OnError = "fail",
        calls: Callable[[OperatorContext], Calls] | None = None,
    ) -> None:
        self._function = function
        self._schema_in = schema_in
        self._schema_out = schema_out
        self._limits = limits
        self._ordered = ordered
        self._operator = operator
        self._keys = keys
        self._max_parallelism = 0
        self._failures = Failures(on_error, operator)
        self._make_calls = calls or self._loop_calls
        self._calls: Calls | None = None
        #: By number of the call, in the order of the records.
        self._pending: dict[int, _Pending] = {}
        #: Numbers of calls that have not begun: restored ones, more than may be under way.
        self._waiting: deque[int] = deque()
        self._under_way = 0
        #: Answered calls, if results need not wait for their turn.
        self._ready: list[int] = []
        self._last = 0
        #: (last call before it, watermark), in order.
        self._marks: deque[tuple[int, int]] = deque()
        self._passed_ns = MIN_WATERMARK
        self._now_ns = 0
        self._look_ns = _LOOK_NS_MIN
        #: What snapshots see: replaced, never changed.
        self._committed: dict[int, _Pending] = {}

    # --- the life of an operator ------------------------------------------------------------------

    def open(self, context: OperatorContext) -> None:
        """Make the instance, if `function` is a class, and what makes the calls."""
        self._max_parallelism = context.max_parallelism
        self._calls = self._make_calls(context)

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        refuse_unknown(states, [PENDING], self._operator)
        given = self._schema_in
        declared = pa.schema([KEY_GROUP, *given]) if self._keys else given
        for state in states:
            check_state(PENDING, state.table.schema, declared, self._operator)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take the records whose calls had not ended; their calls begin with the next work.

        Raises: UserError when the checkpoint's records have other columns.
        """
        self.check_states(states)
        for state in states:
            for batch in state.table.select(self._schema_in.names).to_batches():
                self._waiting.extend(self._add(batch))
        self.commit()

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Begin the call of each record, and emit the results that are there.

        Waits while as many calls are under way as may be.

        Raises: UserCodeError when a call has failed for good, or returned a record that does not
        fit, unless such failures are kept.
        """
        self._waiting.extend(self._add(batch))
        yield from self._turned_over()
        while self._waiting:
            self._opened().wait(_WAIT_S)
            yield from self._turned_over()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Wait for all calls, and emit their results."""
        while self._pending:
            yield from self._turned_over()
            if self._pending:
                self._opened().wait(_WAIT_S)

    def commit(self) -> None:
        """Let snapshots see which calls have not ended."""
        self._committed = self._pending.copy()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the records whose calls have not ended."""
        frozen, schema = self._committed, self._schema_in
        keys, max_parallelism = self._keys, self._max_parallelism

        def table() -> pa.Table:
            records = [pending.record for pending in frozen.values()]
            found = pa.Table.from_batches(records, schema=schema).combine_chunks()
            if not keys:
                return found
            columns = [column.combine_chunks() for column in found.columns]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            return keyed_table(batch, keys, max_parallelism)

        return [StateSnapshot(PENDING, StateKind.KEYED if keys else StateKind.LIST, table)]

    def take_errors(self) -> Sequence[pa.RecordBatch]:
        """Hand out the dead letters; each leaves in the piece of work that its record leaves in."""
        return self._failures.take()

    def close(self) -> None:
        """Give up the calls under way."""
        if self._calls is not None:
            self._calls.close()

    @property
    def loop_fault(self) -> None:
        """It may stand in a loop: it hands watermarks on, and a loop ends after its last call."""

    # --- event time -------------------------------------------------------------------------------

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Note a watermark; at the end of input wait for all calls."""
        if watermark_ns != MAX_WATERMARK:
            self._marks.append((self._last, watermark_ns))
            return Advanced((), done=True)
        found = list(self._turned_over())
        if self._pending and not found:
            self._opened().wait(_LOOK_NS_MAX / 1e9)
            found = list(self._turned_over())
        return Advanced(found, done=not self._pending)

    @property
    def watermark_ns(self) -> int:
        """The last watermark before which all calls have ended."""
        oldest = next(iter(self._pending), self._last + 1)
        while self._marks and self._marks[0][0] < oldest:
            self._passed_ns = max(self._passed_ns, self._marks.popleft()[1])
        return self._passed_ns

    @property
    def records(self) -> int:
        """None: it passes watermarks on, and makes none."""
        return 0

    # --- the clock --------------------------------------------------------------------------------

    def tell_time(self, now_ns: int) -> None:
        """See `ProcessingTimeOperator`."""
        self._now_ns = max(now_ns, self._now_ns)

    def next_timer_ns(self) -> int | None:
        """When to look for answers: never without calls."""
        return self._now_ns + self._look_ns if self._pending else None

    def fire(self, now_ns: int, rows_max: int) -> Iterable[pa.RecordBatch]:
        """Emit the results that are there."""
        return self._turned_over()

    # --- calls ------------------------------------------------------------------------------------

    def _add(self, batch: pa.RecordBatch) -> range:
        """Note the records of a batch. Returns the numbers of their calls."""
        first = self._last + 1
        for index, row in enumerate(rows_of(batch)):
            self._last += 1
            self._pending[self._last] = _Pending(batch, index, row)
        return range(first, self._last + 1)

    def _turned_over(self) -> Iterator[pa.RecordBatch]:
        """Take answers, begin as many calls as may be, and emit the results whose turn it is."""
        for answer in self._opened().take():
            self._answered(answer)
        self._begin()
        ended = self._results()
        if ended:
            yield from self._emitted(ended)

    def _emitted(self, ended: Sequence[_Pending]) -> list[pa.RecordBatch]:
        """Make batches of results; where failures are kept, misfits are failures."""
        given = [pending.row for pending in ended]
        returned = [pending.answer.result for pending in ended if pending.answer is not None]
        try:
            return [rows_to_batch(self._operator, returned, self._schema_out, given)]
        except UserCodeError:
            if not self._failures.kept:
                raise
        records = pa.concat_batches([pending.record for pending in ended])
        results = [(index, [row]) for index, row in enumerate(returned)]
        return self._failures.fitting(records, results, self._schema_out)

    def _answered(self, answer: Answer) -> None:
        pending = self._pending[answer.number]
        self._under_way -= 1
        if answer.error is not None:
            if not self._failures.kept:
                raise self._failed(pending, answer)
            self._failures.add(self._pending.pop(answer.number).record, answer.error)
            return
        pending.answer = answer
        self._ready.append(answer.number)
        look_ns = (self._now_ns - pending.began_ns) // _LOOKS_PER_CALL
        self._look_ns = min(max(look_ns, _LOOK_NS_MIN), _LOOK_NS_MAX)

    def _begin(self) -> None:
        calls: list[Call] = []
        while self._waiting and self._under_way < self._limits.capacity:
            number = self._waiting.popleft()
            self._under_way += 1
            self._pending[number].began_ns = self._now_ns
            calls.append(Call(number, self._pending[number].row))
        if calls:
            self._opened().start(calls)

    def _results(self) -> list[_Pending]:
        """Take the calls whose results may go out."""
        if self._ordered:
            answered = takewhile(lambda item: item[1].answer is not None, self._pending.items())
            self._ready = [number for number, _ in answered]
        ready, self._ready = self._ready, []
        return [self._pending.pop(number) for number in ready]

    def _failed(self, pending: _Pending, answer: Answer) -> UserCodeError:
        assert answer.error is not None, "it failed"
        error = raised(self._operator, answer.error, record=pending.record.to_pylist()[0])
        if answer.attempts == 1:
            return error
        message = f"failed {answer.attempts} times, at last with {error.message}"
        return UserCodeError(self._operator, message, error.user_traceback)

    def _opened(self) -> Calls:
        assert self._calls is not None, "opened"
        return self._calls

    def _loop_calls(self, context: OperatorContext) -> Calls:
        try:
            return LoopCalls(self._function, self._limits, f"{context.job}/{context.operator}")
        except BaseException as error:
            raise raised(self._operator, error) from error

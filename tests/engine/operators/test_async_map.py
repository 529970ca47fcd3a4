"""Calls under way: their order, their limit, what a cut holds of them, and watermarks behind them.

The calls here are made by nobody: a test says which have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK
from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.contract.operators import (
    EventTimeOperator,
    OperatorContext,
    ProcessingTimeOperator,
    RestoredState,
    StateKind,
)
from headrace.engine.operators.async_calls import Answer, Call, CallLimits
from headrace.engine.operators.async_map import PENDING, AsyncMapOperator
from headrace.engine.operators.progress import WatermarkGenerator

IN = pa.schema([("n", pa.int64())])
OUT = pa.schema([("n", pa.int64()), ("square", pa.int64())])
CONTEXT = OperatorContext("job", "ask", 0, 1, 128, 0)


class NamedCalls:
    """Calls that end when a test says so; a full operator that waits gets its oldest answer."""

    def __init__(self) -> None:
        self.begun: dict[int, Call] = {}
        self.most = 0
        self.answers: list[Answer] = []
        self.closed = False

    def start(self, calls: Sequence[Call]) -> None:
        self.begun |= {call.number: call for call in calls}
        self.most = max(self.most, len(self.begun))

    def take(self) -> list[Answer]:
        taken, self.answers = self.answers, []
        return taken

    def wait(self, timeout_s: float) -> None:
        if not self.answers:
            self.end(min(self.begun))

    def close(self) -> None:
        self.closed = True

    def end(self, number: int, error: BaseException | None = None) -> None:
        n = self.begun.pop(number).row["n"]
        self.answers.append(Answer(number, {"n": n, "square": n * n}, error))

    def end_record(self, n: int) -> None:
        self.end(next(number for number, call in self.begun.items() if call.row["n"] == n))


def made(capacity: int = 3, *, ordered: bool = False) -> tuple[AsyncMapOperator, NamedCalls]:
    calls = NamedCalls()
    limits = CallLimits(capacity, 1, 0, 0, None)
    operator = AsyncMapOperator(
        lambda row: row, IN, OUT, limits, ordered=ordered, operator="ask", calls=lambda _: calls
    )
    operator.open(CONTEXT)
    return operator, calls


def records(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(numbers)}, schema=IN)


def fed(operator: AsyncMapOperator, *numbers: int) -> list[int]:
    found = [n for batch in operator.process(records(*numbers), 0) for n in batch["n"].to_pylist()]
    operator.commit()
    return found


def looked(operator: AsyncMapOperator) -> list[int]:
    found = [n for batch in operator.fire(0, 100) for n in batch["n"].to_pylist()]
    operator.commit()
    return found


def held(operator: AsyncMapOperator) -> list[int]:
    (state,) = operator.snapshot()
    assert state.name == PENDING
    found: list[int] = state.table()["n"].to_pylist()
    return found


def test_the_runtime_sees_what_the_operator_is() -> None:
    operator, _ = made()
    assert isinstance(operator, EventTimeOperator)
    assert isinstance(operator, ProcessingTimeOperator)
    assert isinstance(operator, WatermarkGenerator)


def test_results_come_as_they_are_ready() -> None:
    operator, calls = made()
    assert fed(operator, 1, 2, 3) == []
    calls.end_record(3)
    calls.end_record(1)
    assert looked(operator) == [3, 1]
    assert held(operator) == [2]


def test_ordered_results_wait_for_their_turn() -> None:
    operator, calls = made(ordered=True)
    fed(operator, 1, 2, 3)
    calls.end_record(3)
    assert looked(operator) == []
    assert held(operator) == [1, 2, 3]
    calls.end_record(1)
    assert looked(operator) == [1]
    calls.end_record(2)
    assert looked(operator) == [2, 3]


def test_no_more_calls_than_may_be_are_under_way() -> None:
    operator, calls = made(capacity=2)
    assert fed(operator, 1, 2, 3, 4, 5) == [1, 2, 3]
    assert calls.most == 2
    assert held(operator) == [4, 5]


def test_a_cut_during_a_call_holds_what_was_committed_before() -> None:
    operator, calls = made(capacity=2)
    fed(operator, 1)
    calls.end_record(1)
    running = operator.process(records(2, 3, 4), 0)
    assert next(iter(running))["n"].to_pylist() == [1]
    # The emitted result is not committed, nor are the new records.
    assert held(operator) == [1]
    list(running)
    assert held(operator) == [1]
    operator.commit()
    assert held(operator) == [3, 4]


def test_restored_records_are_asked_for_again() -> None:
    operator, _ = made(capacity=9)
    fed(operator, *range(7))
    (state,) = operator.snapshot()
    again, calls = made(capacity=2)
    again.restore([RestoredState(PENDING, state.kind, state.table())])
    assert held(again) == list(range(7))
    assert looked(again) == []
    assert len(calls.begun) == 2
    assert again.next_timer_ns() is not None
    assert sorted(n for batch in again.finish() for n in batch["n"].to_pylist()) == list(range(7))
    assert again.next_timer_ns() is None


def test_records_with_other_columns_are_not_restored() -> None:
    operator, _ = made()
    table = pa.table({"m": [1]})
    with pytest.raises(UserError, match="the checkpoint holds state 'pending'"):
        operator.restore([RestoredState(PENDING, StateKind.LIST, table)])


def test_a_watermark_waits_for_the_calls_before_it() -> None:
    operator, calls = made()
    assert operator.watermark_ns == MIN_WATERMARK
    fed(operator, 1, 2)
    operator.advance(100, 10)
    fed(operator, 3)
    operator.advance(200, 10)
    calls.end_record(3)
    calls.end_record(1)
    looked(operator)
    assert operator.watermark_ns == MIN_WATERMARK
    calls.end_record(2)
    looked(operator)
    assert operator.watermark_ns == 200


def test_the_last_watermark_waits_for_all_calls() -> None:
    operator, _ = made(ordered=True)
    fed(operator, 1, 2)
    found = []
    done = False
    while not done:
        advanced = operator.advance(MAX_WATERMARK, 10)
        found += [n for batch in advanced.batches for n in batch["n"].to_pylist()]
        done = advanced.done
    assert found == [1, 2]


def test_a_failed_call_names_its_record() -> None:
    operator, calls = made()
    fed(operator, 4, 5)
    calls.end(2, ValueError("no such order"))
    with pytest.raises(UserCodeError, match=r"ValueError: no such order for record \{'n': 5\}"):
        looked(operator)


def test_close_gives_the_calls_up() -> None:
    operator, calls = made()
    fed(operator, 1)
    operator.close()
    assert calls.closed


@given(
    st.booleans(),
    st.integers(1, 4),
    st.lists(st.one_of(st.integers(1, 5), st.sampled_from(["end", "look", "crash"])), max_size=30),
)
def test_every_record_counts_once(ordered: bool, capacity: int, steps: list[int | str]) -> None:
    """With crashes in between: what a cut holds and what was emitted before make up all records."""
    operator, calls = made(capacity, ordered=ordered)
    given_records = 0
    emitted: list[int] = []
    for step in steps:
        if isinstance(step, int):
            emitted += fed(operator, *range(given_records, given_records + step))
            given_records += step
        elif step == "end" and calls.begun:
            calls.end(max(calls.begun))
        elif step == "look":
            emitted += looked(operator)
        elif step == "crash":
            (state,) = operator.snapshot()
            operator, calls = made(capacity, ordered=ordered)
            operator.restore([RestoredState(PENDING, state.kind, state.table())])
        assert sorted(emitted + held(operator)) == list(range(given_records))
    emitted += [n for batch in operator.finish() for n in batch["n"].to_pylist()]
    assert sorted(emitted) == list(range(given_records))
    if ordered:
        assert emitted == sorted(emitted)

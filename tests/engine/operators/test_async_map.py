"""Calls under way: their order, their limit, what a cut holds of them, and watermarks behind them.

The calls here are made by nobody: a test says which have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
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
from headrace.engine.operators.failures import OnError, letter_schema
from headrace.engine.operators.progress import WatermarkGenerator
from headrace.engine.state.tables import KEY_GROUP

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

    def end_record(self, n: int, error: BaseException | None = None) -> None:
        self.end(next(at for at, call in self.begun.items() if call.row["n"] == n), error)

    def misfit(self, n: int) -> None:
        """End the call of a record with a result of a wrong type."""
        number = next(at for at, call in self.begun.items() if call.row["n"] == n)
        del self.begun[number]
        self.answers.append(Answer(number, {"n": n, "square": "many"}))


def made(
    capacity: int = 3, *, ordered: bool = False, on_error: OnError = "fail"
) -> tuple[AsyncMapOperator, NamedCalls]:
    calls = NamedCalls()
    limits = CallLimits(capacity, 1, 0, 0, None)
    operator = AsyncMapOperator(
        lambda row: row,
        IN,
        OUT,
        limits,
        ordered=ordered,
        operator="ask",
        on_error=on_error,
        calls=lambda _: calls,
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


def letters_of(operator: AsyncMapOperator) -> list[int]:
    return [n for batch in operator.take_errors() for n in batch["record"].field("n").to_pylist()]


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


def keyed(capacity: int = 9) -> tuple[AsyncMapOperator, NamedCalls]:
    calls = NamedCalls()
    operator = AsyncMapOperator(
        lambda row: row,
        KEYED_IN,
        OUT,
        CallLimits(capacity, 1, 0, 0, None),
        ordered=True,
        operator="ask",
        keys=["key"],
        calls=lambda _: calls,
    )
    operator.open(CONTEXT)
    return operator, calls


KEYED_IN = pa.schema([("n", pa.int64()), ("key", pa.string())])


def test_records_under_way_stay_with_their_key_and_in_order() -> None:
    operator, _ = keyed()
    rows = [{"n": n, "key": "abc"[n % 3]} for n in range(12)]
    batch = pa.RecordBatch.from_pylist(rows, schema=KEYED_IN)
    assert [n for found in operator.process(batch, 0) for n in found["n"].to_pylist()] == [0, 1, 2]
    operator.commit()
    (state,) = operator.snapshot()
    table = state.table()
    assert state.kind is StateKind.KEYED
    groups = table[KEY_GROUP.name].to_pylist()
    assert groups == sorted(groups)
    for key in "abc":
        own = table.filter(pc.field("key") == key)
        assert own["n"].to_pylist() == [n for n in range(3, 12) if "abc"[n % 3] == key]
        again, calls = keyed()
        again.restore([RestoredState(PENDING, state.kind, own)])
        assert looked(again) == []
        for n in reversed(own["n"].to_pylist()):
            calls.end_record(n)
        assert looked(again) == own["n"].to_pylist()
    empty, _ = keyed()
    assert empty.snapshot()[0].table().schema == table.schema


def test_state_without_keys_is_not_restored_by_key() -> None:
    operator, _ = keyed()
    table = pa.table({"n": [1], "key": ["a"]}, schema=KEYED_IN)
    with pytest.raises(UserError, match="give the changed operator a new name"):
        operator.restore([RestoredState(PENDING, StateKind.LIST, table)])


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


@pytest.mark.parametrize("ordered", [True, False])
def test_failed_records_become_letters_and_the_others_results(ordered: bool) -> None:
    operator, calls = made(capacity=4, ordered=ordered, on_error="route")
    fed(operator, 1, 2, 3, 4)
    calls.end_record(1, ConnectionError("down"))
    calls.misfit(3)
    calls.end_record(4)
    calls.end_record(2)
    assert sorted(looked(operator)) == [2, 4]
    (letters,) = operator.take_errors()
    assert letters.schema == letter_schema(IN)
    first, second = letters.to_pylist()
    assert first == {
        "operator": "ask",
        "error": "ConnectionError",
        "message": "down",
        "record": {"n": 1},
    }
    assert (second["error"], second["record"]) == ("UserCodeError", {"n": 3})
    assert "returned 'many' in column 'square'" in second["message"]
    assert letters_of(operator) == []
    assert held(operator) == []


def test_a_cut_holds_a_failed_record_until_its_letter_is_committed() -> None:
    operator, calls = made(on_error="route")
    fed(operator, 1, 2)
    calls.end_record(1, ConnectionError("down"))
    assert list(operator.fire(0, 100)) == []
    assert letters_of(operator) == [1]
    assert held(operator) == [1, 2]
    operator.commit()
    assert held(operator) == [2]


def test_results_and_watermarks_do_not_wait_for_a_failed_record() -> None:
    operator, calls = made(capacity=2, ordered=True, on_error="skip")
    fed(operator, 1, 2)
    operator.advance(100, 10)
    calls.end_record(2)
    assert looked(operator) == []
    calls.end_record(1, ConnectionError("down"))
    assert looked(operator) == [2]
    assert operator.watermark_ns == 100
    assert fed(operator, 3, 4) == []
    assert len(calls.begun) == 2, "the failed call gave its place back"


def test_the_last_watermark_waits_for_failing_calls() -> None:
    operator, calls = made(on_error="skip")
    fed(operator, 1)
    calls.end_record(1, ConnectionError("down"))
    assert operator.advance(MAX_WATERMARK, 10).done
    assert letters_of(operator) == [1]


def test_close_gives_the_calls_up() -> None:
    operator, calls = made()
    fed(operator, 1)
    operator.close()
    assert calls.closed


@given(
    st.booleans(),
    st.integers(1, 4),
    st.lists(
        st.one_of(st.integers(1, 5), st.sampled_from(["end", "fail", "look", "crash"])),
        max_size=30,
    ),
)
def test_every_record_counts_once(ordered: bool, capacity: int, steps: list[int | str]) -> None:
    """With crashes in between: what a cut holds, results and letters before make up all records."""
    operator, calls = made(capacity, ordered=ordered, on_error="route")
    given_records = 0
    emitted: list[int] = []
    letters: list[int] = []
    for step in steps:
        if isinstance(step, int):
            emitted += fed(operator, *range(given_records, given_records + step))
            given_records += step
        elif step == "end" and calls.begun:
            calls.end(max(calls.begun))
        elif step == "fail" and calls.begun:
            calls.end(max(calls.begun), ConnectionError("down"))
        elif step == "look":
            emitted += looked(operator)
        elif step == "crash":
            (state,) = operator.snapshot()
            operator, calls = made(capacity, ordered=ordered, on_error="route")
            operator.restore([RestoredState(PENDING, state.kind, state.table())])
        letters += letters_of(operator)
        assert sorted(emitted + letters + held(operator)) == list(range(given_records))
    emitted += [n for batch in operator.finish() for n in batch["n"].to_pylist()]
    letters += letters_of(operator)
    assert sorted(emitted + letters) == list(range(given_records))
    if ordered:
        assert emitted == sorted(emitted)

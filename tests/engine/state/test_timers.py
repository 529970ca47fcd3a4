"""Timers: a set of (key, time), committed in one go, that gives the due ones in order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.contract.errors import UserError
from headrace.engine.state.keyed import CurrentKey
from headrace.engine.state.timers import TimerQueue, Timers, timers_schema, to_ns

KEYS = [pa.field("k", pa.int64())]


def due(queue: TimerQueue, watermark_ns: int) -> list[tuple[Any, int]]:
    found = []
    while (timer := queue.pop(watermark_ns)) is not None:
        found.append(timer)
    return found


def stored(queue: TimerQueue) -> list[tuple[int, int]]:
    rows = queue.freeze(KEYS, 8)().to_pylist()
    return sorted((row["k"], row["time_ns"]) for row in rows)


TIMER = st.tuples(st.integers(0, 3), st.integers(0, 9))
WORK = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TIMER),
        st.tuples(st.just("remove"), TIMER),
        st.tuples(st.just("fire"), st.tuples(st.just(0), st.integers(0, 9))),
    ),
    max_size=8,
)


@given(st.lists(WORK, max_size=5))
def test_timers_follow_a_model(works: list[list[tuple[str, tuple[int, int]]]]) -> None:
    queue = TimerQueue()
    model: set[tuple[int, int]] = set()
    for work in works:
        before = sorted(model)
        for what, (key, time) in work:
            if what == "add":
                queue.add(key, time)
                model.add((key, time))
            elif what == "remove":
                queue.remove(key, time)
                model.discard((key, time))
            else:
                expected = sorted((t for t in model if t[1] <= time), key=lambda t: (t[1], t[0]))
                assert due(queue, time) == expected
                model -= set(expected)
        assert stored(queue) == before, "running work does not show"
        queue.commit()
        assert stored(queue) == sorted(model)


def test_restored_timers_fire_as_if_they_had_just_been_set() -> None:
    queue = TimerQueue()
    queue.load([2, 1, 2], [30, 20, 10])
    assert stored(queue) == [(1, 20), (2, 10), (2, 30)]
    assert due(queue, 25) == [(2, 10), (1, 20)]
    assert queue.of(2) == (30,)


def test_keys_of_any_kind_have_an_order() -> None:
    queue = TimerQueue()
    keys = [("b", None), ("a", 2.0), ("a", float("nan")), (None, 1.0), ("a", 1.0)]
    for key in keys:
        queue.add(key, 5)
    fired = [key for key, _ in due(queue, 5)]
    assert fired[:2] == [("a", 1.0), ("a", 2.0)]
    assert fired[3:] == [("b", None), (None, 1.0)]


def test_after_the_end_of_time_nothing_is_set() -> None:
    queue = TimerQueue()
    queue.add(1, 5)
    queue.close()
    queue.add(1, 6)
    assert due(queue, 2**63 - 1) == [(1, 5)]


def test_composite_keys_are_stored_by_column() -> None:
    queue = TimerQueue()
    queue.add(("x", 1), 7)
    queue.commit()
    keys = [pa.field("s", pa.string()), pa.field("n", pa.int64())]
    table = queue.freeze(keys, 8)()
    assert table.schema.names == ["__key_group", *timers_schema(keys).names]
    assert table.select(["s", "n", "time_ns"]).to_pylist() == [{"s": "x", "n": 1, "time_ns": 7}]


def test_a_user_sees_the_timers_of_the_current_key() -> None:
    current = CurrentKey()
    timers = Timers(TimerQueue(), current, fires=True)
    current.key = 1
    timers.set(9)
    timers.set(5)
    timers.set(5)
    current.key = 2
    assert len(timers) == 0
    current.key = 1
    timers.delete(7)
    assert (list(timers), len(timers)) == ([5, 9], 2)
    timers.delete(5)
    assert list(timers) == [9]


def test_a_timer_that_nobody_hears_is_refused() -> None:
    with pytest.raises(UserError, match="on_timer"):
        Timers(TimerQueue(), CurrentKey(), fires=False).set(5)


def test_times_are_datetimes_or_nanoseconds() -> None:
    second = 10**9
    assert to_ns(datetime(1970, 1, 1, 0, 0, 1)) == second
    assert to_ns(datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == 0
    assert to_ns(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1000
    assert to_ns(pa.scalar(1_700_000_000_123_456_789, pa.timestamp("ns")).as_py()) == (
        1_700_000_000_123_456_789
    )
    assert to_ns(-7) == -7


@pytest.mark.parametrize("wrong", [None, "10s", 1.5, True, 2**63, -(2**63), datetime.max])
def test_what_is_no_time_is_refused(wrong: Any) -> None:
    with pytest.raises(UserError, match="timer"):
        to_ns(wrong)

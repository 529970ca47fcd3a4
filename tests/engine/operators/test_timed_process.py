"""Timers of a processor: when they fire, in which order, in how many calls, and what a cut
keeps of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.contract.operators import (
    EventTimeOperator,
    OperatorContext,
    ProcessingTimeOperator,
    RestoredState,
)
from headrace.engine.operators.process import (
    ProcessOperator,
    StatefulProcessor,
    declared_states,
    has_timers,
)
from headrace.engine.operators.timed_process import TimedProcessOperator
from headrace.engine.state.keyed import list_state, map_state, value_state

from .window_cases import Subtasks, tables_of

IN = pa.schema([("k", pa.int64()), ("t", pa.int64())])
OUT = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("n", pa.int64())])


class Counts(StatefulProcessor):
    """Counts a key's records, and tells at each of their times how many there were."""

    n = value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> None:
        self.n.value += 1
        self.timers.set(row["t"])

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        yield {"k": key, "t": time_ns, "n": self.n.value}


class Forever(StatefulProcessor):
    """Each timer sets the next one."""

    def process(self, key: Any, row: dict[str, Any]) -> None:
        self.timers.set(row["t"])

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        self.timers.set(time_ns + 10)
        yield {"k": key, "t": time_ns, "n": len(self.timers)}


class Deaf(StatefulProcessor):
    """Sets timers and has no on_timer."""

    def process(self, key: Any, row: dict[str, Any]) -> None:
        self.timers.set(row["t"])


class Broken(Counts):
    """Fails when a timer fires."""

    def on_timer(self, key: Any, time_ns: int) -> Any:
        return {"k": key}


def opened(processor: type[StatefulProcessor]) -> TimedProcessOperator:
    operator = TimedProcessOperator(processor, ["k"], IN, OUT, operator="counts")
    operator.open(OperatorContext("job", "counts", 0, 1, 8, 0))
    return operator


def feed(operator: ProcessOperator, *rows: tuple[int, int]) -> None:
    batch = pa.RecordBatch.from_pylist([{"k": k, "t": t} for k, t in rows], schema=IN)
    assert list(operator.process(batch, 0)) == []
    operator.commit()


def advance(
    operator: TimedProcessOperator, watermark: int, rows_max: int = 100
) -> tuple[list[tuple[int, ...]], bool]:
    advanced = operator.advance(watermark, rows_max)
    operator.commit()
    return [tuple(r.values()) for b in advanced.batches for r in b.to_pylist()], advanced.done


def restored_from(
    operator: ProcessOperator, processor: type[StatefulProcessor]
) -> TimedProcessOperator:
    again = opened(processor)
    again.restore([RestoredState(s.name, s.kind, s.table()) for s in operator.snapshot()])
    return again


def test_timers_fire_when_the_watermark_has_come_to_them_by_time_and_key() -> None:
    operator = opened(Counts)
    assert isinstance(operator, EventTimeOperator)
    feed(operator, (2, 5), (1, 7), (1, 5), (1, 9))
    assert advance(operator, 4) == ([], True)
    assert advance(operator, 7) == ([(1, 5, 3), (2, 5, 1), (1, 7, 3)], True)
    assert advance(operator, 8) == ([], True)
    assert advance(operator, MAX_WATERMARK) == ([(1, 9, 3)], True)


def test_a_storm_of_timers_comes_in_slices() -> None:
    operator = opened(Counts)
    feed(operator, *((key, 5) for key in range(5)))
    slices = []
    done = False
    while not done:
        rows, done = advance(operator, 5, 2)
        slices.append([row[0] for row in rows])
    assert slices == [[0, 1], [2, 3], [4]]


def test_a_cut_between_slices_keeps_what_has_not_fired() -> None:
    operator = opened(Counts)
    feed(operator, (1, 5), (2, 5), (3, 6))
    assert advance(operator, 6, 1)[0] == [(1, 5, 1)]
    list(operator.advance(6, 1).batches)  # the running work: it is cut before
    again = restored_from(operator, Counts)
    assert advance(again, 6) == ([(2, 5, 1), (3, 6, 1)], True)


def test_a_timer_may_set_the_next_one_until_the_input_ends() -> None:
    operator = opened(Forever)
    feed(operator, (1, 5))
    assert advance(operator, 30)[0] == [(1, 5, 1), (1, 15, 1), (1, 25, 1)]
    assert advance(operator, MAX_WATERMARK) == ([(1, 35, 0)], True)


def plain(processor: type[StatefulProcessor]) -> ProcessOperator:
    operator = ProcessOperator(processor, ["k"], IN, OUT, operator="counts")
    operator.open(OperatorContext("job", "counts", 0, 1, 8, 0))
    return operator


def test_a_processor_that_hears_no_timers_can_set_none() -> None:
    assert (has_timers(Counts), has_timers(Deaf)) == (True, False)
    operator = plain(Deaf)
    assert not isinstance(operator, EventTimeOperator)
    with pytest.raises(UserCodeError, match="on_timer"):
        feed(operator, (1, 5))


def test_what_goes_wrong_in_a_timer_is_told_with_its_key() -> None:
    operator = opened(Broken)
    feed(operator, (7, 5))
    with pytest.raises(UserCodeError, match="where an iterable of dicts is due"):
        operator.advance(5, 10)


def test_timers_of_a_checkpoint_that_nobody_hears_any_more_are_refused() -> None:
    operator = opened(Counts)
    feed(operator, (1, 5))

    class Quiet(StatefulProcessor):
        n = value_state(pa.int64(), default=0)

    with pytest.raises(UserError, match="'timers'"):
        plain(Quiet).restore(
            [RestoredState(s.name, s.kind, s.table()) for s in operator.snapshot()]
        )


def test_timers_of_a_checkpoint_are_taken_before_anything_runs_unless_the_key_is_another() -> None:
    before = opened(Counts)
    feed(before, (1, 10))
    states = [RestoredState(s.name, s.kind, s.table().slice(0, 0)) for s in before.snapshot()]
    assert "timers" in [state.name for state in states]
    TimedProcessOperator(Counts, ["k"], IN, OUT, operator="counts").check_states(states)
    with pytest.raises(UserError, match="the checkpoint holds state 'n' as"):
        TimedProcessOperator(Counts, ["t"], IN, OUT, operator="counts").check_states(states)


def test_no_state_takes_the_name_of_the_timers() -> None:
    class Wrong(StatefulProcessor):
        timers = value_state(pa.int64())  # type: ignore[assignment]  # the mistake in question

    with pytest.raises(UserError, match="rename"):
        declared_states(Wrong)


TIMED = pa.schema([("k", pa.int64()), ("t", pa.timestamp("s"))])
SECOND = 10**9
TTL = 10


class Recent(StatefulProcessor):
    """Counts, in three ways, the records of a key since it was last quiet for as long as state
    lives.
    """

    n = value_state(pa.int64(), default=0, ttl=f"{TTL}s")
    times = list_state(pa.timestamp("s"), ttl=f"{TTL}s")
    seen = map_state(pa.int64(), pa.bool_(), ttl=f"{TTL}s")
    total = value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.n.value += 1
        self.times.append(row["t"])
        self.seen[self.n.value] = True
        self.total.value += 1
        assert len(self.times) == len(self.seen) == self.n.value
        yield {"k": key, "t": self.total.value, "n": self.n.value}


Told = Sequence[tuple[list[tuple[int, int]], int | None, int | None, str]]


def recent() -> TimedProcessOperator:
    return TimedProcessOperator(Recent, ["k"], TIMED, OUT, operator="recent", event_time="t")


def timed(rows: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    columns = [pa.array([k for k, _ in rows]), pa.array([t for _, t in rows]).view(TIMED.types[1])]
    return pa.RecordBatch.from_arrays(columns, schema=TIMED)


def one_by_one(steps: Told) -> list[tuple[int, int, int]]:
    """What one says who looks at the records of each key one after the other: (key, records,
    recent records).
    """
    counts: dict[int, tuple[int, int, int]] = {}
    told, watermark = [], -(10**6)
    for rows, advanced, _, _ in steps:
        for key, time in rows:
            now = max(time, watermark)
            total, n, written = counts.get(key, (0, 0, -(10**6)))
            if written + TTL <= now:
                n, written = 0, now
            counts[key] = (total + 1, n + 1, max(written, now))
            told.append((key, total + 1, n + 1))
        watermark = max(watermark, advanced if advanced is not None else watermark)
    return sorted(told)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 4), st.integers(-30, 60)), min_size=1, max_size=8),
            st.none() | st.integers(-30, 60),
            st.none() | st.integers(1, 3),
            st.sampled_from(["heap", "rocksdb"]),
        ),
        max_size=8,
    )
)
def test_what_has_expired_is_never_seen_again_whatever_was_removed(steps: Told) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subtasks = Subtasks(recent, [["k"]], 1, Path(folder))
        for rows, watermark, parallelism, kind in steps:
            subtasks.process(timed(rows))
            if watermark is not None:
                subtasks.advance(watermark * SECOND)
            if parallelism is not None:
                subtasks.rescale(parallelism, kind)
        subtasks.close()
    assert sorted((r["k"], r["t"], r["n"]) for r in subtasks.emitted) == one_by_one(steps)


def test_a_late_record_of_a_key_that_was_removed_finds_nothing() -> None:
    operator = recent()
    operator.open(OperatorContext("job", "recent", 0, 1, 8, 0))
    for rows, watermark in (([(1, 0)], 30), ([(1, 5)], 30)):
        (told,) = operator.process(timed(rows), 0)
        operator.commit()
        operator.advance(watermark * SECOND, 10)
        operator.commit()
        assert told["n"].to_pylist() == [1]


@pytest.mark.parametrize("on_disk", [False, True])
def test_keys_that_have_expired_leave_the_checkpoints(on_disk: bool, tmp_path: Path) -> None:
    subtasks = Subtasks(recent, [["k"]], 1, tmp_path if on_disk else None)
    subtasks.process(timed([(key, key % 7) for key in range(100)]))
    subtasks.advance(TTL * SECOND + 3 * SECOND)
    subtasks.process(timed([(1000, 20)]))
    (operator,) = subtasks._operators
    found = {name: table.num_rows for name, table in tables_of(operator).items()}
    left = sum(key % 7 > 3 for key in range(100)) + 1
    assert [found[name] for name in ("n", "times", "seen", "n__written")] == [left] * 4
    assert found["total"] == 101
    subtasks.close()


class Late(Recent):
    """Says at a timer how many there were."""

    def process(self, key: Any, row: dict[str, Any]) -> Any:
        self.timers.set(row["t"])
        self.timers.set(row["t"] + timedelta(seconds=TTL - 1))
        list(super().process(key, row))

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        yield {"k": key, "t": time_ns // SECOND, "n": self.n.value}


def test_a_timer_sees_what_had_not_expired_at_its_time_also_at_the_end() -> None:
    operator = TimedProcessOperator(Late, ["k"], TIMED, OUT, operator="late", event_time="t")
    operator.open(OperatorContext("job", "late", 0, 1, 8, 0))
    assert list(operator.process(timed([(1, 5)]), 0)) == []
    operator.commit()
    (told,) = operator.advance(MAX_WATERMARK, 10).batches
    assert [row["n"] for row in told.to_pylist()] == [1, 1]


class Alarmed(StatefulProcessor):
    """Tells how many records a key has had, a while after the first of them by the clock."""

    n = value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> None:
        self.n.value += 1
        if not len(self.processing_timers):
            self.processing_timers.set_after(10e-9)

    def on_processing_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        yield {"k": key, "t": time_ns, "n": self.n.value}
        self.n.clear()


def fired(
    operator: TimedProcessOperator, now_ns: int, rows_max: int = 100
) -> list[tuple[int, ...]]:
    operator.tell_time(now_ns)
    found = [tuple(r.values()) for b in operator.fire(now_ns, rows_max) for r in b.to_pylist()]
    operator.commit()
    return found


def test_processing_timers_fire_by_the_clock() -> None:
    operator = opened(Alarmed)
    assert isinstance(operator, ProcessingTimeOperator)
    assert operator.next_timer_ns() is None
    operator.tell_time(100)
    feed(operator, (2, 0), (1, 0), (1, 0))
    operator.tell_time(105)
    feed(operator, (3, 0), (2, 0))
    assert operator.next_timer_ns() == 110
    assert fired(operator, 109) == []
    assert fired(operator, 114, 1) == [(1, 110, 2)]
    assert operator.next_timer_ns() == 110
    assert fired(operator, 114) == [(2, 110, 2)]
    assert operator.next_timer_ns() == 115
    assert advance(operator, 1000) == ([], True)


def test_the_clock_never_goes_back_for_a_processor() -> None:
    operator = opened(Alarmed)
    operator.tell_time(100)
    operator.tell_time(50)
    feed(operator, (1, 0))
    assert operator.next_timer_ns() == 110


def test_processing_timers_are_restored_and_fire_at_once_if_they_are_overdue() -> None:
    operator = opened(Alarmed)
    operator.tell_time(100)
    feed(operator, (1, 0), (2, 0))
    held = [RestoredState(s.name, s.kind, s.table()) for s in operator.snapshot()]
    assert {s.name for s in held} == {"n", "timers", "processing_timers"}
    again = TimedProcessOperator(Alarmed, ["k"], IN, OUT, operator="counts")
    again.check_states(held)
    again.open(OperatorContext("job", "counts", 0, 1, 8, 0))
    again.restore(held)
    assert again.next_timer_ns() == 110
    assert fired(again, 10**6) == [(1, 110, 1), (2, 110, 1)]


def test_at_the_end_of_input_processing_timers_fire_whatever_the_clock_says() -> None:
    operator = opened(Alarmed)
    operator.tell_time(100)
    feed(operator, (1, 0), (2, 0))
    told = [tuple(row.values()) for batch in operator.finish() for row in batch.to_pylist()]
    assert told == [(1, 110, 1), (2, 110, 1)]
    operator.commit()
    assert operator.next_timer_ns() is None


def test_a_processor_that_hears_no_processing_timers_can_set_none() -> None:
    class Mute(StatefulProcessor):
        def process(self, key: Any, row: dict[str, Any]) -> None:
            self.processing_timers.set(row["t"])

    operator = opened(Mute)
    with pytest.raises(UserCodeError, match=r"no on_processing_timer\(key, time_ns\)"):
        feed(operator, (1, 5))


def test_states_and_timers_are_checked_before_anything_is_opened() -> None:
    operator = opened(Counts)
    feed(operator, (1, 5))
    held = [RestoredState(s.name, s.kind, s.table()) for s in operator.snapshot()]
    TimedProcessOperator(Counts, ["k"], IN, OUT, operator="counts").check_states(held)
    timers = [state for state in held if state.name == "timers"]
    other = TimedProcessOperator(Counts, ["t"], IN.remove(0), OUT, operator="counts")
    with pytest.raises(UserError, match="holds state 'timers'"):
        other.check_states(timers)

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import OperatorContext, RestoredState
from headrace.engine.operators import aggregations as agg
from headrace.engine.operators import window_store
from headrace.engine.operators.session import SessionOperator
from headrace.engine.operators.window import TimeWindowOperator
from headrace.engine.operators.window_output import window_schema
from headrace.engine.operators.window_store import WindowAggregate
from headrace.engine.operators.windows import SessionWindow, TimeWindow, Window

from .window_cases import Subtasks

SCHEMA = pa.schema(
    [("k", pa.string()), ("t", pa.timestamp("s")), ("v", pa.int64()), ("id", pa.int64())]
)
AGGREGATIONS = {"n": agg.count(), "sum": agg.sum("v"), "low": agg.min("v"), "mean": agg.mean("v")}
SECOND = 10**9
# The fixture changes a constant, once and for all examples.
HISTORIES = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@dataclass(frozen=True)
class Step:
    """Rows (key, time in seconds, value), then a watermark so many seconds behind the newest
    record, then perhaps a rescale.
    """

    rows: Sequence[tuple[str | None, int, int | None]]
    delay: int | None
    parallelism: int | None
    halfway: bool


@pytest.fixture(autouse=True)
def dead_windows_are_worth_a_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_store, "_DEAD_ROWS_MIN", 2)


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]), st.integers(-20, 60), st.none() | st.integers(-9, 9)
    ),
    min_size=1,
    max_size=12,
)
STEPS = st.lists(
    st.builds(
        Step,
        ROWS,
        st.none() | st.integers(0, 40),
        st.none() | st.integers(1, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
WINDOWS = st.sampled_from([(10, 10), (10, 5), (7, 3), (6, 4)])


def batch_of(
    rows: Iterable[tuple[str | None, int, int | None]], first_id: int = 0
) -> pa.RecordBatch:
    found = [(*row, first_id + i) for i, row in enumerate(rows)]
    columns = [pa.array(c, f.type) for c, f in zip(zip(*found, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def maker(window: Window, lateness: int) -> Callable[[], Any]:
    out = window_schema(["k"], "t", AGGREGATIONS, SCHEMA)
    class_: Any = TimeWindowOperator if isinstance(window, TimeWindow) else SessionOperator
    spec = WindowAggregate(["k"], "t", lateness * SECOND, AGGREGATIONS, SCHEMA, out)
    return partial(class_, window, spec, operator="w")


def run(make: Callable[[], Any], steps: Sequence[Step], *, ordered: bool = False) -> Subtasks:
    """Play a history. `ordered`: watermarks stay below all records that are still to come."""
    subtasks = Subtasks(make, [["k"]], 1)
    done = 0
    newest = -100
    for index, step in enumerate(steps):
        subtasks.process(batch_of(step.rows, done))
        done += len(step.rows)
        newest = max([newest, *(row[1] for row in step.rows)])
        if step.delay is not None:
            to_come = [row[1] for later in steps[index + 1 :] for row in later.rows]
            watermark = newest - step.delay
            if ordered:
                watermark = min([newest, *to_come]) - 1
            if step.halfway and step.parallelism:
                subtasks.advance_half(watermark * SECOND)
            else:
                subtasks.advance(watermark * SECOND)
        if step.parallelism:
            subtasks.rescale(step.parallelism)
    subtasks.advance(MAX_WATERMARK)
    return subtasks


def results(rows: Iterable[dict[str, Any]]) -> dict[Any, Any]:
    """{(key, start, end): the values emitted last}."""
    return {
        (r["k"], int(r["window_start"].timestamp()), int(r["window_end"].timestamp())): (
            r["n"],
            r["sum"],
            r["low"],
            r["mean"],
        )
        for r in utc(rows)
    }


def utc(rows: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    from datetime import UTC, datetime

    for row in rows:
        yield {
            name: value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
            for name, value in row.items()
        }


def all_rows(steps: Sequence[Step]) -> list[tuple[str | None, int, int | None, int]]:
    rows = [row for step in steps for row in step.rows]
    return [(*row, i) for i, row in enumerate(rows)]


def in_sql(rows: Sequence[tuple[Any, ...]], query: str) -> dict[Any, Any]:
    """The same computed by SQLite; `query` gives key, start, end and v of each row and window."""
    database = sqlite3.connect(":memory:")
    database.execute("create table r (k text, t int, v int, id int)")
    database.executemany("insert into r values (?, ?, ?, ?)", rows)
    found = database.execute(
        f"select k, s, e, count(*), sum(v), min(v), avg(v) from ({query}) group by k, s, e"
    ).fetchall()
    database.close()
    return {row[:3]: row[3:] for row in found}


def time_windows(size: int, every: int) -> str:
    # Every start from -100 on, those that hold the record.
    return f"""
        with recursive starts(s) as (
            select {-100 * every} union all select s + {every} from starts where s < 100)
        select k, s, s + {size} as e, v, id from r join starts on t >= s and t < s + {size}"""


def sessions(gap: int) -> str:
    return f"""
        select k, min(t) over w as s, max(t) over w + {gap} as e, v, id from (
            select *, sum(is_new) over (partition by k order by t, id) as nr from (
                select *, t - lag(t) over (partition by k order by t, id) > {gap} as gapped,
                    coalesce(t - lag(t) over (partition by k order by t, id) > {gap}, 1) as is_new
                   from r))
        window w as (partition by k, nr)"""


@HISTORIES
@given(STEPS, WINDOWS)
def test_in_time_every_window_is_emitted_once_and_equals_sql(
    steps: list[Step], window: tuple[int, int]
) -> None:
    size, every = window
    made = maker(TimeWindow(size * SECOND, every * SECOND), 0)
    subtasks = run(made, steps, ordered=True)
    assert subtasks.late == []
    assert len(results(subtasks.emitted)) == len(subtasks.emitted)
    assert results(subtasks.emitted) == in_sql(all_rows(steps), time_windows(size, every))


@HISTORIES
@given(STEPS, st.integers(1, 9))
def test_in_time_every_session_is_emitted_once_and_equals_sql(steps: list[Step], gap: int) -> None:
    subtasks = run(maker(SessionWindow(gap * SECOND), 0), steps, ordered=True)
    assert subtasks.late == []
    assert len(results(subtasks.emitted)) == len(subtasks.emitted)
    assert results(subtasks.emitted) == in_sql(all_rows(steps), sessions(gap))


@HISTORIES
@given(STEPS, WINDOWS, st.sampled_from([0, 0, 5, 20]))
def test_what_is_not_late_is_in_the_newest_row_of_its_window(
    steps: list[Step], window: tuple[int, int], lateness: int
) -> None:
    size, every = window
    make = maker(TimeWindow(size * SECOND, every * SECOND), lateness)
    subtasks = run(make, steps)
    kept, late = judged(steps, size, every, lateness)
    assert sorted(row["id"] for row in subtasks.late) == late
    assert results(subtasks.emitted) == kept
    if lateness == 0:
        assert len(kept) == len(subtasks.emitted), "one row per window"
    told = [(r["k"], r["window_start"], r["n"]) for r in subtasks.emitted]
    assert len(set(told)) == len(told), "emitted again, although nothing was added"


def judged(
    steps: Sequence[Step], size: int, every: int, lateness: int
) -> tuple[dict[Any, Any], list[int]]:
    """What each record adds to, one by one: {window: values}, and the ids of those that add to
    none.
    """
    windows: dict[Any, list[int | None]] = {}
    late: list[int] = []
    watermark, newest, id_ = -(10**6), -100, 0
    for step in steps:
        for key, time, value in step.rows:
            starts = [s for s in range(-100 * every, 100, every) if s <= time < s + size]
            taken = [s for s in starts if s + size - 1e-9 + lateness > watermark]
            for start in taken:
                windows.setdefault((key, start, start + size), []).append(value)
            late += [] if taken else [id_]
            id_ += 1
            newest = max(newest, time)
        if step.delay is not None:
            watermark = max(watermark, newest - step.delay)
    return {window: aggregated(column) for window, column in windows.items()}, late


def aggregated(column: Sequence[int | None]) -> tuple[Any, ...]:
    found = [value for value in column if value is not None]
    if not found:
        return (len(column), None, None, None)
    return (len(column), sum(found), min(found), sum(found) / len(found))


@HISTORIES
@given(STEPS, st.integers(1, 9))
def test_sessions_that_are_kept_long_enough_end_as_sql_says(steps: list[Step], gap: int) -> None:
    subtasks = run(maker(SessionWindow(gap * SECOND), 1000), steps)
    assert subtasks.late == []
    # A session that grew was emitted under its earlier bounds too.
    expected = in_sql(all_rows(steps), sessions(gap))
    found = results(subtasks.emitted)
    assert {window: found[window] for window in expected} == expected


@HISTORIES
@given(STEPS, st.integers(1, 9), st.sampled_from([0, 3]))
def test_sessions_count_every_record_once_or_call_it_late(
    steps: list[Step], gap: int, lateness: int
) -> None:
    subtasks = run(maker(SessionWindow(gap * SECOND), lateness), steps)
    kept = merged_one_by_one(steps, gap, lateness)
    assert sorted(row["id"] for row in subtasks.late) == kept[1]
    found = results(subtasks.emitted)
    assert {window: found.get(window) for window in kept[0]} == kept[0]


def merged_one_by_one(
    steps: Sequence[Step], gap: int, lateness: int
) -> tuple[dict[Any, Any], list[int]]:
    """Sessions as plain lists: those that event time has left behind are final."""
    open_: list[tuple[Any, list[tuple[int, int | None, int]]]] = []
    final: dict[Any, Any] = {}
    late: list[int] = []
    watermark, newest, id_ = -(10**6), -100, 0

    def end(rows: list[tuple[int, int | None, int]]) -> int:
        return max(row[0] for row in rows) + gap

    def passed(rows: list[tuple[int, int | None, int]]) -> bool:
        return end(rows) - 1e-9 + lateness <= watermark

    def close() -> None:
        for key, rows in [s for s in open_ if passed(s[1])]:
            final[key, min(row[0] for row in rows), end(rows)] = aggregated(
                [row[1] for row in rows]
            )
        open_[:] = [s for s in open_ if not passed(s[1])]

    for step in steps:
        for key, time, value in step.rows:
            rows = [(time, value, id_)]
            for session in [s for s in open_ if s[0] == key]:
                first, last = min(row[0] for row in session[1]), end(session[1]) - gap
                if first - gap <= time <= last + gap:
                    open_.remove(session)
                    rows += session[1]
            open_.append((key, rows))
            id_ += 1
            newest = max(newest, time)
        mine = {id_ - 1 - i for i in range(len(step.rows))}
        for session in list(open_):
            if passed(session[1]) and all(row[2] in mine for row in session[1]):
                open_.remove(session)
                late += [row[2] for row in session[1]]
        if step.delay is not None:
            watermark = max(watermark, newest - step.delay)
        close()
    watermark = 10**9
    close()
    return final, sorted(late)


def restored(window: Window, earlier: Window) -> Any:
    """An operator with one window, restored by another."""
    context = OperatorContext("job", "w", 0, 1, 8, 0)
    operator, other = maker(earlier, 0)(), maker(window, 0)()
    operator.open(context)
    operator.process(batch_of([("a", 3, 1)]), 0)
    operator.commit()
    other.open(context)
    other.restore([RestoredState(s.name, s.kind, s.table()) for s in operator.snapshot()])
    return other


@pytest.mark.parametrize("window", [TimeWindow(20, 20), TimeWindow(10, 2), SessionWindow(10)])
def test_windows_of_another_kind_are_not_restored(window: Window) -> None:
    scale = {f: getattr(window, f) * SECOND for f in window.__dataclass_fields__}
    with pytest.raises(UserError, match="checkpoint holds"):
        restored(type(window)(**scale), TimeWindow(9 * SECOND, 3 * SECOND))


def test_keys_that_only_late_records_had_are_forgotten(in_memory: str) -> None:
    if in_memory != "heap":
        pytest.skip("what is at hand is forgotten with the next call anyway")
    operator = maker(TimeWindow(10 * SECOND, 10 * SECOND), 0)()
    operator.open(OperatorContext("job", "w", 0, 1, 8, 0))
    operator.advance(5 * SECOND, 10)
    for key in range(100):
        operator.process(batch_of([(str(key), -20, 1)]), 0)
    operator.process(batch_of([("a", 8, 1)]), 0)
    operator.advance(30 * SECOND, 10)
    assert operator._store.keys.count == 0

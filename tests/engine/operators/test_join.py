from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.operators.join import How, Interval, JoinOperator
from headrace.engine.operators.join_input import JoinInput
from headrace.engine.operators.windows import TimeWindow

from .window_cases import Subtasks

LEFT = JoinInput(
    ("k", "m"),
    "t",
    pa.schema(
        [("id", pa.int64()), ("k", pa.string()), ("m", pa.float64()), ("t", pa.timestamp("s"))]
    ),
)
RIGHT = JoinInput(
    ("k", "n"),
    "t",
    pa.schema(
        [("t", pa.timestamp("s")), ("k", pa.string()), ("n", pa.float64()), ("id", pa.int64())]
    ),
)
SECOND = 10**9
HISTORIES = settings(max_examples=60)


@dataclass(frozen=True)
class Step:
    """Rows (key, key, time in seconds) for one side, then a watermark, then perhaps a rescale."""

    side: int
    rows: Sequence[tuple[str | None, float, int]]
    delay: int | None
    parallelism: int | None


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0.5, 1.0]), st.integers(-20, 40)),
    min_size=1,
    max_size=10,
)
STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 1),
        ROWS,
        st.none() | st.integers(0, 30),
        st.none() | st.integers(1, 3),
    ),
    min_size=1,
    max_size=8,
)
HOWS = st.sampled_from(get_args(How))
BOUNDS = st.tuples(st.integers(-10, 10), st.integers(0, 10)).map(lambda b: (b[0], b[0] + b[1]))


def run(
    steps: Sequence[Step],
    match: Interval | TimeWindow,
    how: How,
    folder: Path | None = None,
    kinds: Sequence[str] = ("rocksdb",),
) -> tuple[Subtasks, list[list[tuple[Any, ...]]]]:
    """Play a history. Returns also the rows of each side that were not late, as one says who looks
    at them one by one.

    With a `folder` state lies in databases below it, and at each rescale the next of `kinds` takes
    over.
    """
    size_ns = match.size_ns if isinstance(match, TimeWindow) else 1
    every_ns = match.every_ns if isinstance(match, TimeWindow) else 1

    def make() -> JoinOperator:
        return JoinOperator(LEFT, RIGHT, match, how, 1, operator="j")

    subtasks = Subtasks(make, [LEFT.keys, RIGHT.keys], 1, folder)
    kept: list[list[tuple[Any, ...]]] = [[], []]
    watermark, newest, id_ = -(10**9) * SECOND, -100, 0
    for number, step in enumerate(steps):
        rows = [(*row, id_ + index) for index, row in enumerate(step.rows)]
        id_ += len(rows)
        subtasks.process(batch_of(step.side, rows), step.side)
        kept[step.side] += [
            r for r in rows if r[2] * SECOND // every_ns * every_ns + size_ns - 1 > watermark
        ]
        newest = max([newest, *(row[2] for row in rows)])
        if step.delay is not None:
            watermark = max(watermark, (newest - step.delay) * SECOND)
            subtasks.advance(watermark)
        if step.parallelism:
            kind = None if folder is None else kinds[number % len(kinds)]
            subtasks.rescale(step.parallelism, kind)
    subtasks.advance(MAX_WATERMARK)
    subtasks.close()
    assert len(subtasks.late) == id_ - len(kept[0]) - len(kept[1])
    return subtasks, kept


def batch_of(side: int, rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    named = [{"k": k, "m": m, "n": m, "t": t, "id": i} for k, m, t, i in rows]
    schema = (LEFT, RIGHT)[side].schema
    return pa.RecordBatch.from_arrays(
        [pa.array([row[f.name] for row in named], f.type) for f in schema], schema=schema
    )


def in_sql(kept: Sequence[Sequence[tuple[Any, ...]]], query: str) -> Counter[Any]:
    database = sqlite3.connect(":memory:")
    for name, rows in zip(("l", "r"), kept, strict=True):
        database.execute(f"create table {name} (k text, m real, t int, id int)")
        database.executemany(f"insert into {name} values (?, ?, ?, ?)", rows)
    found = Counter(database.execute(query).fetchall())
    database.close()
    return found


def seconds(value: datetime | None) -> int | None:
    return None if value is None else int(value.replace(tzinfo=UTC).timestamp())


def emitted(subtasks: Subtasks) -> Counter[Any]:
    return Counter(
        (r["k"], r["m"], r["id"], seconds(r["t"]), r["id_right"], seconds(r["t_right"]))
        for r in subtasks.emitted
    )


COLUMNS = "coalesce(l.k, r.k), coalesce(l.m, r.m), l.id, l.t, r.id, r.t"


@HISTORIES
@given(STEPS, BOUNDS, HOWS)
def test_an_interval_join_equals_sql(steps: list[Step], bounds: tuple[int, int], how: How) -> None:
    low, high = bounds
    subtasks, kept = run(steps, Interval(low * SECOND, high * SECOND), how)
    assert emitted(subtasks) == in_sql(
        kept,
        f"""select {COLUMNS} from l {how} join r
            on l.k = r.k and l.m = r.m and r.t between l.t + {low} and l.t + {high}""",
    )


@HISTORIES
@given(STEPS, st.sampled_from([(10, 10), (5, 5), (6, 3), (7, 3)]), HOWS)
def test_a_windowed_join_equals_sql(
    steps: list[Step], size_and_every: tuple[int, int], how: How
) -> None:
    size, every = size_and_every
    steps = steps if size == every else in_time(steps)
    subtasks, kept = run(steps, TimeWindow(size * SECOND, every * SECOND), how)
    with_windows = f"""(with recursive starts(s) as
        (select {-100 * every} union all select s + {every} from starts where s < 100)
        select * from {{}} join starts on t >= s and t < s + {size})"""
    left, right = with_windows.format("l"), with_windows.format("r")
    expected = in_sql(
        kept,
        f"""select {COLUMNS}, coalesce(l.s, r.s), coalesce(l.s, r.s) + {size} from {left} l
            {how} join {right} r on l.k = r.k and l.m = r.m and l.s = r.s""",
    )
    found = Counter(
        (
            r["k"],
            r["m"],
            r["id"],
            seconds(r["t"]),
            r["id_right"],
            seconds(r["t_right"]),
            seconds(r["window_start"]),
            seconds(r["window_end"]),
        )
        for r in subtasks.emitted
    )
    assert found == expected


def in_time(steps: Sequence[Step]) -> list[Step]:
    """The same without watermarks that come before a record's windows: which of many windows
    are past would have to be told.
    """
    return [Step(s.side, s.rows, None if s.delay is None else 100, s.parallelism) for s in steps]

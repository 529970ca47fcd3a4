"""Joins in sessions, in memory and on RocksDB, against a model that merges by brute force."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import RestoredState, StateKind
from headrace.engine.operators.join import How
from headrace.engine.operators.join_input import JoinInput
from headrace.engine.operators.session_join import SessionJoinOperator
from headrace.engine.operators.windows import SessionWindow

from .rocks_cases import context
from .test_join import LEFT, RIGHT, SECOND, batch_of, seconds
from .window_cases import Subtasks, tables_of

#: A record: two keys, time in seconds, id.
Record = tuple[str | None, float, int, int]
#: What is emitted: the keys, the ids of both sides, start and end of the session in seconds.
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Step:
    """Rows (key, key, time in seconds) for one side; then a watermark that is so far behind;
    then a rescale, perhaps amid what fires.
    """

    side: int
    rows: Sequence[tuple[str | None, float, int]]
    delay: int | None
    parallelism: int | None
    half: bool


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "a", "a", "b", None]),
        st.sampled_from([0.0, 0.0, -0.0, 0.5]),
        st.integers(-20, 40),
    ),
    min_size=1,
    max_size=12,
)
STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 1),
        ROWS,
        st.none() | st.integers(-15, 30),
        st.none() | st.integers(1, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)
HOWS = st.sampled_from(get_args(How))
GAPS = st.integers(1, 12)


@dataclass
class Model:
    """Sessions as lists of records; two of them are one when any of their records are within
    the gap.
    """

    gap: int
    how: How
    watermark: int = -(10**9)
    open: list[list[tuple[int, Record]]] = field(default_factory=list)
    emitted: Counter[Row] = field(default_factory=Counter)
    late: list[int] = field(default_factory=list)

    def process(self, side: int, records: Sequence[Record]) -> None:
        """All of a batch meet before it is judged who is late."""
        known = [id(session) for session in self.open]
        groups = list(self.open)
        for record in records:
            if record[0] is not None:
                groups.append([(side, record)])
            elif record[2] + self.gap <= self.watermark:
                self.late.append(record[3])
            else:
                self._close([(side, record)])
        while (pair := self._touching(groups)) is not None:
            one, other = pair
            # The known one stays itself, grown.
            if id(other) in known:
                one, other = other, one
            one += other
            groups = [group for group in groups if group is not other]
        self.open = []
        for group in groups:
            if id(group) in known or self._end(group) > self.watermark:
                self.open.append(group)
            else:
                self.late += [record[3] for _, record in group]

    def advance(self, watermark: int) -> None:
        self.watermark = max(self.watermark, watermark)
        for session in [s for s in self.open if self._end(s) <= self.watermark]:
            self.open = [other for other in self.open if other is not session]
            self._close(session)

    def _touching(self, groups: list[list[tuple[int, Record]]]) -> Any:
        for at, one in enumerate(groups):
            for other in groups[at + 1 :]:
                if any(
                    a[:2] == b[:2] and abs(a[2] - b[2]) <= self.gap
                    for _, a in one
                    for _, b in other
                ):
                    return one, other
        return None

    def _end(self, session: list[tuple[int, Record]]) -> int:
        return max(record[2] for _, record in session) + self.gap

    def _close(self, session: list[tuple[int, Record]]) -> None:
        start, end = min(record[2] for _, record in session), self._end(session)
        left, right = ([r for s, r in session if s == side] for side in (0, 1))
        key = session[0][1][:2]
        if left and right:
            pairs: list[tuple[int | None, int | None]] = [(a[3], b[3]) for a in left for b in right]
        else:
            pairs = [(a[3], None) for a in left if self.how in ("left", "full")]
            pairs += [(None, b[3]) for b in right if self.how in ("right", "full")]
        for a, b in pairs:
            self.emitted[(key, a, b, start, end)] += 1


def played(
    steps: Sequence[Step],
    gap: int,
    how: How,
    folder: Path | None = None,
    kinds: Sequence[str] = ("rocksdb",),
) -> tuple[Subtasks, Model]:
    """Play a history to both.

    With a `folder` state lies in databases below it, and at each rescale the next of `kinds` takes
    over.
    """

    def make() -> SessionJoinOperator:
        return SessionJoinOperator(LEFT, RIGHT, SessionWindow(gap * SECOND), how, 1, operator="j")

    subtasks = Subtasks(make, [LEFT.keys, RIGHT.keys], 1, folder, rows_least=100)
    model = Model(gap, how)
    newest, number = -100, 0
    for at, step in enumerate(steps):
        records = [(*row, number + index) for index, row in enumerate(step.rows)]
        number += len(records)
        # A subtask's batch has the records of its keys; in the model keys do not touch either.
        subtasks.process(batch_of(step.side, records), step.side)
        model.process(step.side, records)
        newest = max([newest, *(row[2] for row in step.rows)])
        if step.delay is not None:
            # One nanosecond less than a second: the last one of a session that ends there.
            watermark = newest - step.delay
            if step.half and step.parallelism:
                subtasks.advance_half(watermark * SECOND - 1)
            else:
                subtasks.advance(watermark * SECOND - 1)
            model.advance(watermark)
        if step.parallelism:
            kind = None if folder is None else kinds[at % len(kinds)]
            subtasks.rescale(step.parallelism, kind)
    subtasks.advance(MAX_WATERMARK)
    model.advance(10**9)
    subtasks.close()
    return subtasks, model


def emitted(subtasks: Subtasks) -> Counter[Row]:
    return Counter(
        (
            (r["k"], r["m"]),
            r["id"],
            r["id_right"],
            seconds(r["window_start"]),
            seconds(r["window_end"]),
        )
        for r in subtasks.emitted
    )


def assert_equal(subtasks: Subtasks, model: Model) -> None:
    assert emitted(subtasks) == model.emitted
    assert sorted(row["id"] for row in subtasks.late) == sorted(model.late)


@settings(max_examples=60)
@given(STEPS, GAPS, HOWS)
def test_sessions_of_both_sides_are_joined_as_by_brute_force(
    steps: list[Step], gap: int, how: How
) -> None:
    assert_equal(*played(steps, gap, how))


@settings(max_examples=12)
@given(STEPS, GAPS, HOWS, st.sampled_from([["rocksdb"], ["heap", "rocksdb"]]))
def test_on_rocksdb_and_from_one_backend_to_the_other_too(
    steps: list[Step], gap: int, how: How, kinds: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_equal(*played(steps, gap, how, Path(folder), kinds))


def operator_of(how: How = "full", gap: int = 5, left: JoinInput = LEFT) -> SessionJoinOperator:
    return SessionJoinOperator(left, RIGHT, SessionWindow(gap * SECOND), how, 1, operator="j")


def opened(folder: Path, kind: str, how: How = "full") -> SessionJoinOperator:
    operator = operator_of(how)
    operator.open(context(folder, kind))
    return operator


def told(operator: SessionJoinOperator, side: int, *rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    found = [row for b in operator.process(batch_of(side, rows), side) for row in b.to_pylist()]
    operator.commit()
    return found


def fired(operator: SessionJoinOperator, watermark: int, rows_max: int) -> list[int]:
    """How many rows come in each call."""
    counts, done = [], False
    while not done:
        advanced = operator.advance(watermark, rows_max)
        operator.commit()
        counts.append(sum(batch.num_rows for batch in advanced.batches))
        done = advanced.done
    return counts


BACKENDS = pytest.mark.parametrize("kind", ["heap", "rocksdb"])


@BACKENDS
def test_nothing_comes_before_the_watermark_reaches_the_end(tmp_path: Path, kind: str) -> None:
    operator = opened(tmp_path, kind)
    assert told(operator, 0, ("a", 0.5, 0, 1)) == []
    assert told(operator, 1, ("a", 0.5, 5, 2)) == []
    assert fired(operator, 10 * SECOND - 2, 100) == [0]
    assert fired(operator, 10 * SECOND - 1, 100) == [1]
    operator.close()


@BACKENDS
def test_the_records_of_the_other_side_make_one_session_of_two(tmp_path: Path, kind: str) -> None:
    operator = opened(tmp_path, kind, "inner")
    told(operator, 0, ("a", 0.5, 0, 1), ("a", 0.5, 10, 2))
    told(operator, 1, ("a", 0.5, 5, 3))
    (batch,) = operator.advance(MAX_WATERMARK, 100).batches
    assert sorted(batch["id"].to_pylist()) == [1, 2]
    assert {seconds(t) for t in batch["window_end"].to_pylist()} == {15}
    operator.close()


@BACKENDS
def test_not_a_number_is_a_key_like_any_other(tmp_path: Path, kind: str) -> None:
    operator = opened(tmp_path, kind)
    told(operator, 0, ("a", float("nan"), 0, 1))
    told(operator, 1, ("a", -float("nan"), 0, 2))
    (batch,) = operator.advance(MAX_WATERMARK, 100).batches
    assert (batch["id"].to_pylist(), batch["id_right"].to_pylist()) == ([1], [2])
    operator.close()


@BACKENDS
def test_what_was_joined_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    operator = opened(tmp_path, kind)
    told(operator, 0, *((key, 0.5, time, time) for key in "abc" for time in (-17, 0, 3)))
    told(operator, 1, ("a", 0.5, 4, 100), ("d", 0.5, 4, 101))
    assert sum(fired(operator, 60 * SECOND, 2)) == 10
    found = {name: table.num_rows for name, table in tables_of(operator).items()}
    found = {name: rows for name, rows in found.items() if name not in ("watermark", "sequence")}
    assert not any(found.values()), found
    assert {"left_records", "right_records", "sessions", "closing"} <= set(found)
    operator.close()
    assert list(tmp_path.iterdir()) == []


@BACKENDS
def test_a_session_of_many_pairs_is_emitted_in_parts_and_goes_on_after_a_restore(
    tmp_path: Path, kind: str
) -> None:
    operator = opened(tmp_path, kind)
    told(operator, 0, *(("a", 0.5, 0, number) for number in range(7)))
    told(operator, 1, *(("a", 0.5, 1, number) for number in range(20)))
    first = operator.advance(60 * SECOND, 45)
    operator.commit()
    assert not first.done
    assert sum(batch.num_rows for batch in first.batches) == 40
    tables = tables_of(operator)
    operator.close()
    assert [tables[n].num_rows for n in ("left_records", "right_records", "closing")] == [5, 20, 1]
    second = opened(tmp_path, kind)
    second.restore([RestoredState(n, StateKind.KEYED, table) for n, table in tables.items()])
    assert fired(second, 60 * SECOND, 45) == [40, 40, 20, 0]
    second.close()


@BACKENDS
def test_equal_records_of_several_batches_stay_several_also_after_a_restore(
    tmp_path: Path, kind: str
) -> None:
    operator = opened(tmp_path, kind)
    told(operator, 0, ("a", 0.5, 1, 7))
    told(operator, 0, ("a", 0.5, 1, 7))
    tables = tables_of(operator)
    operator.close()
    second = opened(tmp_path, kind)
    second.restore([RestoredState(n, StateKind.KEYED, table) for n, table in tables.items()])
    told(second, 0, ("a", 0.5, 1, 7))
    told(second, 1, ("a", 0.5, 1, 8))
    assert sum(fired(second, MAX_WATERMARK, 100)) == 3
    second.close()


def test_equal_records_stay_several_when_the_database_itself_was_restored(tmp_path: Path) -> None:
    subtasks = Subtasks(operator_of, [LEFT.keys, RIGHT.keys], 1, tmp_path, rows_least=100)
    subtasks.process(batch_of(0, [("a", 0.5, 1, 7)]), 0)
    subtasks.rescale(2)
    subtasks.process(batch_of(0, [("a", 0.5, 1, 7)]), 0)
    subtasks.process(batch_of(1, [("a", 0.5, 1, 8)]), 1)
    subtasks.advance(MAX_WATERMARK)
    subtasks.close()
    assert len(subtasks.emitted) == 2


def test_a_record_without_a_key_is_a_session_alone_and_may_be_late(tmp_path: Path) -> None:
    operator = opened(tmp_path, "heap", "left")
    (row,) = told(operator, 0, (None, 0.5, 0, 1))
    assert (row["id"], row["id_right"]) == (1, None)
    assert [seconds(row[name]) for name in ("window_start", "window_end")] == [0, 5]
    assert told(operator, 1, (None, 0.5, 0, 2)) == []
    fired(operator, 5 * SECOND - 1, 100)
    assert [row["id"] for row in told(operator, 0, (None, 0.5, 0, 3), (None, 0.5, 1, 4))] == [4]
    assert [row["id"] for batch in operator.take_late() for row in batch.to_pylist()] == [3]


def test_a_closed_session_takes_no_record_in_also_when_event_time_was_set_back(
    tmp_path: Path,
) -> None:
    operator = opened(tmp_path, "heap")
    told(operator, 0, ("a", 0.5, 0, 1), ("a", 0.5, 0, 2))
    told(operator, 1, ("a", 0.5, 1, 3))
    operator.advance(60 * SECOND, 1)
    operator.commit()
    tables = tables_of(operator)
    second = opened(tmp_path, "heap")
    second.restore([RestoredState(n, StateKind.KEYED, table) for n, table in tables.items()])
    # As after a rescale, other subtasks are behind: nobody has said yet that the session is over.
    assert [row["id_right"] for row in told(second, 1, ("a", 0.5, 2, 4), ("b", 0.5, 90, 5))] == [3]
    assert [row["id"] for batch in second.take_late() for row in batch.to_pylist()] == [4]


def test_a_session_that_is_not_whole_is_not_emitted(tmp_path: Path) -> None:
    operator = opened(tmp_path, "heap")
    told(operator, 0, ("a", 0.5, 0, 1))
    tables = tables_of(operator)
    second = opened(tmp_path, "heap")
    lost = [RestoredState(n, StateKind.KEYED, t) for n, t in tables.items() if n != "left_records"]
    second.restore(lost)
    with pytest.raises(AssertionError, match="other records than it counted"):
        second.advance(MAX_WATERMARK, 100)


def test_states_of_other_columns_or_of_another_join_are_refused(tmp_path: Path) -> None:
    operator = opened(tmp_path, "rocksdb")
    told(operator, 0, ("a", 0.5, 1, 7))
    held = [RestoredState(n, StateKind.KEYED, t) for n, t in tables_of(operator).items()]
    operator.close()
    operator_of().check_states(held)
    wider = JoinInput(LEFT.keys, "t", LEFT.schema.append(pa.field("more", pa.int64())))
    with pytest.raises(UserError, match="holds state 'left_records'"):
        operator_of(left=wider).check_states(held)
    of_another = [RestoredState("left", StateKind.KEYED, held[0].table)]
    with pytest.raises(UserError, match="holds state 'left'"):
        operator_of().check_states(of_another)

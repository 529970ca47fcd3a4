"""As-of joins, against a model that keeps every version and looks at each record by itself."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import OperatorContext, RestoredState, StateKind
from headrace.engine.operators import as_of_join
from headrace.engine.operators.as_of_join import AsOfJoinOperator, HowAsOf
from headrace.engine.operators.join_input import JoinInput
from headrace.engine.state import runs

from ..state import sorted_dict
from .rocks_cases import context
from .test_join import LEFT, RIGHT, SECOND, STEPS, Step, batch_of, seconds
from .window_cases import Subtasks, tables_of

HOWS = st.sampled_from(get_args(HowAsOf))
KINDS = st.sampled_from([["rocksdb"], ["heap", "rocksdb"]])
#: (key, key, time, id) of a record.
Row = tuple[str | None, float, int, int]


class Model:
    """Keeps every version, and joins at each watermark."""

    def __init__(self, how: HowAsOf) -> None:
        self._how = how
        self._versions: list[Row] = []
        self._waiting: list[Row] = []
        self._watermark = -(10**9)
        self.emitted: Counter[Any] = Counter()
        self.late: list[int] = []

    def take(self, side: int, rows: Sequence[Row]) -> None:
        if side == 1:
            self._versions += rows
            return
        self.late += [row[3] for row in rows if row[2] <= self._watermark]
        self._waiting += [row for row in rows if row[2] > self._watermark]

    def advance(self, watermark: int) -> None:
        self._watermark = max(self._watermark, watermark)
        for row in [row for row in self._waiting if row[2] <= self._watermark]:
            self._waiting.remove(row)
            self._emit(row)

    def _emit(self, row: Row) -> None:
        k, m, time, id_ = row
        valid = [v for v in self._versions if k is not None and v[:2] == (k, m) and v[2] <= time]
        newest = max(valid, key=lambda version: (version[2], version[3]), default=None)
        if newest is not None:
            self.emitted[k, m, id_, time, newest[3], newest[2]] += 1
        elif self._how == "left":
            self.emitted[k, m, id_, time, None, None] += 1


def make(how: HowAsOf, left: JoinInput = LEFT) -> AsOfJoinOperator:
    return AsOfJoinOperator(left, RIGHT, how, 1, operator="j")


def run(
    steps: Sequence[Step],
    how: HowAsOf,
    folder: Path | None = None,
    kinds: Sequence[str] = ("rocksdb",),
) -> tuple[Subtasks, Model]:
    """Play a history. With a `folder` state lies in databases below it, and at each rescale the
    next of `kinds` takes over.
    """
    subtasks = Subtasks(lambda: make(how), [LEFT.keys, RIGHT.keys], 1, folder)
    model = Model(how)
    newest, id_ = -100, 0
    for number, step in enumerate(steps):
        rows: list[Row] = [(*row, id_ + index) for index, row in enumerate(step.rows)]
        id_ += len(rows)
        subtasks.process(batch_of(step.side, rows), step.side)
        model.take(step.side, rows)
        newest = max([newest, *(row[2] for row in rows)])
        if step.delay is not None:
            subtasks.advance((newest - step.delay) * SECOND)
            model.advance(newest - step.delay)
        if step.parallelism:
            subtasks.rescale(
                step.parallelism, None if folder is None else kinds[number % len(kinds)]
            )
    subtasks.advance(MAX_WATERMARK)
    model.advance(10**9)
    subtasks.close()
    return subtasks, model


def emitted(subtasks: Subtasks) -> Counter[Any]:
    return Counter(
        (r["k"], r["m"], r["id"], seconds(r["t"]), r["id_right"], seconds(r["t_right"]))
        for r in subtasks.emitted
    )


@settings(max_examples=30)
@given(STEPS, HOWS)
def test_each_record_meets_the_newest_version_of_its_time(steps: list[Step], how: HowAsOf) -> None:
    subtasks, model = run(steps, how)
    assert emitted(subtasks) == model.emitted
    assert sorted(row["id"] for row in subtasks.late) == sorted(model.late)


@settings(max_examples=8)
@given(STEPS, HOWS, KINDS)
def test_on_disk_each_record_meets_the_same_version(
    steps: list[Step], how: HowAsOf, kinds: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subtasks, model = run(steps, how, Path(folder), kinds)
    assert emitted(subtasks) == model.emitted
    assert sorted(row["id"] for row in subtasks.late) == sorted(model.late)


def test_keys_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runs, as_of_join, sorted_dict):
        monkeypatch.setattr(module, "hash_rows", lambda batch, _: np.zeros(len(batch), np.uint64))
    steps = [
        Step(1, [("a", 0.5, 1), ("b", 0.5, 2), ("a", 1.0, 3), ("b", 0.5, 4)], 2, None),
        Step(0, [("a", 0.5, 5), ("b", 0.5, 6), ("a", 1.0, 7), ("b", 1.0, 8)], 0, None),
        Step(1, [("b", 0.5, 9), ("a", 0.5, 9), ("a", 0.5, 10)], 0, None),
        Step(0, [("a", 0.5, 20), ("b", 0.5, 20), ("a", 1.0, 20)], 0, None),
    ]
    subtasks, model = run(steps, "left")
    assert emitted(subtasks) == model.emitted


def opened(where: OperatorContext) -> AsOfJoinOperator:
    operator = make("inner")
    operator.open(where)
    return operator


def advanced(operator: AsOfJoinOperator, watermark_ns: int) -> list[tuple[int, int]]:
    """Pairs that are emitted at a watermark."""
    found: list[tuple[int, int]] = []
    done = False
    while not done:
        step = operator.advance(watermark_ns, 2)
        operator.commit()
        rows = [row for batch in step.batches for row in batch.to_pylist()]
        found += [(row["id"], row["id_right"]) for row in rows]
        done = step.done
    return found


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_one_version_of_each_key_outlives_the_watermark(kind: str, tmp_path: Path) -> None:
    operator = opened(context(tmp_path, kind))
    versions = [(key, 0.5, time, time) for time in range(30) for key in "abc"]
    list(operator.process(batch_of(1, versions), 1))
    list(operator.process(batch_of(0, [("a", 0.5, 3, 100), ("a", 0.5, 25, 101)]), 0))
    operator.commit()
    assert advanced(operator, 20 * SECOND) == [(100, 3)]
    held = {name: table.num_rows for name, table in tables_of(operator).items()}
    assert (held["waiting"], held["coming"], held["current"]) == (1, 3 * 9, 3)
    # Behind the watermark: the first is older than the version that is known.
    list(operator.process(batch_of(1, [("b", 0.5, 19, 200), ("c", 0.5, 20, 201)]), 1))
    operator.commit()
    assert advanced(operator, 21 * SECOND) == []
    assert newest(operator) == [("a", 21), ("b", 21), ("c", 21)]
    assert advanced(operator, MAX_WATERMARK) == [(101, 25)]
    assert newest(operator) == [("a", 29), ("b", 29), ("c", 29)]
    operator.close()


def newest(operator: AsOfJoinOperator) -> list[tuple[str, int]]:
    table = tables_of(operator)["current"]
    return sorted(zip(table["k"].to_pylist(), table["id"].to_pylist(), strict=True))


def test_a_version_behind_the_watermark_counts_if_it_is_the_newest(tmp_path: Path) -> None:
    operator = opened(context(tmp_path, "heap"))
    list(operator.process(batch_of(1, [("a", 0.5, 1, 1), ("b", 0.5, 9, 2)]), 1))
    assert advanced(operator, 10 * SECOND) == []
    list(operator.process(batch_of(1, [("a", 0.5, 5, 3), ("b", 0.5, 5, 4)]), 1))
    assert advanced(operator, 11 * SECOND) == []
    assert newest(operator) == [("a", 3), ("b", 2)]
    list(operator.process(batch_of(0, [("a", 0.5, 12, 5), ("b", 0.5, 12, 6)]), 0))
    assert sorted(advanced(operator, 12 * SECOND)) == [(5, 3), (6, 2)]


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_of_versions_with_equal_times_the_last_counts(kind: str, tmp_path: Path) -> None:
    operator = opened(context(tmp_path, kind))
    others = [(key, 0.5, 5, 0) for key in "bcdefgh"]
    list(operator.process(batch_of(1, [("a", 0.5, 5, 1), *others]), 1))
    assert advanced(operator, 6 * SECOND) == []
    # One replaces what is current; two in coming, on the heap in runs of their own.
    list(operator.process(batch_of(1, [("a", 0.5, 5, 2)]), 1))
    list(operator.process(batch_of(0, [("a", 0.5, 7, 10)]), 0))
    assert advanced(operator, 7 * SECOND) == [(10, 2)]
    list(operator.process(batch_of(1, [("a", 0.5, 8, 3), *others]), 1))
    list(operator.process(batch_of(1, [("a", 0.5, 8, 4)]), 1))
    list(operator.process(batch_of(0, [("a", 0.5, 8, 11)]), 0))
    assert advanced(operator, 9 * SECOND) == [(11, 4)]
    assert newest(operator)[0] == ("a", 4)
    operator.close()


def test_states_of_other_columns_are_refused(tmp_path: Path) -> None:
    operator = opened(context(tmp_path, "heap"))
    list(operator.process(batch_of(0, [("a", 0.5, 1, 7)]), 0))
    operator.commit()
    held = [RestoredState(n, StateKind.KEYED, t) for n, t in tables_of(operator).items()]
    make("left").check_states(held)
    wider = JoinInput(LEFT.keys, "t", LEFT.schema.append(pa.field("more", pa.int64())))
    with pytest.raises(UserError, match="holds state 'waiting'"):
        make("inner", wider).check_states(held)

"""Aggregates that expire, in memory and on RocksDB, against a model that looks at one record
after the other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import RestoredState, StateKind
from headrace.engine.operators import aggregations
from headrace.engine.operators.expiring_aggregate import ExpiringAggregate

from .rocks_cases import context
from .window_cases import Subtasks, tables_of

SECOND = 10**9
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("s")), ("v", pa.int64())])
TOTALS = {
    "n": aggregations.count(),
    "total": aggregations.sum("v"),
    "least": aggregations.min("v"),
    "mean": aggregations.mean("v"),
}

#: Key, time in seconds, value.
Record = tuple[str | None, int, int | None]


@dataclass(frozen=True)
class Step:
    """A batch; then a watermark that is so far behind; then a rescale."""

    records: Sequence[Record]
    delay: int | None
    parallelism: int | None


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]), st.integers(-20, 60), st.none() | st.integers(-5, 5)
    ),
    min_size=1,
    max_size=10,
)
STEPS = st.lists(
    st.builds(Step, RECORDS, st.none() | st.integers(0, 30), st.none() | st.integers(1, 3)),
    min_size=1,
    max_size=10,
)


@dataclass
class Life:
    written: int
    values: list[int | None] = field(default_factory=list)


@dataclass
class Model:
    """The values of each key since it began anew."""

    ttl: int
    watermark: int = -(10**9)
    lives: dict[str | None, Life] = field(default_factory=dict)

    def process(self, records: Sequence[Record]) -> dict[str | None, tuple[Any, ...]]:
        for key, time, value in records:
            now = max(time, self.watermark)
            life = self.lives.get(key)
            if life is None or life.written + self.ttl <= now:
                life = self.lives[key] = Life(now)
            life.written = max(life.written, now)
            life.values.append(value)
        return {key: aggregated(self.lives[key].values) for key, _, _ in records}


def aggregated(values: Sequence[int | None]) -> tuple[Any, ...]:
    known = [value for value in values if value is not None]
    if not known:
        return (len(values), None, None, None)
    return (len(values), sum(known), min(known), sum(known) / len(known))


def make(ttl: int = 10) -> ExpiringAggregate:
    return ExpiringAggregate(["k"], "t", ttl * SECOND, TOTALS, SCHEMA, operator="e")


def batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    columns = [
        pa.array(list(c), f.type) for c, f in zip(zip(*records, strict=True), SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def check(
    steps: Sequence[Step], ttl: int, folder: Path | None, kinds: Sequence[str]
) -> dict[str | None, Life]:
    """Play a history to both, and compare what every batch emits."""
    subtasks = Subtasks(lambda: make(ttl), [["k"]], 1, folder)
    model = Model(ttl)
    newest = -100
    for at, step in enumerate(steps):
        subtasks.emitted.clear()
        subtasks.process(batch_of(step.records))
        expected = model.process(step.records)
        found = {r["k"]: (r["n"], r["total"], r["least"], r["mean"]) for r in subtasks.emitted}
        assert len(found) == len(subtasks.emitted), "a key is emitted twice"
        assert found == expected
        newest = max([newest, *(time for _, time, _ in step.records)])
        if step.delay is not None:
            model.watermark = max(model.watermark, newest - step.delay)
            subtasks.advance(model.watermark * SECOND)
        if step.parallelism:
            kind = None if folder is None else kinds[at % len(kinds)]
            subtasks.rescale(step.parallelism, kind)
    subtasks.close()
    return model.lives


TTLS = st.integers(1, 30)


@settings(max_examples=100)
@given(STEPS, TTLS)
def test_keys_expire_as_one_says_who_looks_at_them_one_by_one(steps: list[Step], ttl: int) -> None:
    check(steps, ttl, None, ())


@settings(max_examples=12)
@given(STEPS, TTLS, st.sampled_from([["rocksdb"], ["heap", "rocksdb"]]))
def test_on_rocksdb_and_from_one_backend_to_the_other_too(
    steps: list[Step], ttl: int, kinds: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(steps, ttl, Path(folder), kinds)


def emitted(operator: ExpiringAggregate, *records: Record) -> list[tuple[str, int]]:
    found = [row for b in operator.process(batch_of(records), 0) for row in b.to_pylist()]
    operator.commit()
    return sorted((row["k"], row["n"]) for row in found)


BACKENDS = pytest.mark.parametrize("kind", ["heap", "rocksdb"])


@BACKENDS
def test_the_last_record_counts_and_a_key_lives_up_to_its_time(tmp_path: Path, kind: str) -> None:
    operator = make()
    operator.open(context(tmp_path, kind))
    assert emitted(operator, ("a", 0, 1), ("a", 9, 1)) == [("a", 2)]
    assert emitted(operator, ("a", 18, 1)) == [("a", 3)]
    assert emitted(operator, ("a", 28, 1)) == [("a", 1)]
    operator.close()


@BACKENDS
def test_a_late_record_counts_as_come_at_the_watermark(tmp_path: Path, kind: str) -> None:
    operator = make()
    operator.open(context(tmp_path, kind))
    emitted(operator, ("a", 0, 1), ("b", 1, 1))
    operator.advance(10 * SECOND, 100)
    operator.commit()
    assert emitted(operator, ("a", 5, 1), ("b", 5, 1)) == [("a", 1), ("b", 2)]
    operator.close()


@BACKENDS
def test_what_has_expired_is_no_longer_stored(tmp_path: Path, kind: str) -> None:
    operator = make()
    operator.open(context(tmp_path, kind))
    emitted(operator, *((str(key), key % 2 * 15, 1) for key in range(100)))
    done = False
    while not done:
        done = operator.advance(12 * SECOND, 7).done
        operator.commit()
    assert tables_of(operator)["expiring"].num_rows == 50
    operator.close()


def test_memory_is_given_back_too(tmp_path: Path, in_memory: str) -> None:
    if in_memory != "heap":
        pytest.skip("what is at hand is forgotten with the next call anyway")
    operator = make()
    operator.open(context(tmp_path, "heap"))
    for number in range(10):
        emitted(operator, *((f"{number}/{key}", number * 20, 1) for key in range(3000)))
        operator.advance(number * 20 * SECOND, 100)
        operator.commit()
    assert operator._store.count < 10_000
    assert emitted(operator, ("9/7", 181, 1), ("0/7", 181, 1)) == [("0/7", 1), ("9/7", 2)]


def test_the_end_of_input_forgets_nothing(tmp_path: Path) -> None:
    operator = make()
    operator.open(context(tmp_path, "rocksdb"))
    emitted(operator, ("a", 0, 1))
    assert operator.advance(MAX_WATERMARK, 100).done
    operator.commit()
    assert tables_of(operator)["expiring"].num_rows == 1
    operator.close()


def test_names_that_the_state_needs_and_states_without_a_ttl_are_refused() -> None:
    taken = {"window_start": aggregations.count()}
    with pytest.raises(UserError, match="'window_start' is a name that state with a ttl needs"):
        ExpiringAggregate(["k"], "t", 1, taken, SCHEMA, operator="e")
    table = pa.table({"__key_group": pa.array([], pa.uint16())})
    with pytest.raises(UserError, match="holds state 'aggregate'"):
        make().check_states([RestoredState("aggregate", StateKind.KEYED, table)])

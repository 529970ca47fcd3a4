from __future__ import annotations

from collections.abc import Callable

import pytest

import headrace as hr
from headrace.engine.contract.errors import UserError


def numbers(rows: int = 10_000) -> hr.Stream:
    return hr.read.sequence(rows, name="numbers", keys=50)


def test_distinct_keeps_one_record_of_each_value() -> None:
    source = numbers()
    once = source.distinct("key", name="once")
    whole = source.select("key").distinct(name="whole", state=hr.State("rocksdb"))
    sinks = [once.write.collect(name="once-out"), whole.write.collect(name="whole-out")]
    found = hr.Job("distinct", *sinks, parallelism=2).run(runner="threads").collected
    assert sorted(found["once-out"]["key"].to_pylist()) == list(range(50))
    assert found["once-out"].column_names == ["sequence", "timestamp", "key"]
    assert len(set(found["whole-out"]["key"].to_pylist())) == found["whole-out"].num_rows


@pytest.mark.parametrize("rows", [0, 7, 20_000])
def test_limit_keeps_so_many_records_at_any_parallelism(rows: int) -> None:
    limited = numbers().limit(rows, name="first")
    job = hr.Job("limit", limited.write.collect(name="out"), parallelism=2)
    assert job.run(runner="threads").collected["out"].num_rows == min(rows, 10_000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.distinct("key"), "distinct needs name="),
        (lambda s: s.distinct("kex", name="d"), "distinct: there is no column 'kex'"),
        (lambda s: s.limit("3", name="l"), "limit takes a number of records"),
        (lambda s: s.limit(-1, name="l"), "limit takes a number of records"),
        (lambda s: s.limit(3), "limit needs name="),
    ],
)
def test_a_mistake_is_told_in_a_sentence(call: Callable[[hr.Stream], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(numbers())

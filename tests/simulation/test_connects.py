"""A connected task tells by each subtask, once, what it was told."""

from __future__ import annotations

import pyarrow as pa

from headrace.engine.contract.operators import OperatorContext, RestoredState
from headrace.engine.simulation.jobs.connects import TOLD_PATH, Connected
from headrace.engine.simulation.jobs.source import SCHEMA


def opened() -> Connected:
    operator = Connected(2, 1, "connect2")
    operator.open(OperatorContext("job", "connect2", 1, 2, 16, 1))
    return operator


def rows(*ids: int) -> pa.RecordBatch:
    names = ("key", "path", "by", "nth", "sender")
    return pa.RecordBatch.from_pylist(
        [{"id": id} | dict.fromkeys(names, 0) for id in ids], schema=SCHEMA
    )


def test_the_keyed_stream_is_a_history() -> None:
    found = [row for batch in opened().process(rows(5, 7), 0) for row in batch.to_pylist()]
    assert [(row["id"], row["by"], row["nth"]) for row in found] == [(5, 2, 1), (7, 2, 2)]


def test_what_was_told_is_told_at_the_end_unless_an_ancestor_has() -> None:
    first = opened()
    assert list(first.process(rows(5, 7), 1)) == []
    first.commit()
    told = [row for batch in first.finish() for row in batch.to_pylist()]
    assert [(row["id"], row["path"]) for row in told] == [((5 + 7) * 31 + 2, TOLD_PATH)]
    first.commit()
    second = opened()
    second.restore([RestoredState(s.name, s.kind, s.table()) for s in first.snapshot()])
    assert list(second.finish()) == []

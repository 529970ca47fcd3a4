"""A co-processor tells every record of both sides at a place of its own, and totals at the end."""

from __future__ import annotations

import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.operators import OperatorContext, RestoredState
from headrace.engine.operators.co_process import CoProcessOperator
from headrace.engine.simulation.jobs.co_processes import co_process, totals_of
from headrace.engine.simulation.jobs.connects import TOLD_PATH
from headrace.engine.simulation.jobs.source import SCHEMA


def opened() -> CoProcessOperator:
    operator = co_process(2, "co-process2")
    operator.open(OperatorContext("job", "co-process2", 1, 2, 16, 1))
    return operator


def rows(*ids: int) -> pa.RecordBatch:
    zeros = dict.fromkeys(SCHEMA.names, 0)
    return pa.RecordBatch.from_pylist([zeros | {"id": id} for id in ids], schema=SCHEMA)


def test_records_of_both_sides_enter_one_list() -> None:
    operator = opened()
    found = [
        (row["id"], row["by"], row["nth"])
        for port, id in ((0, 5), (1, 7), (2, 9), (0, 5))
        for batch in operator.process(rows(id), port)
        for row in batch.to_pylist()
    ]
    assert found == [(5, 2, 1), (7, 2, 2), (9, 2, 3), (5, 2, 4)]


def test_totals_of_both_sides_are_told_at_the_end_of_input_by_the_restored_operator_too() -> None:
    first = opened()
    for port, ids in ((0, (5, 7)), (1, (9,))):
        list(first.process(rows(*ids), port))
    first.commit()
    second = opened()
    second.restore([RestoredState(s.name, s.kind, s.table()) for s in first.snapshot()])
    assert not list(second.advance(1 << 40, 100).batches)
    told = [r for b in second.advance(MAX_WATERMARK, 100).batches for r in b.to_pylist()]
    assert [(r["id"], r["path"], r["by"]) for r in told] == [
        (totals_of((2, 12), (1, 9)), TOLD_PATH, 0)
    ]


def test_totals_tell_the_sides_apart() -> None:
    assert totals_of((2, 12), (1, 9)) != totals_of((1, 9), (2, 12))

"""The operators of random jobs keep to what the reference says of them."""

from __future__ import annotations

import pyarrow as pa

from headrace.engine.contract.operators import OperatorContext, RestoredState
from headrace.engine.simulation.jobs.operators import Gather
from headrace.engine.simulation.jobs.source import SCHEMA


def gather() -> Gather:
    made = Gather(1)
    made.open(OperatorContext("job", "gather", 0, 1, 16, 1))
    return made


def records(*ids: int) -> pa.RecordBatch:
    rows = [dict.fromkeys(SCHEMA.names, 0) | {"id": id} for id in ids]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def restored(before: Gather) -> Gather:
    after = gather()
    after.restore([RestoredState(s.name, s.kind, s.table()) for s in before.snapshot()])
    return after


def told(some: Gather) -> list[int]:
    ids = [id for batch in some.finish() for id in batch.column(0).to_pylist()]
    some.commit()
    return ids


def test_a_gathering_task_tells_sum_and_number_once_even_when_it_was_restored() -> None:
    before = gather()
    before.process(records(1, 2), 0)
    before.commit()
    after = restored(before)
    after.process(records(4), 0)
    after.commit()
    assert told(after) == [(1 + 2 + 4) * 31 + 3]
    assert told(restored(after)) == []


def test_what_is_not_committed_is_in_no_snapshot() -> None:
    before = gather()
    before.process(records(1), 0)
    assert told(restored(before)) == []

"""Arguments of `map_batches`; each refusal stands in test_stream.py."""

from __future__ import annotations

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.api.batched import batch_rule
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.execution import BatchRule

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])


def test_a_batch_size_alone_waits_for_nothing() -> None:
    assert batch_rule(SCHEMA, None, None) is None
    assert batch_rule(SCHEMA, 4096, None) == BatchRule(4096, 0)
    assert batch_rule(SCHEMA, 10, "50ms") == BatchRule(10, 50_000_000)


def test_a_batch_that_no_memory_holds_is_refused() -> None:
    wide = pa.schema([(f"c{n}", pa.int64()) for n in range(10_000)])
    with pytest.raises(UserError, match=r"batch_size=2000000000 rows take 149012 GiB or more"):
        batch_rule(wide, 2_000_000_000, None)


def test_full_batches_begin_a_task_of_their_own() -> None:
    """Rows wait at the gate of a task, and a chain has one gate."""
    rows = hr.read.sequence(10, name="in")
    job = hr.Job(
        "j",
        rows.map_batches(len, batch_size=4, name="b").map(dict, name="m").write.collect(name="out"),
    )
    assert [task.name for task in job.plan().tasks][:2] == ["in", "b -> m"]
    assert job.plan().tasks[1].batch == BatchRule(4, 0)
    assert job.plan().tasks[0].batch is None

"""The public API is this list. Whoever changes it changes a promise, and the changelog."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

PUBLIC = [
    "Aggregation",
    "Autoscale",
    "BroadcastProcessor",
    "Checkpoints",
    "CoProcessor",
    "HeadraceDataSource",
    "HeadraceError",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobResult",
    "KeyedStream",
    "Network",
    "Polled",
    "Restart",
    "Sink",
    "SinkHandle",
    "Source",
    "SourceStatus",
    "State",
    "StateKind",
    "StateSnapshot",
    "StatefulProcessor",
    "StorageUnreachable",
    "Stream",
    "Transaction",
    "UserCodeError",
    "UserError",
    "WindowedStream",
    "Workers",
    "broadcast_state",
    "count",
    "from_source",
    "list_state",
    "map_state",
    "max",
    "mean",
    "min",
    "read",
    "session",
    "sliding",
    "sum",
    "tumbling",
    "value_state",
]


def test_the_public_names_are_these() -> None:
    assert dir(hr) == PUBLIC
    assert [name for name in PUBLIC if not hasattr(hr, name)] == []


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(hr.__file__).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: f".{statement.module}"
        for statement in checked.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen.pop("read") == ".engine.api"
    assert seen == {name: home for name, home in hr._HOMES.items() if name != "read"}


def test_every_public_name_is_documented() -> None:
    assert [name for name in PUBLIC if not getattr(hr, name).__doc__] == []


def test_importing_headrace_does_not_wait_for_spark_or_rocksdb() -> None:
    code = (
        "import sys, headrace; headrace.Job; print({'pyspark', 'rocksdict', 'fsspec'} &"
        " set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_pipeline_of_the_design_can_be_planned() -> None:
    schema = pa.schema([("customer", pa.string()), ("score", pa.float64())])

    def score(batch: pa.RecordBatch) -> dict[str, object]:
        return {"customer": batch["customer"], "score": pc.divide(batch["amount"], 2.0)}

    rows = pa.record_batch({"customer": ["ann", "bob"], "amount": [50, 150]})
    orders = hr.read.batches([rows], name="orders")
    scored = orders.filter(pc.field("amount") > 100).map_batches(score, schema=schema, name="score")
    totals = scored.key_by("customer").aggregate(
        amount=hr.sum("score"), n=hr.count(), name="totals"
    )
    job = hr.Job(
        "orders",
        totals.write.collect(name="out"),
        parallelism=2,
        max_parallelism=128,
        checkpoints=hr.Checkpoints("file:///data/ckpt", interval="1s", mode="unaligned"),
    )
    assert [task.name for task in job.plan().tasks] == [
        "orders -> filter-1 -> score",
        "totals -> out",
    ]

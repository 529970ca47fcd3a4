"""The public API is this list. Whoever changes it changes a promise, and the changelog."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

PUBLIC = [
    "Aggregation",
    "Checkpoints",
    "HeadraceError",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobResult",
    "KeyedStream",
    "Network",
    "Restart",
    "Sink",
    "SinkHandle",
    "Source",
    "StatefulProcessor",
    "StorageUnreachable",
    "Stream",
    "UserCodeError",
    "UserError",
    "Workers",
    "count",
    "from_source",
    "list_state",
    "map_state",
    "max",
    "mean",
    "min",
    "read",
    "sum",
    "value_state",
]

#: Sub-packages become attributes of the module as they are imported; `annotations` is the future import.
NOT_OURS = {"annotations"}


def test_the_public_names_are_these() -> None:
    found = [
        name
        for name, value in vars(hr).items()
        if not name.startswith("_")
        and name not in NOT_OURS
        and not (isinstance(value, ModuleType) and value.__name__ == f"headrace.{name}")
    ]
    assert sorted(found) == PUBLIC


def test_every_public_name_is_documented() -> None:
    assert [name for name in PUBLIC if not getattr(hr, name).__doc__] == []


def test_importing_headrace_does_not_wait_for_spark_or_rocksdb() -> None:
    code = "import sys, headrace; print({'pyspark', 'rocksdict', 'fsspec'} & set(sys.modules))"
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

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
    "CommitLost",
    "HeadraceDataSource",
    "HeadraceError",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobResult",
    "KeyedStream",
    "Network",
    "Polled",
    "Region",
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


#: Libraries that only their users wait for; pandas alone takes longer than all else.
LATE = (
    "asyncio",
    "fsspec",
    "pandas",
    "pyarrow.acero",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyspark",
    "rocksdict",
)


def _late_modules_of(code: str) -> list[str]:
    """Run a program, and name the modules of `LATE` that it has imported."""
    code += f"\nimport sys; print(*(m for m in {LATE} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def test_importing_headrace_does_not_wait_for_what_few_programs_use() -> None:
    every_name = "import headrace as hr\nfor name in set(dir(hr)) - {'HeadraceDataSource'}: "
    assert _late_modules_of(every_name + "getattr(hr, name)") == []


def test_a_job_without_checkpoints_and_expressions_waits_for_neither() -> None:
    code = """
import headrace as hr
numbers = hr.read.sequence(3, name="in").map_batches(lambda batch: batch, name="same")
hr.Job("tiny", numbers.write.blackhole(name="out"), parallelism=1).run("threads")
"""
    # Functions are shipped by pyspark's copy of cloudpickle.
    assert _late_modules_of(code) == ["pyspark"]


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

"""The public API is this list. Whoever changes it changes a promise, and the changelog."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace import testing

PUBLIC = [
    "Aggregation",
    "Autoscale",
    "BroadcastProcessor",
    "Checkpoints",
    "CoProcessor",
    "CommitLost",
    "CustomAggregate",
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
    "collect_list",
    "connectors",
    "count",
    "count_distinct",
    "custom",
    "first",
    "from_source",
    "last",
    "list_state",
    "map_state",
    "max",
    "mean",
    "min",
    "quantile",
    "read",
    "session",
    "sliding",
    "sum",
    "testing",
    "tumbling",
    "value_state",
]


#: Of `headrace.connectors`.
CONNECTORS = [
    "CommitLost",
    "Delivery",
    "GoesBack",
    "HearsCheckpoints",
    "OperatorContext",
    "OwnsOutput",
    "Planned",
    "Polled",
    "ReadsSplits",
    "RestoredState",
    "Sink",
    "SinkCommitter",
    "SinkWriter",
    "Source",
    "SourceReader",
    "SourceStatus",
    "Split",
    "SplitPlanner",
    "SplitReader",
    "SplitSource",
    "StateKind",
    "StateSnapshot",
    "TakesEventTime",
    "Transaction",
    "by_run",
]


#: Of `headrace.testing`.
TESTING = [
    "Harness",
    "HarnessSnapshot",
    "NotConforming",
    "Simulated",
    "SimulationFailed",
    "SimulationReport",
    "check_sink",
    "check_source",
    "check_split_source",
    "simulate",
]


def test_the_public_names_are_these() -> None:
    assert dir(hr) == PUBLIC
    assert [name for name in PUBLIC if not hasattr(hr, name)] == []
    assert dir(hr.connectors) == CONNECTORS
    assert [name for name in CONNECTORS if not hasattr(hr.connectors, name)] == []


def test_the_test_kit_has_these_names() -> None:
    public = [name for name in dir(testing) if name[0] != "_" and name != "annotations"]
    assert public == TESTING
    assert [name for name in public if not getattr(testing, name).__doc__] == []


def _seen_by_type_checkers(module: ModuleType) -> dict[str, str]:
    assert module.__file__ is not None, "it is a file"
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: f".{statement.module or ''}"
        for statement in checked.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    seen = _seen_by_type_checkers(hr)
    assert (seen["read"], seen["connectors"], seen["testing"]) == (".engine.api", ".", ".")
    homes = {"read": ".engine.api.read", "connectors": ".connectors", "testing": ".testing"}
    assert seen | homes == hr._HOMES
    assert _seen_by_type_checkers(hr.connectors) == hr.connectors._HOMES


def test_every_public_name_is_documented() -> None:
    assert [name for name in PUBLIC if not getattr(hr, name).__doc__] == []
    documented = set(CONNECTORS) - {"Delivery"}  # an alias has no docstring
    assert [name for name in documented if not getattr(hr.connectors, name).__doc__] == []


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
    every_name = "import headrace as hr\nfor name in dir(hr.connectors): "
    assert _late_modules_of(every_name + "getattr(hr.connectors, name)") == []


def test_a_job_without_checkpoints_and_expressions_waits_for_neither() -> None:
    code = """
import headrace as hr
numbers = hr.read.sequence(3, name="in").map_batches(lambda batch: batch, name="same")
hr.Job("tiny", numbers.write.blackhole(name="out"), parallelism=1).run("threads")
"""
    assert _late_modules_of(code) == []


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


def test_importing_headrace_alone_imports_no_library() -> None:
    """A bare import takes a few milliseconds; Arrow and NumPy come with the first name."""
    code = (
        "import sys; before = set(sys.modules); import headrace;"
        " print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - sys.stdlib_module_names == {"headrace"}

"""Every kind of state and every kind of edge, read back from a checkpoint: by Spark, and by
`headrace checkpoints show`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.channels.partitioners.hash import Hash
from headrace.engine.cli.contents import show_contents
from headrace.engine.inspection.contents import in_flight_on
from headrace.engine.inspection.directory import open_checkpoint
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.sizes import held_on

from .every_state import KEYS, checkpointed, every_state

# One process, which takes the checkpoints once.
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

Taken = tuple[Path, CheckpointMetadata]


@pytest.fixture(scope="module", params=["heap", "rocksdb"])
def taken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    """A checkpoint of every state, and where it is."""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, checkpointed(every_state(folder, request.param))


def states_of(metadata: CheckpointMetadata) -> list[tuple[str, str]]:
    """(operator, state) of all that the checkpoint holds."""
    kept = {(h.operator, h.state) for s in metadata.subtasks for h in s.states}
    databases = [d for s in metadata.subtasks for d in s.databases]
    return sorted(kept | {(d.operator, schema.state) for d in databases for schema in d.schemas})


def read(folder: Path, **options: str) -> Iterator[dict[str, Any]]:
    """What Spark is given, without its processes."""
    source = hr.HeadraceDataSource({"path": str(folder), **options})
    reader = source.reader(source.schema())
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            yield from batch.to_pylist()


HELD = {
    "everything": {"seen", "ids", "by_rest", "recent", "timers", "processing_timers"},
    "ruled": {"rules", "count"},
    "totals": {"aggregate"},
    "tumbled": {"windows"},
    "sessions": {"sessions"},
    "pairs": {"left", "right"},
    "met": {"left", "right"},
    "met-in-sessions": {"left_records", "right_records", "sessions"},
    "numbers": {"strides"},
}


def test_every_state_has_the_columns_and_rows_that_it_holds(taken: Taken) -> None:
    folder, metadata = taken
    found = states_of(metadata)
    assert {(operator, state) for operator, states in HELD.items() for state in states} <= set(
        found
    )
    for operator, state in found:
        rows = list(read(folder, operator=operator, state=state))
        if state in HELD.get(operator, ()):
            assert rows, f"{state} of {operator}"
        assert all("__subtask" in row for row in rows)


def test_every_state_is_shown_without_spark(
    taken: Taken, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, metadata = taken
    for operator, state in states_of(metadata):
        shown = show_contents(str(folder), None, None, operator, state, None, limit=2, as_json=True)
        told = capsys.readouterr()
        rows = [json.loads(line) for line in told.out.splitlines()]
        assert shown == 0
        assert ("more than 2 rows" in told.err) == (
            len(list(read(folder, operator=operator, state=state))) > 2
        )
        assert len(rows) <= 2
        assert rows or state not in HELD.get(operator, ())


def test_state_by_key_has_a_row_a_key(taken: Taken) -> None:
    folder, _ = taken
    for operator, state in (("everything", "seen"), ("totals", "aggregate"), ("ruled", "count")):
        keys = Counter(row["key"] for row in read(folder, operator=operator, state=state))
        assert set(keys.values()) == {1}
        assert keys.keys() <= set(range(KEYS))


def test_every_edge_has_the_records_that_were_in_flight_on_it(taken: Taken) -> None:
    folder, metadata = taken
    for index, edge in enumerate(metadata.edges):
        held = sum(
            buffer.rows
            for s in metadata.subtasks
            for h in s.inflight
            if h.edge == index
            for buffer in h.buffers
        )
        assert len(list(read(folder, edge=edge.key))) == held, edge.key


def test_spark_reads_structs_maps_windows_and_broadcast_state(
    taken: Taken, spark: SparkSession
) -> None:
    folder, _ = taken
    spark.dataSource.register(hr.HeadraceDataSource)
    for operator, state, chosen in (
        ("everything", "by_rest", "by_rest['0']"),
        ("tumbled", "windows", "window_end"),
        ("ruled", "rules", "value.id"),
    ):
        read_by_spark = spark.read.format("headrace").options(
            path=str(folder), operator=operator, state=state
        )
        rows = read_by_spark.load().selectExpr(chosen).collect()
        assert len(rows) == len(list(read(folder, operator=operator, state=state)))
        assert any(row[0] is not None for row in rows)


@pytest.mark.parametrize("parallelism", [2, 3])
def test_what_a_recovery_has_left_to_replay_is_there_once_and_where_it_belongs(
    taken: Taken, tmp_path: Path, parallelism: int
) -> None:
    folder, metadata = taken
    job = every_state(tmp_path, "heap", parallelism=parallelism)
    path = f"{folder}/job/chk-{metadata.checkpoint}"
    left = checkpointed(job, restore=path)
    assert sum(held_on(subtask, "replay").records for subtask in left.subtasks) > 500
    opened = open_checkpoint(str(tmp_path))
    for edge in left.edges:
        if edge.partitioning == "custom" and parallelism != 2:
            with pytest.raises(hr.UserError, match="told apart by custom, which needs the program"):
                list(read(tmp_path, edge=edge.key))
            continue
        rows = list(read(tmp_path, edge=edge.key))
        copies = parallelism if edge.partitioning == "broadcast" else 1
        ids = Counter(row["id"] for row in rows if "id" in row)
        assert max(ids.values(), default=1) <= copies, edge.key
        if edge.partitioning == "hash":
            view = in_flight_on(opened, edge.key)
            route = Hash(tuple(edge.columns), 16).router(parallelism)
            for batch in (b for piece in view.pieces for b in view.read(piece)):
                assert route(batch).tolist() == batch["__consumer"].to_pylist()

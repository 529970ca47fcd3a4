"""Sinks: handles, required names, refused schemas."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import headrace as hr
from headrace.engine.api.read import batches
from headrace.engine.api.write import SinkHandle, Write, proposed_name
from headrace.engine.connectors.memory import BlackholeSink
from headrace.engine.contract.errors import UserError
from headrace.engine.plan.graph import Role


def write() -> Write:
    return batches([pa.record_batch({"id": [1]})], name="rows").write


class Picky(BlackholeSink):
    """A sink for records that have a name."""

    def check(self, schema: pa.Schema) -> None:
        if "name" not in schema.names:
            raise UserError("picky: there is no column 'name'")


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_files_are_written_exactly_once(tmp_path: Path, format: str) -> None:
    handle: SinkHandle = getattr(write(), format)(str(tmp_path / "out"), name="out", parallelism=2)
    assert (handle.name, handle.delivery) == ("out", "exactly-once")
    assert (handle.node.kind, handle.node.role) == (f"write.{format}", Role.SINK)
    assert handle.node.parallelism == 2


def test_memory_and_blackhole_are_sinks() -> None:
    assert write().collect(name="all").name == "all"
    assert write().blackhole(name="none").node.kind == "write.blackhole"


def test_any_sink_is_taken() -> None:
    sink = BlackholeSink()
    handle = write().to(sink, name="out")
    assert handle.sink is sink
    assert handle.node.schema.names == ["id"]


def test_a_sink_may_refuse_the_schema() -> None:
    with pytest.raises(UserError, match="picky: there is no column 'name'"):
        write().to(Picky(), name="out")


def test_a_sink_without_name_is_refused_with_a_proposal(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        write().parquet(f"{tmp_path}/totals/")
    assert str(caught.value) == (
        "write.parquet needs name=, by which its transactions are found again; "
        "for example name='totals'"
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("orders/*.parquet", "orders"),
        ("s3://bucket/2024/orders.csv.gz", "orders"),
        ("out/", "out"),
        ("*.json", "rows"),
        ("", "rows"),
    ],
)
def test_a_name_is_proposed_from_the_path(path: str, name: str) -> None:
    assert proposed_name(path, "rows") == name


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "arrow", "delta"])
def test_options_that_do_not_exist_are_refused(tmp_path: Path, kind: str) -> None:
    numbers = hr.read.sequence(1, name="numbers")
    with pytest.raises(UserError, match="has no option 'partitionBy'; did you mean 'partition_"):
        getattr(numbers.write, kind)(str(tmp_path), partitionBy="key", name="out")
    with pytest.raises(UserError, match="compression='lzma': "):
        getattr(numbers.write, kind)(str(tmp_path), compression="lzma", name="out")


def test_files_in_partitions_are_written_by_a_job(tmp_path: Path) -> None:
    numbers = hr.read.sequence(100, keys=4, name="numbers")
    out = numbers.write.csv(str(tmp_path), partition_by="key", compression="gzip", name="out")
    hr.Job("parted", out).run(runner="threads")
    found = ds.dataset(tmp_path, format="csv", partitioning="hive").to_table()
    assert sorted(found["sequence"].to_pylist()) == list(range(100))
    assert {path.name for path in tmp_path.glob("key=*")} == {f"key={key}" for key in range(4)}

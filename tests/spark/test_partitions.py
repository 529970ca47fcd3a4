"""Python data sources as sources of jobs: partitions planned once, read by many, exactly once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

import headrace as hr
from headrace.engine.connectors.spark.hosted import hosted
from headrace.engine.connectors.spark.partitions import PartitionSource
from headrace.engine.contract.operators import OperatorContext


class Part(InputPartition):
    def __init__(self, first: int, rows: int) -> None:
        self.first, self.rows = first, rows


class CountingReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self.parts, self.rows = int(options["parts"]), int(options["rows"])
        self.plans = Path(options["folder"])

    def partitions(self) -> list[Part]:
        (self.plans / f"plan-{random.random()}").touch()
        return [Part(part * self.rows, self.rows) for part in range(self.parts)]

    def read(self, partition: Part) -> Iterator[tuple[int, float]]:  # type: ignore[override]  # its own
        # Other values whenever it is read again, as many services have.
        yield from ((partition.first + row, random.random()) for row in range(partition.rows))


class CountingStream(DataSourceStreamReader):
    """Ends never; gives two partitions of ten rows between two offsets, up to a limit."""

    def __init__(self, options: Any) -> None:
        self.most = int(options["most"])

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"n": min(start["n"] + 20, self.most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Part]:
        return [Part(first, 10) for first in range(start["n"], end["n"], 10)]

    def read(self, partition: Part) -> Iterator[tuple[int, float]]:  # type: ignore[override]
        return CountingReader.read(self, partition)  # type: ignore[arg-type]


class SimpleStream(SimpleDataSourceStreamReader):
    def __init__(self, options: Any) -> None:
        self.most = int(options["most"])

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int, float]], dict[str, int]]:
        end = min(start["n"] + 7, self.most)
        return iter([(n, 0.5) for n in range(start["n"], end)]), {"n": end}


class ForgettingStream(SimpleStream):
    """Gives nothing that it was told to forget."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.told = Path(options["told"])
        self.fails = options.get("fails")

    def commit(self, end: dict[str, int]) -> None:
        if self.fails and not self.told.exists():
            self.told.touch()
            raise OSError("planted")
        with self.told.open("a") as file:
            file.write(f"{end['n']}\n")

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int, float]], dict[str, int]]:
        told = self.told.read_text().split() if self.told.exists() else []
        assert start["n"] >= max(map(int, told), default=0), "it is forgotten"
        return super().read(start)


class Forgetting(DataSource):
    def schema(self) -> str:
        return "n bigint, noise double"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return ForgettingStream(self.options)


class Counting(DataSource):
    def schema(self) -> str:
        return "n bigint, noise double"

    def reader(self, schema: Any) -> DataSourceReader:
        return CountingReader(self.options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return CountingStream(self.options)


class Simple(DataSource):
    def schema(self) -> str:
        return "n bigint, noise double"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return SimpleStream(self.options)


def job_of(rows: Any, folder: Path, parallelism: int = 2) -> hr.Job:
    return hr.Job(
        "hosted",
        rows.write.parquet(str(folder / "out"), name="out"),
        checkpoints=hr.Checkpoints(str(folder / "ckpt"), interval="20ms"),
        parallelism=parallelism,
    )


def written(folder: Path) -> list[int]:
    files = (folder / "out").glob("part-*")
    return sorted(n for file in files for n in pq.read_table(file)["n"].to_pylist())


def test_a_batch_source_is_planned_once_and_read_by_many(tmp_path: Path) -> None:
    options = {"parts": 50, "rows": 100, "folder": tmp_path}
    rows = hr.read.data_source(Counting, name="rows", options=options)
    assert rows.schema == pa.schema([("n", pa.int64()), ("noise", pa.float64())])
    subtasks = rows.map_batches(_here, schema=pa.schema([("n", pa.int64())]), name="here")
    assert job_of(subtasks, tmp_path).run("threads").outcome == "finished"
    assert written(tmp_path) == list(range(5_000))
    assert len(list(tmp_path.glob("plan-*"))) == 1
    # The readers of both subtasks wrote.
    names = {path.name.split("-")[2] for path in (tmp_path / "out").glob("part-*")}
    assert names == {"0", "1"}


def _here(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["n"])


def test_no_partition_is_cut_by_a_failure(tmp_path: Path) -> None:
    """Rows of an attempt that failed come again with other values: none of the first ones stay."""
    options = {"parts": 200, "rows": 50, "folder": tmp_path}
    rows = hr.read.data_source(Counting, name="rows", options=options)
    failing = rows.map_batches(_failing(tmp_path), schema=rows.schema, name="failing")
    result = job_of(failing, tmp_path).run("threads")
    assert result.restarts == 3
    assert written(tmp_path) == list(range(10_000))


def _failing(folder: Path) -> Any:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        import time

        time.sleep(0.002)
        for at in (2_025, 5_025, 8_025):
            flag = folder / f"failed-{at}"
            if at in batch["n"].to_pylist() and not flag.exists():
                flag.touch()
                raise ValueError(f"planted at {at}")
        return batch

    return fail


@pytest.mark.parametrize("source", [Counting, Simple])
def test_a_stream_goes_on_where_it_stopped(tmp_path: Path, source: Any) -> None:
    def run(most: int, parallelism: int) -> None:
        rows = hr.read.data_source(source, name="rows", options={"most": most}, follow="10ms")
        handle = job_of(rows, tmp_path, parallelism).start("threads")
        while len(written(tmp_path)) < most:
            handle.checkpoint()
        handle.stop()
        handle.wait()

    for most, parallelism in ((400, 2), (900, 3), (1_000, 1)):
        run(most, parallelism)
        assert written(tmp_path) == list(range(most))


@pytest.mark.parametrize("fails", [False, True])
def test_a_simple_stream_hears_what_complete_checkpoints_hold(tmp_path: Path, fails: bool) -> None:
    told = tmp_path / "told"
    for most in (300, 600):
        options = {"most": most, "told": str(told)} | ({"fails": 1} if fails else {})
        rows = hr.read.data_source(Forgetting, name="rows", options=options, follow="10ms")
        handle = job_of(rows, tmp_path).start("threads")
        while not told.exists() or str(most) not in told.read_text().split():
            with suppress(hr.HeadraceError):  # the attempt ends under the request
                handle.checkpoint()
        handle.stop()
        assert (handle.wait().restarts > 0) == (fails and most == 300)
        assert written(tmp_path) == list(range(most))
    offsets = [int(line) for line in told.read_text().split()]
    assert offsets == sorted(set(offsets)), "each once, in order"


def test_a_public_source_is_read_unchanged(tmp_path: Path) -> None:
    sources = pytest.importorskip("pyspark_datasources")
    rows = hr.read.data_source(
        sources.FakeDataSource,
        name="people",
        options={"numRows": 20},
        schema="name string, zipcode string",
    )
    job = hr.Job("fake", rows.write.collect(name="out"), parallelism=2)
    table = job.run("threads").collected["out"]
    assert table.num_rows == 20
    assert all(name and code for name, code in zip(*table.to_pydict().values(), strict=True))


def test_a_public_source_is_read_as_a_stream(tmp_path: Path) -> None:
    rows = hr.read.data_source(
        "pyspark_datasources:FakeDataSource", name="people", options={"numRows": 5}, follow="10ms"
    )
    collected = rows.write.collect(name="out")
    job = hr.Job("fake", collected, checkpoints=str(tmp_path), parallelism=2)
    handle = job.start("threads")
    while collected.sink.table().num_rows < 15:  # type: ignore[attr-defined]  # a collect sink
        handle.checkpoint()
    handle.stop()
    rows_found = handle.wait().collected["out"].num_rows
    assert rows_found >= 15
    assert rows_found % 5 == 0


class Broken(DataSource):
    def schema(self) -> str:
        return "n int"

    def reader(self, schema: Any) -> DataSourceReader:
        return BrokenReader(self.options["how"])


class BrokenReader(DataSourceReader):
    def __init__(self, how: str) -> None:
        self.how = how

    def partitions(self) -> list[InputPartition]:
        if self.how == "plan":
            raise OSError("no such service")
        return [InputPartition(object() if self.how == "partition" else 1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if self.how == "read":
            raise OSError("connection reset")
        yield (1, 2, 3)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("plan", "data source 'Broken' cannot plan partitions: OSError: no such service"),
        ("partition", "a partition of data source 'Broken': field 'value' is a object"),
        ("read", "data source 'Broken' cannot read"),
        ("rows", "data source 'Broken' gave rows that do not fit"),
    ],
)
def test_failures_are_one_sentence(how: str, reason: str) -> None:
    rows = hr.read.data_source(Broken, name="rows", options={"how": how})
    job = hr.Job(
        "broken", rows.write.blackhole(name="out"), restart=hr.Restart(attempts=0), parallelism=1
    )
    with pytest.raises(hr.JobFailed) as caught:
        job.run("threads")
    assert reason in str(caught.value)


def test_a_source_without_the_reader_is_refused() -> None:
    with pytest.raises(hr.UserError, match="has no streamReader; read it without follow"):
        hr.read.data_source(Broken, name="rows", follow="1s")
    with pytest.raises(hr.UserError, match="has no reader; read it with follow='1s'"):
        hr.read.data_source(Simple, name="rows")


class Repeatable(Counting):
    headrace_repeatable = True

    def reader(self, schema: Any) -> DataSourceReader:
        return Sequential(self.options)


class Sequential(CountingReader):
    def read(self, partition: Part) -> Iterator[tuple[int, float]]:  # type: ignore[override]
        yield from ((partition.first + row, 0.5) for row in range(partition.rows))


def test_a_repeatable_source_goes_on_inside_a_partition(tmp_path: Path) -> None:
    options = {"parts": 2, "rows": 5_000, "folder": tmp_path}
    rows = hr.read.data_source(Repeatable, name="rows", options=options)
    failing = rows.map_batches(_failing(tmp_path), schema=rows.schema, name="failing")
    assert job_of(failing, tmp_path).run("threads").restarts >= 1
    assert written(tmp_path) == list(range(10_000))


def test_a_promise_that_does_not_hold_is_told(tmp_path: Path) -> None:
    options = {"parts": 1, "rows": 10, "folder": tmp_path}
    source = PartitionSource(hosted(Repeatable, options, None), None)
    (split,) = source.planner().plan("").splits
    reader = source.reader()
    reader.open(OperatorContext("job", "rows", 0, 1, 128, 1))
    (rest,) = reader.read(split, 7)
    assert rest["n"].to_pylist() == [7, 8, 9]
    with pytest.raises(hr.HeadraceError, match="gave 5 rows fewer than before"):
        list(reader.read(split, 15))


def test_partitions_are_planned_as_plain_data(tmp_path: Path) -> None:
    options = {"parts": 3, "rows": 1, "folder": tmp_path}
    planner = PartitionSource(hosted(Counting, options, None), None).planner()
    planned = planner.plan("")
    assert [json.loads(str(split.payload["partition"])) for split in planned.splits] == [
        {"class": "Part", "fields": {"first": first, "rows": 1}} for first in range(3)
    ]
    assert planner.plan(planned.place).splits == ()

"""Python data sources as sinks: messages committed under dense batch ids, each batch once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

import headrace as hr
from headrace.engine.connectors.spark.data_sink import DataSourceSink
from headrace.engine.connectors.spark.hosted import hosted_sink
from headrace.engine.contract.operators import OperatorContext, Transaction

SCHEMA = pa.schema([("n", pa.int64())])


class Written(WriterCommitMessage):
    def __init__(self, path: str, rows: int) -> None:
        self.path, self.rows = path, rows


class Files(DataSource):
    """Writes numbers into files aside; a commit shows them as BATCH.json, each batch once."""

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return Writer(self.options) if self.options["kind"] == "rows" else ArrowWriter(self.options)


class Writer(DataSourceStreamWriter):
    headrace_idempotent = True

    def __init__(self, options: Any) -> None:
        self.folder = Path(options["folder"])
        self.breaks = options.get("breaks", "")

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        numbers = self.numbers(iterator)
        if self.breaks == "write":
            raise OSError("no room")
        name = f"{context.partitionId()}-{context.taskAttemptId()}-{min(numbers)}"
        (self.folder / name).write_text(json.dumps(numbers))
        return Written(name, len(numbers))

    def numbers(self, iterator: Iterator[Row]) -> list[int]:
        return [row.n for row in iterator]

    def commit(self, messages: list[Any], batchId: int) -> None:
        if self.breaks == f"commit {batchId}" and not (self.folder / "broke").exists():
            (self.folder / "broke").touch()
            raise OSError("reply lost")
        assert all(type(message) is Written for message in messages)
        found = [json.loads((self.folder / message.path).read_text()) for message in messages]
        assert [len(numbers) for numbers in found] == [message.rows for message in messages]
        shown = self.folder / f"{batchId}.json"
        if not shown.exists():
            shown.write_text(json.dumps([n for numbers in found for n in numbers]))


class ArrowWriter(Writer, DataSourceStreamArrowWriter):
    def numbers(self, iterator: Iterator[pa.RecordBatch]) -> list[int]:
        return [n for batch in iterator for n in batch["n"].to_pylist()]


def shown(folder: Path) -> dict[int, list[int]]:
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.parametrize("kind", ["rows", "arrow"])
@pytest.mark.parametrize("breaks", ["", "commit"])
def test_every_record_is_committed_once_under_dense_ids(
    tmp_path: Path, kind: str, breaks: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    rows = hr.read.sequence(9_000, rate=3_000, name="rows").map_batches(
        lambda batch: pa.record_batch({"n": batch["sequence"]}), schema=SCHEMA, name="n"
    )
    options = {"folder": out, "kind": kind, "breaks": breaks}
    sink = rows.write.data_source(Files, name="out", options=options)
    assert sink.delivery == "exactly-once"
    checkpoints = hr.Checkpoints(str(tmp_path / "ckpt"), interval="30ms")
    hr.Job("files", sink, checkpoints=checkpoints, parallelism=2).run("threads")
    batches = shown(out)
    assert sorted(batches) == list(range(len(batches)))
    assert len(batches) > 1
    assert sorted(n for numbers in batches.values() for n in numbers) == list(range(9_000))
    partitions = Counter(path.name.split("-")[0] for path in out.glob("*-*-*"))
    assert set(partitions) == {"0", "1"}


def test_a_writer_promises_nothing_unless_it_says_so(tmp_path: Path) -> None:
    class Careless(Files):
        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
            writer = Writer(self.options)
            writer.headrace_idempotent = False
            return writer

    sink = DataSourceSink(hosted_sink(Careless, {"folder": tmp_path, "kind": "rows"}, SCHEMA))
    assert sink.delivery == "at-least-once"


def message(folder: Path, name: str, number: int, checkpoint: int) -> Transaction:
    (folder / name).write_text(json.dumps([number]))
    text = json.dumps({"class": "Written", "fields": {"path": name, "rows": 1}})
    return Transaction(name, {"message": text}, run="r", checkpoint=checkpoint)


def test_ids_survive_the_driver_and_repeats_change_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def committer(breaks: str = "") -> Any:
        options = {"folder": out, "kind": "rows", "breaks": breaks}
        made = DataSourceSink(hosted_sink(Files, options, SCHEMA)).committer("job", "out")
        made.keep_in(str(tmp_path / "notes"))
        return made

    first, second, third = (message(out, f"0-0-{n}", n, checkpoint=n + 3) for n in range(3))
    committer().commit(3, [first])
    both = committer()
    both.commit(5, [first, second])
    broken = committer("commit 2")
    with pytest.raises(OSError, match="reply lost"):
        broken.commit(5, [third])
    again = committer()
    again.recover(5, [second, third])
    again.commit(3, [first])
    assert shown(out) == {0: [0], 1: [1], 2: [2]}
    fourth = message(out, "0-0-4", 4, checkpoint=9)
    committer().commit(9, [first, third, fourth])
    assert shown(out)[3] == [4]


def test_a_failing_write_fails_with_its_reason(tmp_path: Path) -> None:
    options = {"folder": tmp_path, "kind": "rows", "breaks": "write"}
    sink = DataSourceSink(hosted_sink(Files, options, SCHEMA))
    writer = sink.writer()
    writer.open(OperatorContext("job", "out", 0, 1, 128, 1))
    batch = pa.record_batch({"n": [1]}, schema=SCHEMA)
    with pytest.raises(hr.HeadraceError, match=r"data source 'Files' cannot write: OSError"):
        for _ in range(100):
            writer.write(batch)
        writer.precommit(1)
    writer.close()


def test_a_closed_writer_gives_its_call_up(tmp_path: Path) -> None:
    sink = DataSourceSink(hosted_sink(Files, {"folder": tmp_path, "kind": "rows"}, SCHEMA))
    writer = sink.writer()
    writer.open(OperatorContext("job", "out", 0, 1, 128, 1))
    writer.write(pa.record_batch({"n": [1]}, schema=SCHEMA))
    call = writer._call
    assert call is not None
    writer.close()
    call._thread.join(10)
    assert not call._thread.is_alive()
    assert list(tmp_path.iterdir()) == []


def test_a_source_without_a_writer_is_refused() -> None:
    rows = hr.read.sequence(1, name="rows")
    with pytest.raises(hr.UserError, match="data source 'DataSource' has no streamWriter"):
        rows.write.data_source(DataSource, name="out")

"""Staged records: files of bounded size, and a manifest that appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext

from headrace.engine.connectors.filesystem import Location, locate
from headrace.engine.connectors.spark.staging import (
    Manifest,
    first_line,
    remove_staged,
    staged,
    write_files,
)
from headrace.engine.contract.errors import StorageUnreachable

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


class Task:
    def partitionId(self) -> int:
        return 3

    def taskAttemptId(self) -> int:
        return 17


def batch(first: int, rows: int) -> pa.RecordBatch:
    numbers = pa.array(range(first, first + rows))
    # In the session's time zone, as Spark hands it over.
    return pa.record_batch({"n": numbers, "at": numbers.cast(pa.timestamp("us", "Europe/Paris"))})


def test_records_are_cut_into_files_of_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", staticmethod(Task))
    batches = [batch(n * 1_000, 1_000) for n in range(10)] + [batch(0, 0)]
    location = locate(str(tmp_path), {})
    found = list(write_files(location, str(tmp_path), SCHEMA, batches, file_bytes=40_000))
    told = [row for result in found for row in result.to_pylist()]
    assert len(told) == 4
    assert [Path(row["path"]).name for row in told][:2] == [
        "000003-17-0000.arrow",
        "000003-17-0001.arrow",
    ]
    tables = [pa.ipc.open_file(row["path"]).read_all() for row in told]
    assert [table.num_rows for table in tables] == [row["rows"] for row in told]
    assert [Path(row["path"]).stat().st_size for row in told] == [row["bytes"] for row in told]
    assert all(table.schema == SCHEMA for table in tables)
    assert pa.concat_tables(tables)["n"].to_pylist() == list(range(10_000))


def test_a_partition_without_records_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", staticmethod(Task))
    assert list(write_files(locate(str(tmp_path), {}), str(tmp_path), SCHEMA, [batch(0, 0)])) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"files": {}}', b"[]"])
def test_a_damaged_manifest_counts_as_none(tmp_path: Path, content: bytes) -> None:
    location = locate(str(tmp_path), {})
    assert staged(location, "m.json") is None
    (tmp_path / "m.json").write_bytes(content)
    assert staged(location, "m.json") is None


def test_a_manifest_names_its_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"fingerprint": "f", "files": {"b": 2, "a": 1}, "rows": 3}')
    found = staged(locate(str(tmp_path), {}), "m.json")
    assert found == Manifest("f", {"a": 1, "b": 2}, 3)
    assert [file.path for file in found.listing] == ["a", "b"]


def test_what_is_removed_is_gone_and_may_be_removed_again(tmp_path: Path) -> None:
    (tmp_path / "staged" / "below").mkdir(parents=True)
    location = locate(str(tmp_path / "staged"), {})
    for _ in range(2):
        remove_staged(location)
        assert list(tmp_path.iterdir()) == []


def test_storage_that_refuses_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "m.json").mkdir()
    with pytest.raises(StorageUnreachable, match=r"^cannot stage in .*: Is a directory$"):
        staged(Location(locate(str(tmp_path), {}).fs, str(tmp_path)), "m.json")


def test_the_reason_is_found_on_sparks_pages() -> None:
    page = (
        "Job aborted: Task 0 failed\n  File x\nTraceback (most recent call last):\n"
        '  File "a.py", line 1\nValueError: planted\n\n\tat org.apache.spark'
    )
    assert first_line(Exception(page)) == "ValueError: planted"
    assert first_line(Exception("\n[DIVIDE_BY_ZERO] no\nmore")) == "[DIVIDE_BY_ZERO] no"
    assert first_line(Exception()) == "Exception"

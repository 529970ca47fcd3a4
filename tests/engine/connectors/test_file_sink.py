"""Files appear whole, once, with their checkpoint, whatever step a crash comes at.

Crash points by their names in the fault catalogue: 18 pre-committed, 19 some committed, 20
committed, not recorded.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from headrace.engine.connectors import durable, rolled_files
from headrace.engine.connectors.file_sink import FileCommitter, FileSink
from headrace.engine.connectors.files import FileSource
from headrace.engine.connectors.filesystem import locate
from headrace.engine.connectors.partitions import partitions_by
from headrace.engine.connectors.writers import record_format
from headrace.engine.contract.errors import CommitLost, HeadraceError, UserError
from headrace.engine.contract.operators import OperatorContext, Transaction, run_of

Make = Callable[..., Any]


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def visible(folder: Path) -> list[int]:
    """What a reader of the output sees."""
    return sorted(
        n for part in sorted(folder.glob("part-*")) for n in pq.read_table(part)["n"].to_pylist()
    )


def temporary(folder: Path) -> list[Path]:
    return sorted(folder.glob("_headrace/**/*.tmp"))


def precommitted(
    sink: FileSink, at: Make, *numbers: int, subtask: int = 0
) -> Sequence[Transaction]:
    writer = sink.writer()
    writer.open(at(subtask, 2))
    writer.write(batch(*numbers))
    transactions: Sequence[Transaction] = writer.precommit(7)
    writer.close()
    return transactions


class Crash(Exception):
    """The process ends here."""


def crash_in(monkeypatch: pytest.MonkeyPatch, name: str, *, after_calls: int = 0) -> None:
    """Let the call of `durable.<name>` after `after_calls` good ones not happen, once."""
    real = getattr(durable, name)
    calls = [0]

    def crashing(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == after_calls + 1:
            raise Crash(name)
        return real(*arguments)

    monkeypatch.setattr(durable, name, crashing)


def test_records_appear_at_commit_and_not_before(tmp_path: Path, at: Make) -> None:
    sink = FileSink(str(tmp_path))
    writer, committer = sink.writer(), sink.committer("job", "operator")
    writer.open(at(1, 2, epoch=3))
    writer.write(batch(1, 2))
    writer.write(batch(3))
    transactions = writer.precommit(7)
    assert visible(tmp_path) == []
    committer.commit(7, transactions)
    assert visible(tmp_path) == [1, 2, 3]
    assert temporary(tmp_path) == []
    assert [part.name for part in tmp_path.glob("part-operator-1-7-3-*.parquet")]
    assert not writer.precommit(8)
    writer.write(batch(4))
    committer.commit(1, writer.precommit(9))
    assert visible(tmp_path) == [1, 2, 3, 4]


def test_transaction_ids_hold_who_and_when_and_never_repeat(tmp_path: Path, at: Make) -> None:
    sink = FileSink(str(tmp_path))
    ids = [precommitted(sink, at, 1)[0].id for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(id.startswith("job/operator/0-1-1-") for id in ids)


def test_committing_again_changes_nothing(tmp_path: Path, at: Make) -> None:
    sink = FileSink(str(tmp_path))
    transactions = [*precommitted(sink, at, 1), *precommitted(sink, at, 2, subtask=1)]
    for _ in range(2):
        sink.committer("job", "operator").commit(7, transactions)
        sink.committer("job", "operator").recover(7, transactions)
    assert visible(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("step", "after_calls"),
    [("size_bytes", 0), ("move", 0), ("size_bytes", 1), ("move", 1), ("sync_folder", 0)],
)
def test_a_commit_that_crashed_at_any_step_is_completed_by_recovery(
    tmp_path: Path, at: Make, monkeypatch: pytest.MonkeyPatch, step: str, after_calls: int
) -> None:
    sink = FileSink(str(tmp_path))
    transactions = [*precommitted(sink, at, 1), *precommitted(sink, at, 2, subtask=1)]
    precommitted(sink, at, 99)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_in(patch, step, after_calls=after_calls)
        sink.committer("job", "operator").commit(7, transactions)
    sink.committer("job", "operator").recover(7, transactions)
    assert visible(tmp_path) == [1, 2]
    assert temporary(tmp_path) == []


@pytest.mark.parametrize("step", ["move", "sync_folder", "names", "remove"])
def test_a_recovery_that_crashed_at_any_step_is_completed_by_the_next(
    tmp_path: Path, at: Make, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    sink = FileSink(str(tmp_path))
    transactions = precommitted(sink, at, 1)
    precommitted(sink, at, 99)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_in(patch, step)
        sink.committer("job", "operator").recover(7, transactions)
    sink.committer("job", "operator").recover(7, transactions)
    assert visible(tmp_path) == [1]
    assert temporary(tmp_path) == []


@pytest.mark.parametrize("step", ["close_durably", "create"])
def test_a_writer_that_crashed_leaves_nothing_that_recovery_keeps(
    tmp_path: Path, at: Make, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    sink = FileSink(str(tmp_path))
    writer = sink.writer()
    writer.open(at(0, 1))
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_in(patch, step)
        writer.write(batch(1))
        writer.precommit(1)
    writer.close()
    sink.committer("job", "operator").recover(0, [])
    assert visible(tmp_path) == []
    assert temporary(tmp_path) == []


def test_recovery_deletes_no_file_of_a_newer_epoch(tmp_path: Path, at: Make) -> None:
    """A driver that was frozen amid its recovery wakes beside its successor."""
    sink = FileSink(str(tmp_path))
    for epoch in (1, 2):
        writer = sink.writer()
        writer.open(replace(at(0, 1), epoch=epoch))
        writer.write(batch(epoch))
        writer.precommit(1)
    assert len(temporary(tmp_path)) == 2
    sink.committer("job", "operator").recover(0, [], epoch=1)
    (left,) = temporary(tmp_path)
    assert left.name.startswith("0-2-1-")
    sink.committer("job", "operator").recover(0, [], epoch=2)
    assert temporary(tmp_path) == []


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "arrow"])
def test_a_writer_that_is_closed_early_takes_its_open_file_along(
    tmp_path: Path, at: Make, format: Any
) -> None:
    writer = FileSink(str(tmp_path), record_format(format)).writer()
    writer.open(at(0, 1))
    writer.write(batch(1))
    assert len(temporary(tmp_path)) == 1
    writer.close()
    writer.close()
    assert temporary(tmp_path) == []


def test_the_folder_is_synced_even_if_all_was_renamed_before_the_crash(
    tmp_path: Path, at: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FileSink(str(tmp_path))
    transactions = precommitted(sink, at, 1)
    sink.committer("job", "operator").commit(7, transactions)
    synced: list[str] = []
    monkeypatch.setattr(durable, "sync_folder", lambda location, folder: synced.append(folder))
    sink.committer("job", "operator").recover(7, transactions)
    assert synced == [str(tmp_path)]


def test_precommit_syncs_data_and_name(
    tmp_path: Path, at: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def recording(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    precommitted(FileSink(str(tmp_path / "out")), at, 1)
    work = tmp_path / "out" / "_headrace" / "job" / "operator"
    assert synced[:4] == [str(path) for path in (tmp_path, *reversed(work.parents[:3]))]
    assert synced[4:] == [str(temporary(tmp_path / "out")[0]), str(work)]


def test_lost_and_damaged_files_are_loud(tmp_path: Path, at: Make) -> None:
    sink = FileSink(str(tmp_path))
    committer = sink.committer("job", "operator")
    transactions = precommitted(sink, at, 1)
    [path] = temporary(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CommitLost, match=f"has {len(whole) - 1} bytes instead of {len(whole)}"):
        committer.commit(7, transactions)
    path.unlink()
    with pytest.raises(CommitLost, match="neither it nor"):
        committer.commit(7, transactions)
    (tmp_path / str(transactions[0].payload["file"])).write_bytes(b"other")
    with pytest.raises(CommitLost, match="it has 5 bytes instead of"):
        committer.recover(7, transactions)


def test_recovery_deletes_only_temporary_files_of_its_own_job_and_sink(
    tmp_path: Path, at: Make
) -> None:
    sink = FileSink(str(tmp_path))
    others = [
        tmp_path / name
        for name in (
            "users.parquet",
            "part-operator-0-1-1.parquet",
            "x.tmp",
            "_headrace/job/operator-2/0-1-1.tmp",
            "_headrace/other/operator/0-1-1.tmp",
            "_headrace/job/operator/notes",
        )
    ]
    precommitted(sink, at, 1)
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("kept")
    sink.committer("job", "operator").recover(0, [])
    assert [path.read_text() for path in others] == ["kept"] * len(others)
    assert not list(tmp_path.glob("_headrace/job/operator/*.tmp"))


@pytest.mark.parametrize(
    ("id", "file"),
    [
        ("job/operator/../x", "part-1"),
        ("job/operator/.x", "part-1"),
        ("/job/operator/x", "part-1"),
        ("job/operator/x", "../part-1"),
        ("job/operator/x", "users.parquet"),
        ("job/operator/", "part-1"),
    ],
)
def test_a_crafted_transaction_does_not_lead_out_of_the_folder(
    tmp_path: Path, id: str, file: str
) -> None:
    committer = FileSink(str(tmp_path)).committer("job", "operator")
    with pytest.raises(CommitLost, match="is not one of this sink"):
        committer.commit(1, [Transaction(id, {"file": file, "bytes": 0})])


def test_names_of_jobs_and_operators_cannot_lead_out_of_the_folder(
    tmp_path: Path, at: Make
) -> None:
    sink = FileSink(str(tmp_path / "out"))
    writer = sink.writer()
    context = at(0, 1)
    writer.open(type(context)("../..", "a/../b", 0, 1, 128, 1))
    writer.write(batch(1))
    sink.committer("../..", "a/../b").commit(1, writer.precommit(1))
    assert visible(tmp_path / "out") == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_json_files_hold_an_object_a_line(tmp_path: Path, at: Make) -> None:
    sink = FileSink(str(tmp_path), record_format("json"))
    writer = sink.writer()
    writer.open(at(0, 1))
    times = pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns"))
    writer.write(pa.record_batch({"t": times, "x": [float("nan"), 1.5], "b": [b"\xff", b""]}))
    sink.committer("job", "operator").commit(1, writer.precommit(1))
    [part] = tmp_path.glob("part-*.json")
    rows = [json.loads(line) for line in part.read_text().splitlines()]
    assert rows[0] == {"t": "2023-11-14T22:13:20.123456789", "x": None, "b": "/w=="}
    assert rows[1] == {"t": None, "x": 1.5, "b": ""}


def test_small_batches_are_gathered_into_large_row_groups(tmp_path: Path, at: Make) -> None:
    sink = FileSink(str(tmp_path), record_format("parquet", "zstd"))
    writer = sink.writer()
    writer.open(at(0, 1))
    for first in range(0, 140_000, 1000):
        writer.write(batch(*range(first, first + 1000)))
    sink.committer("job", "operator").commit(1, writer.precommit(1))
    [part] = tmp_path.glob("part-*")
    assert pq.ParquetFile(part).metadata.num_row_groups == 2
    assert visible(tmp_path) == list(range(140_000))


def test_other_file_systems_commit_by_moving(at: Make) -> None:
    sink = FileSink("memory://sink-out")
    sink.check(batch(1).schema)
    transactions = precommitted(sink, at, 1, 2)
    precommitted(sink, at, 99)
    committer = sink.committer("job", "operator")
    committer.recover(7, transactions)
    committer.recover(7, transactions)
    files = fsspec.filesystem("memory").find("/sink-out")
    names = [path.rsplit("/", 1)[1][:15] for path in files]
    assert names == ["-0.committed", "part-operator-0"]


def test_the_output_is_read_by_the_file_source_without_what_is_in_work(
    tmp_path: Path, at: Make, drive: Make
) -> None:
    sink = FileSink(str(tmp_path))
    sink.committer("job", "operator").commit(1, precommitted(sink, at, 1, 2))
    precommitted(sink, at, 99)
    run = drive(FileSource(str(tmp_path), "parquet"))
    run.rest(2)
    assert run.column("n") == [1, 2]


def test_check_makes_the_folder_and_leaves_no_trace(tmp_path: Path) -> None:
    FileSink(str(tmp_path / "a" / "b")).check(batch(1).schema)
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "_headrace"]


def test_mistakes_are_told_when_the_pipeline_is_built(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    schema = batch(1).schema
    with pytest.raises(UserError, match=r"cannot write to the folder .*file"):
        FileSink(str(tmp_path / "file")).check(schema)
    with pytest.raises(UserError, match="cannot write to the folder /proc/none"):
        FileSink("/proc/none").check(schema)
    with pytest.raises(UserError, match="cannot use 'nowhere://x'"):
        FileSink("nowhere://x")
    with pytest.raises(UserError, match="cannot write these records as parquet"):
        union = pa.union([pa.field("a", pa.int8())], mode="sparse")
        FileSink(str(tmp_path / "c")).check(pa.schema([("u", union)]))


def test_a_users_own_local_file_system_is_called() -> None:
    class Own(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = "own"

    fsspec.register_implementation("own", Own, clobber=True)
    assert not locate("own:///x", {}).is_local
    assert locate("/x", {}).is_local


def owned(sink: FileSink, at: Make, owner: str, *values: int) -> Sequence[Transaction]:
    """What a writer of this owner pre-commits, its committer being the owner's as well."""
    writer = sink.writer()
    writer.open(replace(at(0, 1), owner=owner))
    writer.write(batch(*values))
    return writer.precommit(1)


def committer_of(sink: FileSink, owner: str) -> FileCommitter:
    committer = sink.committer("job", "operator")
    committer.own(owner, anew=True)
    return committer


def test_a_recovery_leaves_files_of_another_owner_alone(tmp_path: Path, at: Make) -> None:
    """The same job name with two checkpoint directories writes into one folder."""
    sink = FileSink(str(tmp_path))
    first, second = committer_of(sink, "aa"), committer_of(sink, "bb")
    mine, theirs = owned(sink, at, "aa", 1), owned(sink, at, "bb", 2)
    first.recover(0, [])
    assert len(temporary(tmp_path)) == 1
    second.commit(1, theirs)
    assert visible(tmp_path) == [2]
    with pytest.raises(CommitLost, match="if something has moved it, move it back"):
        first.commit(1, mine)


def test_output_of_the_job_is_known_and_can_be_removed(tmp_path: Path, at: Make) -> None:
    sink = FileSink(str(tmp_path))
    (tmp_path / "part-operator-0-1-1-cc11-1.parquet").write_text("a user's own")
    committer = committer_of(sink, "aa")
    assert committer.output() == ""
    committer.commit(1, owned(sink, at, "aa", 1))
    owned(sink, at, "aa", 2)
    other = sink.committer("other", "operator")
    assert other.output() == "", "another job's output is in nobody's way"
    later = committer_of(sink, "bb")
    assert later.output() == str(tmp_path)
    later.remove_output()
    assert (later.output(), temporary(tmp_path)) == ("", [])
    assert [path.name for path in tmp_path.glob("part-*")] == ["part-operator-0-1-1-cc11-1.parquet"]


def test_long_names_of_jobs_and_operators_make_folders_and_files(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path))
    for name in ("ü" * 300, "ü" * 300 + "2"):
        writer = sink.writer()
        writer.open(OperatorContext(name, name, 0, 1, 128, 1))
        writer.write(batch(len(name)))
        transactions = writer.precommit(1)
        writer.close()
        sink.committer(name, name).recover(7, transactions)
    assert visible(tmp_path) == [300, 301]
    assert len(list((tmp_path / "_headrace").iterdir())) == 2


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "arrow"])
def test_a_full_disk_is_one_sentence_with_sink_and_place(
    tmp_path: Path, at: Make, monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    full = Path("/dev/full")
    monkeypatch.setattr(durable, "create", lambda location, path: full.open("wb"))
    writer = FileSink(str(tmp_path), record_format(format)).writer()
    writer.open(at(0, 1))
    with pytest.raises(HeadraceError) as told:
        writer.write(batch(1))
        writer.precommit(1)
    assert str(told.value) == f"sink 'operator' cannot write to {tmp_path}: No space left on device"
    writer.close()


def days(*numbers: int) -> pa.RecordBatch:
    """A record a number; its day is the number's last digit."""
    return pa.record_batch(
        {"n": pa.array(numbers, pa.int64()), "day": [f"2026-11-0{n % 10}" for n in numbers]}
    )


def test_partitions_are_folders_that_appear_at_commit(tmp_path: Path, at: Make) -> None:
    sink = FileSink(str(tmp_path), partitions=partitions_by("day"))
    sink.check(days(1).schema)
    writer, committer = sink.writer(), sink.committer("job", "operator")
    writer.open(at(0, 1))
    writer.write(days(11, 2, 1, 12))
    writer.write(days(3))
    transactions = writer.precommit(1)
    assert not list(tmp_path.glob("day=*"))
    for _ in range(2):
        committer.commit(1, transactions)
    assert sorted(path.name for path in tmp_path.glob("day=*")) == [
        "day=2026-11-01",
        "day=2026-11-02",
        "day=2026-11-03",
    ]
    [first] = tmp_path.glob("day=2026-11-01/part-operator-0-1-*.parquet")
    assert pq.ParquetFile(first).read().to_pydict() == {"n": [11, 1]}
    read = ds.dataset(tmp_path, partitioning="hive").to_table().sort_by("n").to_pydict()
    assert read == days(1, 2, 3, 11, 12).to_pydict()


def test_output_in_partitions_is_known_and_can_be_removed(tmp_path: Path, at: Make) -> None:
    sink = FileSink(str(tmp_path), partitions=partitions_by(["day"]))
    committer = committer_of(sink, "aa")
    writer = sink.writer()
    writer.open(replace(at(0, 1), owner="aa"))
    writer.write(days(1, 2))
    committer.commit(1, writer.precommit(1))
    assert committer.output() == str(tmp_path)
    committer.remove_output()
    assert (committer.output(), list(tmp_path.glob("day=*/*"))) == ("", [])


def test_a_file_rolls_at_its_size_and_at_each_checkpoint(tmp_path: Path, at: Make) -> None:
    sink = FileSink(str(tmp_path), roll_bytes=20_000)
    writer = sink.writer()
    writer.open(at(0, 1))
    rng = random.Random(1)
    numbers = [rng.getrandbits(62) for _ in range(10_000)]
    for first in range(0, 10_000, 500):
        writer.write(batch(*numbers[first : first + 500]))
    transactions = writer.precommit(1)
    sizes = [int(t.payload["bytes"]) for t in transactions]
    assert len(transactions) >= 3, sizes
    assert all(size <= 45_000 for size in sizes), sizes
    assert sum(int(t.payload["rows"]) for t in transactions) == 10_000
    sink.committer("job", "operator").commit(1, transactions)
    assert visible(tmp_path) == sorted(numbers)


def test_files_that_rolled_are_deleted_with_their_writer(tmp_path: Path, at: Make) -> None:
    writer = FileSink(str(tmp_path), roll_bytes=1).writer()
    writer.open(at(0, 1))
    writer.write(batch(1))
    writer.write(batch(2))
    assert len(temporary(tmp_path)) == 2
    writer.close()
    assert temporary(tmp_path) == []


def test_many_partitions_keep_a_bounded_number_of_files_open(
    tmp_path: Path, at: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolled_files, "_FILES_OPEN_MAX", 2)
    opened = [0]
    most = [0]
    real_create, real_close = durable.create, durable.close_durably

    def create(*arguments: Any) -> Any:
        opened[0] += 1
        most[0] = max(most[0], opened[0])
        return real_create(*arguments)

    def close_durably(*arguments: Any) -> None:
        opened[0] -= 1
        real_close(*arguments)

    monkeypatch.setattr(durable, "create", create)
    monkeypatch.setattr(durable, "close_durably", close_durably)
    sink = FileSink(str(tmp_path), partitions=partitions_by("day"))
    writer = sink.writer()
    writer.open(at(0, 1))
    for first in range(0, 40, 10):
        writer.write(days(*range(first, first + 10)))
    sink.committer("job", "operator").commit(1, writer.precommit(1))
    assert most[0] == 2
    assert sorted(ds.dataset(tmp_path, partitioning="hive").to_table()["n"].to_pylist()) == list(
        range(40)
    )


READERS: dict[str, str] = {"parquet": "parquet", "csv": "csv", "arrow": "ipc", "json": "json"}


@pytest.mark.parametrize(
    ("format", "compression"),
    [
        *(("parquet", c) for c in ("snappy", "zstd", "gzip", "lz4", "brotli", "none")),
        *(("csv", c) for c in ("none", "gzip", "zstd")),
        *(("json", c) for c in ("none", "gzip", "zstd")),
        *(("arrow", c) for c in ("none", "lz4", "zstd")),
    ],
)
def test_every_format_and_compression_is_read_back_by_pyarrow(
    tmp_path: Path, at: Make, format: Any, compression: str
) -> None:
    made = record_format(format, compression)
    sink = FileSink(str(tmp_path), made, partitions=partitions_by("day"))
    sink.check(days(1).schema)
    writer = sink.writer()
    writer.open(at(0, 1))
    for n in range(30):
        writer.write(days(n, n + 100))
    sink.committer("job", "operator").commit(1, writer.precommit(1))
    found = list(tmp_path.rglob("part-*"))
    assert all(path.name.endswith(made.suffix) for path in found)
    if compression == "zstd" and format in ("csv", "json"):
        # Spark, DuckDB and polars know the ending; pyarrow's datasets have to be helped.
        for path in found:
            plain = pa.input_stream(path, compression="zstd").read()
            path.with_suffix("").write_bytes(plain)
            path.unlink()
    read = ds.dataset(tmp_path, format=READERS[format], partitioning="hive").to_table()
    assert sorted(read["n"].to_pylist()) == [*range(30), *range(100, 130)]
    assert set(read["day"].to_pylist()) == {f"2026-11-0{n}" for n in range(10)}


def test_a_manifest_tells_what_is_committed_where_nothing_can_be_renamed(at: Make) -> None:
    """A repeated commit does not miss files that somebody has taken away meanwhile."""
    sink = FileSink("memory://sink-manifest")
    sink.check(batch(1).schema)
    fs = fsspec.filesystem("memory")
    committer = committer_of(sink, "aa")
    one, other = (run_of("job", "operator", owner) for owner in ("aa", "bb"))
    first = [replace(t, run=one, checkpoint=3) for t in owned(sink, at, "aa", 1)]
    second = [replace(t, run=one, checkpoint=5) for t in owned(sink, at, "aa", 2)]
    committer.commit(3, first)
    committer.commit(5, second)
    shown = [path for path in fs.find("/sink-manifest") if "/part-" in path]
    assert len(shown) == 2
    fs.rm(shown)
    later = committer_of(sink, "aa")
    later.recover(5, [*first, *second])
    left = sorted(path.rsplit("/", 1)[1] for path in fs.find("/sink-manifest"))
    assert left == [f"{one}-5.committed", "aa.owner"]
    fresh = [replace(t, run=other, checkpoint=1) for t in owned(sink, at, "bb", 7)]
    later = committer_of(sink, "bb")
    later.commit(1, fresh)
    assert len([path for path in fs.find("/sink-manifest") if "/part-" in path]) == 1
    later.remove_output()
    assert not [path for path in fs.find("/sink-manifest") if not path.endswith(".owner")]


def test_numbers_of_parquet_files_are_encoded_by_what_they_hold(tmp_path: Path, at: Make) -> None:
    """Differences where most numbers differ and not by much; a dictionary otherwise, within lists
    and structs, too.
    """
    rng = random.Random(1)
    count = 3000
    times = [1_700_000_000_000_000 + 1000 * n for n in range(count)]
    differing = {
        "sequence": pa.array(range(count), pa.uint64()),
        "negative": pa.array([rng.randrange(-(2**40), 2**40) for _ in range(count)]),
        "time": pa.array(times, pa.timestamp("us", "UTC")),
        "day": pa.array(range(count), pa.int32()).cast(pa.date32()),
        "a.b": pa.array([None if n % 5 == 0 else n for n in range(count)], pa.int16()),
    }
    others = {
        "few": pa.array([n % 5 for n in range(count)]),
        "hash": pa.array([rng.randrange(-(2**63), 2**63) for _ in range(count)]),
        "nothing": pa.nulls(count, pa.int64()),
        "list": pa.array([[n, n] for n in range(count)]),
        "struct": pa.array([{"text": "x"}] * count),
    }
    written = pa.table(differing | others)
    sink = FileSink(str(tmp_path))
    writer = sink.writer()
    writer.open(at(0, 1))
    writer.write(written.to_batches()[0])
    sink.committer("job", "operator").commit(1, writer.precommit(1))
    [path] = tmp_path.glob("part-*")
    group = pq.read_metadata(path).row_group(0)
    encodings = {
        column.path_in_schema.split(".")[0] if column.path_in_schema != "a.b" else "a.b": (
            column.encodings
        )
        for column in map(group.column, range(group.num_columns))
    }
    assert {n for n, e in encodings.items() if "DELTA_BINARY_PACKED" in e} == set(differing)
    assert {n for n, e in encodings.items() if "RLE_DICTIONARY" in e} == set(others)
    assert pq.read_table(path).equals(written)

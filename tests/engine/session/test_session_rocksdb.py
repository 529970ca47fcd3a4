"""Whole jobs whose state lies in RocksDB: exactly once across failures and rescales, and
checkpoints that store what changed.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.inspection.contents import state_of
from headrace.engine.inspection.directory import open_checkpoint
from headrace.engine.session.session import PreparedJob
from headrace.engine.state.rocks import files as rocks_files
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog
from headrace.recovery.layout import owner
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.registry import references
from headrace.recovery.sizes import sizes_of
from headrace.recovery.store import Content, parts_of

from .test_session import WAIT_S, counts, keys_of, numbers, visible, wait_until

ROWS = 12_000
SEEN = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("last", pa.int64())])


class Seen(hr.StatefulProcessor):
    """Counts the records of a key in three ways, which must agree."""

    n = hr.value_state(pa.int64(), default=0)
    last = hr.list_state(pa.int64())
    by_digit = hr.map_state(pa.string(), pa.int64())

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        digit = str(row["sequence"] % 10)
        self.n.value += 1
        self.by_digit[digit] = self.by_digit.get(digit, 0) + 1
        last = next(iter(self.last), -1)
        self.last.replace([max(last, row["sequence"])])
        assert sum(self.by_digit.values()) == self.n.value
        yield {"key": key, "n": self.n.value, "last": last}


def job(
    folder: Path, state: hr.State, *, rate: float | None = 20_000.0, fragile: Any = None
) -> hr.Job:
    source = numbers(ROWS, rate=rate)
    if fragile is not None:
        source = source.map_batches(fragile, name="fragile")
    counted = source.key_by("key").aggregate(n=hr.count(), emit="final", name="counts")
    seen = source.key_by("key").process(Seen, schema=SEEN, name="seen")
    return hr.Job(
        "job",
        source.rebalance().select("sequence").write.parquet(str(folder / "out"), name="files"),
        counted.write.collect(name="counts-out"),
        seen.write.collect(name="seen-out"),
        parallelism=2,
        max_parallelism=16,
        state=state,
        checkpoints=hr.Checkpoints(str(folder / "ckpt"), interval="50ms", mode="unaligned"),
        restart=hr.Restart(backoff="1ms"),
    )


def rocksdb(folder: Path) -> hr.State:
    return hr.State(
        "rocksdb", directory=str(folder / "state"), write_buffer="1MiB", block_cache="1MiB"
    )


def check(result: Any, folder: Path) -> None:
    assert visible(folder / "out") == list(range(ROWS))
    assert counts(result.collected["counts-out"]) == keys_of(ROWS)
    seen: Counter[int] = Counter()
    for row in result.collected["seen-out"].to_pylist():
        seen[row["key"]] = max(seen[row["key"]], row["n"])
    assert dict(seen) == keys_of(ROWS)


def newest(folder: Path) -> CheckpointMetadata:
    metadata, refused = catalog.newest_valid(FsspecStore(str(folder / "ckpt")), "job")
    assert metadata is not None
    assert not refused
    return metadata


def stopped(folder: Path, state: hr.State, rate: float = 3_000.0) -> CheckpointMetadata:
    """A job that was stopped in the middle; its last checkpoint."""
    handle = job(folder, state, rate=rate).start("threads")
    wait_until("two checkpoints", lambda: handle.status().completed >= 2)
    handle.stop()
    handle.wait(WAIT_S)
    metadata = newest(folder)
    held = [len(s.databases) for s in metadata.subtasks]
    assert sum(held) == (4 if state.backend == "rocksdb" else 0)
    return metadata


def records_in(handle: Any, operator: str) -> float:
    """How many the task that begins with this operator has taken in, by its workers' last
    heartbeats.
    """
    return sum(
        float(value)
        for name, value in handle.metrics().items()
        if name.startswith("headrace_records_in_total")
        and re.split(r"\W", name.partition('task="')[2])[0] == operator
        and f'"{operator}-out' not in name
    )


def assert_nothing_is_missing_or_left_over(folder: Path) -> None:
    metadata = newest(folder)
    store = FsspecStore(str(folder / "ckpt"))
    assert catalog.verify(store, "job", metadata.checkpoint) == []
    there = {
        path.removeprefix("job/")
        for path in store.list("job/")
        if not path.endswith(("/metadata", "job/owner"))
        and not any(folder in path for folder in ("/epochs/", "/failed/"))
    }
    assert there == references(metadata)
    state = folder / "state"
    wait_until("the workers' folders go", lambda: not state.exists() or not os.listdir(state))


@pytest.mark.parametrize("parallelism", [2, 1, 3])
def test_it_is_exactly_once_across_a_stop_and_a_restore(folder: Path, parallelism: int) -> None:
    stopped(folder, rocksdb(folder))
    again = job(folder, rocksdb(folder), rate=None)
    check(again.run("threads", restore="latest", parallelism=parallelism), folder)
    assert_nothing_is_missing_or_left_over(folder)


@pytest.mark.parametrize(("first", "second"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_the_backend_can_change_between_two_runs(folder: Path, first: str, second: str) -> None:
    states = {"heap": hr.State(), "rocksdb": rocksdb(folder)}
    stopped(folder, states[first])
    check(job(folder, states[second], rate=None).run("threads", restore="latest"), folder)


def test_records_are_worked_on_while_no_flush_comes_to_an_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the owner thread nor the subtasks' threads wait for the disk."""
    flushing, go_on = threading.Event(), threading.Event()
    make = rocks_files.checkpoint

    def slow(*arguments: Any) -> None:
        flushing.set()
        assert go_on.wait(WAIT_S)
        make(*arguments)

    monkeypatch.setattr(rocks_files, "checkpoint", slow)
    handle = job(folder, rocksdb(folder), rate=8_000.0).start("threads")
    try:
        assert flushing.wait(WAIT_S)
        wait_until(
            "all records are counted",
            lambda: records_in(handle, "counts") == records_in(handle, "seen") == ROWS,
        )
        assert handle.status().completed == 0
    finally:
        go_on.set()
    check(handle.wait(WAIT_S), folder)


def test_it_is_exactly_once_when_an_operator_fails(folder: Path) -> None:
    flag = folder / "fail-now"

    def fragile(batch: pa.RecordBatch) -> pa.RecordBatch:
        if flag.exists():
            flag.unlink(missing_ok=True)
            raise ValueError("once")
        return batch

    handle = job(folder, rocksdb(folder), rate=2_000.0, fragile=fragile).start("threads")
    wait_until("a checkpoint", lambda: handle.status().completed >= 1)
    flag.touch()
    result = handle.wait(WAIT_S)
    assert result.restarts >= 1
    check(result, folder)
    assert_nothing_is_missing_or_left_over(folder)


def test_a_checkpoint_in_another_directory_is_copied_and_never_touched(
    folder: Path, tmp_path: Path
) -> None:
    metadata = stopped(folder, rocksdb(folder))
    origin = folder / "ckpt" / "job"
    path = f"{origin}/chk-{metadata.checkpoint}"
    before = {p: p.read_bytes() for p in origin.rglob("*") if p.is_file()}
    checkpoints = hr.Checkpoints(str(tmp_path / "other"), interval="30ms")
    again = job(folder, rocksdb(folder), rate=20_000.0)
    check(again.run("threads", restore=path, checkpoints=checkpoints), folder)
    assert {p: p.read_bytes() for p in origin.rglob("*") if p.is_file()} == before
    store = FsspecStore(str(tmp_path / "other"))
    newest_there, _ = catalog.newest_valid(store, "job")
    assert newest_there is not None
    assert catalog.verify(store, "job", newest_there.checkpoint) == []


@pytest.mark.parametrize("dies", [True, False], ids=["the job dies", "the job goes on"])
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_the_first_checkpoint_after_a_restore_from_elsewhere_needs_nothing_from_there(
    folder: Path, tmp_path: Path, backend: Any, dies: bool
) -> None:
    state = rocksdb(folder) if backend == "rocksdb" else hr.State("heap")
    first = job(folder, state, rate=800.0).start("threads")
    wait_until("two checkpoints", lambda: first.status().completed >= 2)
    first.stop()
    first.wait(WAIT_S)
    path = f"{folder}/ckpt/job/chk-{newest(folder).checkpoint}"
    other = hr.Checkpoints(str(tmp_path / "other"), interval="50ms", mode="unaligned")
    handle = job(folder, state, rate=3_000.0).start("threads", restore=path, checkpoints=other)
    wait_until("a checkpoint", lambda: handle.status().completed >= 1)
    shutil.rmtree(folder / "ckpt")
    if not dies:
        check(handle.wait(WAIT_S), folder)
        return
    handle.cancel()
    handle.wait(WAIT_S)
    again = job(folder, state, rate=None)
    check(again.run("threads", restore="latest", checkpoints=other), folder)


def test_a_damaged_file_is_found_before_it_is_used(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = stopped(folder, rocksdb(folder))
    database = next(d for s in metadata.subtasks for d in s.databases if d.shared)
    file = folder / "ckpt" / "job" / database.shared[0].path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    file.write_bytes(data)
    caplog.set_level("WARNING", logger="headrace.engine.drivers.coordinator_driver")
    with pytest.raises(hr.JobFailed, match=f"chk-{metadata.checkpoint} cannot be restored"):
        job(folder, rocksdb(folder)).run("threads", restore="latest")
    assert f"shared/{file.name}" in caplog.text


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_subtask_takes_over_parts_of_several_databases_without_copying(
    folder: Path, parallelism: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks_files, "copy_groups", None)
    # So slow that no machine is too busy to stop it before its end.
    stopped(folder, rocksdb(folder), rate=400.0)
    handle = job(folder, rocksdb(folder), rate=400.0).start(
        "threads", restore="latest", parallelism=3
    )
    wait_until("two checkpoints", lambda: handle.status().completed >= 2)
    handle.stop()
    handle.wait(WAIT_S)
    held = Counter((d.operator, s.index) for s in newest(folder).subtasks for d in s.databases)
    expected = {0: 1, 1: 2, 2: 1}
    assert held == {(name, i): n for name in ("counts", "seen") for i, n in expected.items()}
    again = job(folder, rocksdb(folder), rate=None)
    check(again.run("threads", restore="latest", parallelism=parallelism), folder)
    assert_nothing_is_missing_or_left_over(folder)


@pytest.mark.parametrize("parallelism", [3])
def test_a_rescale_has_state_fetched_before_the_job_stops(folder: Path, parallelism: int) -> None:
    handle = job(folder, rocksdb(folder), rate=2_000.0).start("threads")
    wait_until("two checkpoints", lambda: handle.status().completed >= 2)
    assert handle.rescale(parallelism).ahead_bytes > 0
    check(handle.wait(WAIT_S), folder)
    assert_nothing_is_missing_or_left_over(folder)


def test_what_is_damaged_after_it_was_fetched_is_refused(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = PreparedJob.fetch_ahead
    damaged: list[Path] = []

    def fetched(prepared: PreparedJob) -> int:
        found = fetch(prepared)
        database = next(d for s in newest(folder).subtasks for d in s.databases if d.shared)
        damaged.append(folder / "ckpt" / "job" / database.shared[0].path)
        data = bytearray(damaged[0].read_bytes())
        data[len(data) // 2] ^= 1
        # In place: where it was linked, it has changed too.
        damaged[0].write_bytes(data)
        return found

    handle = job(folder, rocksdb(folder), rate=3_000.0).start("threads")
    wait_until("two checkpoints", lambda: handle.status().completed >= 2)
    monkeypatch.setattr(PreparedJob, "fetch_ahead", fetched)
    caplog.set_level("WARNING", logger="headrace.engine.drivers.coordinator_driver")
    with suppress(hr.HeadraceError):
        handle.rescale(3)
    with suppress(hr.JobFailed):
        handle.cancel()
        handle.wait(WAIT_S)
    assert f"shared/{damaged[0].name}" in caplog.text


def test_a_checkpoint_of_databases_is_data(folder: Path) -> None:
    metadata = stopped(folder, rocksdb(folder))
    opened = open_checkpoint(str(folder / "ckpt"), "job", metadata.checkpoint)

    def column(operator: str, state: str | None, name: str) -> dict[int, Any]:
        view = state_of(opened, operator, state)
        batches = [batch for piece in view.pieces for batch in view.read(piece)]
        table = pa.Table.from_batches(batches, view.schema)
        assert table.schema.names == ["__subtask", "__key_group", "key", name]
        return dict(zip(table["key"].to_pylist(), table[name].to_pylist(), strict=True))

    seen = column("seen", "n", "n")
    assert len(seen) == len(keys_of(ROWS))
    digits = column("seen", "by_digit", "by_digit")
    assert {key: sum(dict(pairs).values()) for key, pairs in digits.items()} == seen
    assert column("counts", None, "n").keys() == seen.keys()
    with pytest.raises(hr.UserError, match="counts, numbers, seen"):
        state_of(opened, "nobody")


class Cold(hr.StatefulProcessor):
    """Writes a lot for a key once, and little for one key after that."""

    payload = hr.value_state(pa.binary())

    def process(self, key: Any, row: dict[str, Any]) -> None:
        self.payload.value = os.urandom(4000)


def test_what_has_not_changed_is_not_written_again(folder: Path) -> None:
    stream = hr.read.sequence(None, keys=400, rate=4_000.0, name="numbers")
    hot: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch.filter(
        pa.compute.or_(pa.compute.less(batch["sequence"], 400), pa.compute.equal(batch["key"], 7))
    )
    kept = stream.map_batches(hot, name="hot").key_by("key")
    sink = kept.process(
        Cold, schema=pa.schema([("x", pa.int64())]), name="cold", state=hr.State("rocksdb")
    )
    one = hr.Job(
        "job",
        sink.write.blackhole(name="out"),
        parallelism=1,
        checkpoints=hr.Checkpoints(str(folder / "ckpt"), interval=None, retain=9),
    )
    handle = one.start("threads")

    def all_there() -> bool:
        handle.checkpoint()
        return sizes_of(newest(folder)).state_bytes > 400 * 4000

    wait_until("every key was seen", all_there)
    handle.checkpoint()
    sizes = sizes_of(newest(folder))
    handle.cancel()
    handle.wait(WAIT_S)
    assert sizes.state_bytes > 400 * 4000
    assert sizes.state_written_bytes < sizes.state_bytes / 4
    assert sizes.state_written_bytes + sizes.state_referenced_bytes == sizes.state_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "job"


def test_state_whose_upload_takes_three_timeouts_is_complete_at_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage takes 0.9 s for the first file of state, and a checkpoint may take 0.3 s."""
    put, stored = FsspecStore.put, []

    def slow(self: FsspecStore, path: str, data: Content) -> None:
        if "/shared/" in path:
            stored.append(path)
            if sum(map(len, parts_of(data))) > 50_000:
                time.sleep(0.9)
        put(self, path, data)

    monkeypatch.setattr(FsspecStore, "put", slow)
    both = numbers(10_000).union(numbers(10_000, name="slow", rate=300.0))
    counted = both.key_by("sequence").aggregate(n=hr.count(), emit="final", name="counts")
    running = hr.Job(
        "job",
        counted.write.blackhole(name="out"),
        parallelism=1,
        state=hr.State("rocksdb", directory=str(folder / "state")),
        checkpoints=hr.Checkpoints(
            str(folder / "ckpt"), interval="500ms", timeout="300ms", tolerable_failures=100
        ),
    ).start("threads")
    wait_until("a checkpoint", lambda: running.status().completed > 0)
    first = newest(folder)
    running.stop()
    running.wait(WAIT_S)
    (database,) = (d for subtask in first.subtasks for d in subtask.databases)
    owners = {owner(file.path) for file in database.shared}
    assert first.checkpoint >= 3
    assert 1 in owners, "the file that the first checkpoint stored"
    checksums = [path.rpartition("-")[2] for path in stored]
    assert len(checksums) == len(set(checksums)), "a file was stored twice"

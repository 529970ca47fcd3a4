"""Whole jobs, in threads of this process: what goes in comes out, once, whatever happens in
between.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.engine.contract.launcher import Incarnation
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.session.session import worker_exited

ROWS = 3_000
KEYS = 17
WAIT_S = 120.0
Rows = list[dict[str, Any]]


def numbers(
    rows: int | None = ROWS, *, name: str = "numbers", rate: float | None = None
) -> hr.Stream:
    return hr.read.sequence(rows, keys=KEYS, name=name, rate=rate)


def collected(stream: hr.Stream, **options: Any) -> pa.Table:
    """Run the stream to its end in two slots; what it wrote."""
    job = hr.Job("job", stream.write.collect(name="out"), parallelism=2, max_parallelism=16)
    return job.run("threads", **options).collected["out"]


def sequences(table: pa.Table) -> list[int]:
    found: list[int] = sorted(table["sequence"].to_pylist())
    return found


def keys_of(rows: int) -> Counter[int]:
    """How often each key comes, counted without the engine."""
    source = hr.read.sequence(rows, keys=KEYS, name="numbers")
    job = hr.Job("reference", source.write.collect(name="all"), parallelism=1)
    return Counter(job.run("threads").collected["all"]["key"].to_pylist())


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.01)


def counts(table: pa.Table) -> dict[int, int]:
    return dict(zip(table["key"].to_pylist(), table["n"].to_pylist(), strict=True))


# --- edges ----------------------------------------------------------------------------------------


def test_records_pass_from_a_source_to_a_sink() -> None:
    assert sequences(collected(numbers())) == list(range(ROWS))


def test_records_are_counted_by_key() -> None:
    counted = numbers().key_by("key").aggregate(n=hr.count(), emit="final", name="counts")
    assert counts(collected(counted)) == keys_of(ROWS)


def test_a_union_has_the_records_of_all() -> None:
    both = numbers().union(numbers(name="more"))
    assert sequences(collected(both)) == sorted([*range(ROWS), *range(ROWS)])


def evens_first(batch: pa.RecordBatch, consumers: int) -> npt.ArrayLike:
    targets: npt.NDArray[np.int64] = batch["sequence"].to_numpy() % consumers
    return targets


@pytest.mark.parametrize(
    ("edge", "times"),
    [
        (lambda stream: stream.rebalance(), 1),
        (lambda stream: stream.shuffle(), 1),
        (lambda stream: stream.broadcast(), 2),
        (lambda stream: stream.partition_by(evens_first, "sequence"), 1),
        (lambda stream: stream.partition_by_range("sequence", [10, 500, 501]), 1),
        (lambda stream: stream.rebalance().select("sequence", "key", parallelism=3).rebalance(), 1),
    ],
    ids=["rebalance", "shuffle", "broadcast", "custom", "range", "three-in-the-middle"],
)
def test_every_edge_delivers_every_record(
    edge: Callable[[hr.Stream], hr.Stream], times: int
) -> None:
    stream = edge(numbers()).filter(pc.field("sequence") >= 0)
    assert sequences(collected(stream)) == sorted([*range(ROWS)] * times)


def test_records_of_a_key_keep_their_order() -> None:
    source = hr.read.sequence(ROWS, keys=KEYS, name="numbers", parallelism=1)
    stream = source.key_by("key").stream.filter(pc.field("sequence") >= 0)
    last: dict[int, int] = {}
    for row in collected(stream).to_pylist():
        assert row["sequence"] > last.get(row["key"], -1)
        last[row["key"]] = row["sequence"]
    assert len(last) == KEYS


def test_small_windows_slow_down_and_lose_nothing() -> None:
    network = hr.Network(buffer="1KiB", window="2KiB")
    counted = numbers().shuffle().key_by("key").aggregate(n=hr.count(), emit="final", name="counts")
    assert sum(counts(collected(counted, network=network)).values()) == ROWS


# --- checkpoints ----------------------------------------------------------------------------------


def counting(out: Path, rows: int | None, rate: float | None) -> hr.Job:
    """Records by file, and their count by key, each with its own sink."""
    source = numbers(rows, rate=rate)
    counted = source.key_by("key").aggregate(n=hr.count(), emit="final", name="counts")
    return hr.Job(
        "job",
        source.rebalance().select("sequence").write.parquet(str(out), name="files"),
        counted.write.collect(name="counts-out"),
        parallelism=2,
        max_parallelism=16,
    )


def visible(out: Path) -> list[int]:
    return sorted(
        x for part in out.glob("part-*") for x in pq.read_table(part)["sequence"].to_pylist()
    )


@pytest.mark.parametrize("mode", ["aligned", "unaligned", "at_least_once"])
def test_checkpoints_are_taken_while_a_job_runs(mode: Any, tmp_path: Path) -> None:
    checkpoints = hr.Checkpoints(str(tmp_path / "ckpt"), interval="20ms", mode=mode, retain=2)
    stream = numbers(None, rate=20_000).shuffle().filter(pc.field("sequence") >= 0)
    job = hr.Job("job", stream.write.blackhole(name="out"), parallelism=2, checkpoints=checkpoints)
    handle = job.start("threads")
    wait_until("three checkpoints", lambda: handle.status().completed >= 3)
    handle.stop()
    result = handle.wait(WAIT_S)
    assert result.checkpoints >= 4
    assert result.restarts == 0
    complete = {p.parent.name for p in (tmp_path / "ckpt" / "job").glob("chk-*/metadata")}
    assert len(complete) == 2
    assert f"chk-{result.last_checkpoint}" in complete


@pytest.mark.parametrize(
    ("mode", "max_concurrent"), [("aligned", 1), ("unaligned", 1), ("unaligned", 3)]
)
def test_files_and_state_are_exactly_once_across_a_stop_and_a_restore(
    mode: Any, max_concurrent: int, tmp_path: Path
) -> None:
    rows = 20_000
    out = tmp_path / "out"
    checkpoints = hr.Checkpoints(
        str(tmp_path / "ckpt"), interval="30ms", mode=mode, max_concurrent=max_concurrent
    )
    job = counting(out, rows, rate=8_000.0)
    handle = job.start("threads", checkpoints=checkpoints)
    wait_until("a checkpoint", lambda: handle.status().completed >= 2)
    handle.stop()
    handle.wait(WAIT_S)
    before = visible(out)
    assert 0 < len(before) < rows, "stopped in the middle"
    assert len(set(before)) == len(before)
    result = job.run("threads", checkpoints=checkpoints, restore="latest")
    assert visible(out) == list(range(rows))
    assert counts(result.collected["counts-out"]) == keys_of(rows)


def test_what_a_cancelled_job_had_not_committed_is_written_once_after_the_restore(
    tmp_path: Path,
) -> None:
    rows = 10_000
    out = tmp_path / "out"
    checkpoints = hr.Checkpoints(str(tmp_path / "ckpt"), interval="30ms")
    job = counting(out, rows, rate=20_000.0)
    handle = job.start("threads", checkpoints=checkpoints)
    wait_until("a checkpoint", lambda: handle.status().completed >= 2)
    handle.cancel()
    handle.wait(WAIT_S)
    result = job.run("threads", checkpoints=checkpoints, restore="latest")
    assert visible(out) == list(range(rows))
    assert counts(result.collected["counts-out"]) == keys_of(rows)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_restore_at_another_parallelism_loses_and_doubles_nothing(
    parallelism: int, tmp_path: Path
) -> None:
    rows = 20_000
    out = tmp_path / "out"
    checkpoints = hr.Checkpoints(str(tmp_path / "ckpt"), interval="30ms", mode="unaligned")
    job = counting(out, rows, rate=8_000.0)
    handle = job.start("threads", checkpoints=checkpoints)
    wait_until("a checkpoint", lambda: handle.status().completed >= 2)
    handle.stop()
    handle.wait(WAIT_S)
    result = job.run("threads", checkpoints=checkpoints, restore="latest", parallelism=parallelism)
    assert visible(out) == list(range(rows))
    assert counts(result.collected["counts-out"]) == keys_of(rows)


def test_a_job_whose_operator_fails_once_restarts_and_is_exactly_once(tmp_path: Path) -> None:
    """The function fails after a checkpoint, once; what came out is as if it never had."""
    out = tmp_path / "out"
    flag = tmp_path / "fail-now"

    def fragile(batch: pa.RecordBatch) -> pa.RecordBatch:
        if flag.exists():
            flag.unlink()
            raise ValueError("once")
        return batch

    rows = 20_000
    stream = numbers(rows, rate=40_000.0).map_batches(fragile, name="fragile", parallelism=1)
    job = hr.Job("job", stream.write.parquet(str(out), name="files"), parallelism=2)
    checkpoints = hr.Checkpoints(str(tmp_path / "ckpt"), interval="30ms")
    handle = job.start("threads", checkpoints=checkpoints, restart=hr.Restart(backoff="1ms"))
    wait_until("a checkpoint", lambda: handle.status().completed >= 2)
    flag.touch()
    result = handle.wait(WAIT_S)
    assert result.restarts == 1
    assert visible(out) == list(range(rows))


def test_a_requested_checkpoint_returns_its_number(tmp_path: Path) -> None:
    checkpoints = hr.Checkpoints(str(tmp_path / "ckpt"), interval=None)
    sink = numbers(None, rate=1_000).write.blackhole(name="out")
    handle = hr.Job("job", sink, parallelism=1, checkpoints=checkpoints).start("threads")
    assert [handle.checkpoint(), handle.checkpoint()] == [1, 2]
    handle.cancel()
    assert handle.wait(WAIT_S).last_checkpoint == 2


def test_a_checkpoint_without_a_directory_is_the_users_mistake() -> None:
    sink = numbers(None, rate=1_000).write.blackhole(name="out")
    handle = hr.Job("job", sink, parallelism=1).start("threads")
    with pytest.raises(hr.UserError, match="the job has no checkpoint directory"):
        handle.checkpoint()
    handle.cancel()
    handle.wait(WAIT_S)


# --- failures -------------------------------------------------------------------------------------


def broken(row: Mapping[str, Any]) -> dict[str, Any]:
    raise ValueError(f"no good: {row['sequence']}")


def test_a_function_that_raises_fails_the_job_with_its_traceback() -> None:
    stream = numbers(10).map(broken, name="broken")
    job = hr.Job("job", stream.write.collect(name="out"), parallelism=1)
    with pytest.raises(hr.JobFailed) as caught:
        job.run("threads", restart=hr.Restart(attempts=1, backoff="1ms"))
    text = str(caught.value)
    assert "gave up after 1 restarts" in text
    assert "broken" in text
    assert "ValueError: no good: 0" in text
    assert __file__.rpartition("/")[2] in text, "the user's own file is named"


def test_waiting_for_a_job_ends_in_time() -> None:
    sink = numbers(None, rate=1_000).write.blackhole(name="out")
    handle = hr.Job("job", sink, parallelism=1).start("threads")
    with pytest.raises(TimeoutError, match="still runs"):
        handle.wait(0.01)
    handle.cancel()
    handle.wait(WAIT_S)


def test_a_job_that_is_cancelled_while_its_workers_start_ends_at_once() -> None:
    sink = numbers(None, rate=1_000).write.blackhole(name="out")
    handle = hr.Job("job", sink, parallelism=1).start("threads")
    handle.cancel()
    handle.wait(20.0)


def test_restoring_what_is_not_there_is_the_users_mistake(tmp_path: Path) -> None:
    sink = numbers(10).write.blackhole(name="out")
    job = hr.Job("job", sink, parallelism=1, checkpoints=str(tmp_path))
    with pytest.raises(hr.UserError, match="has no complete checkpoint"):
        job.run("threads", restore="latest")


def test_a_job_leaves_no_thread_behind() -> None:
    before = {thread.ident for thread in threading.enumerate()}
    collected(numbers(100))

    def gone() -> bool:
        return all(t.ident in before or "subtask" not in t.name for t in threading.enumerate())

    wait_until("the subtasks' threads end", gone)


@pytest.mark.parametrize(
    ("code", "reason"), [(-9, "its process was killed by signal 9"), (3, "exit code 3")]
)
def test_the_coordinator_is_told_how_a_process_ended(code: int, reason: str) -> None:
    assert worker_exited(Incarnation(2, 5), code) == d.WorkerExited(2, 5, reason)


def test_views_and_runs_pass_an_exchange_by_key_and_user_code() -> None:
    names = ["ann", "bob", None, "a name that is longer than twelve bytes"] * 50
    views = pa.array(names, pa.string_view())
    runs = pc.run_end_encode(pa.array([1] * 100 + [2] * 100))

    def again_as_views(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"name": batch["name"].cast(pa.string_view()), "n": batch["n"]})

    stream = hr.read.batches([pa.record_batch({"name": views, "n": runs})], name="names")
    mapped = stream.rebalance().map_batches(again_as_views, name="again")
    totals = collected(mapped.key_by("name").aggregate(n=hr.sum("n"), name="totals")).to_pylist()
    newest = {name: max(row["n"] for row in totals if row["name"] == name) for name in set(names)}
    assert newest == dict.fromkeys(names, 75)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_text_and_decimals_are_aggregated_by_both_backends(tmp_path: Path, backend: Any) -> None:
    prices = pa.array(range(200), pa.int64()).cast(pa.decimal128(21, 2))
    rows = pa.record_batch({"k": [n % 3 for n in range(200)], "price": prices})

    def named(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("name", batch["price"].cast(pa.string()))

    schema = rows.schema.append(pa.field("name", pa.string()))
    stream = hr.read.batches([rows], name="rows").map_batches(named, schema=schema, name="named")
    totals = stream.key_by("k").aggregate(
        total=hr.sum("price"), first=hr.min("name"), last=hr.max("name"), name="totals"
    )
    table = collected(totals, state=hr.State(backend), checkpoints=hr.Checkpoints(str(tmp_path)))
    newest = {row["k"]: row for row in sorted(table.to_pylist(), key=lambda row: row["total"])}
    for key, row in newest.items():
        texts = [f"{n}.00" for n in range(key, 200, 3)]
        assert (row["first"], row["last"]) == (min(texts), max(texts))
        assert row["total"] == sum(range(key, 200, 3))


def test_a_union_column_without_rows_is_collected() -> None:
    either = pa.sparse_union([pa.field("n", pa.int64()), pa.field("s", pa.string())])
    schema = pa.schema([("either", either)])
    none = pa.RecordBatch.from_arrays(
        [
            pa.UnionArray.from_sparse(
                pa.array([], pa.int8()),
                [pa.array([], pa.int64()), pa.array([], pa.string())],
                ["n", "s"],
            )
        ],
        schema=schema,
    )
    table = collected(hr.read.batches([none], name="none"))
    assert (table.schema, table.num_rows) == (schema, 0)

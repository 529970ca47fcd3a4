"""Whole jobs with windows, joins and broadcast state, in threads: what comes out is what a batch
computation gives, whatever happens in between.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr

ROWS = 6_000
KEYS = 13
WAIT_S = 120.0
RATE = 5_000.0
AT = pa.timestamp("ms")
CLICKS = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("at", AT)])
#: Milliseconds that a record may be older than one before it.
JITTER = 50
WINDOW = 100


def times_of(ids: Any) -> Any:
    """A millisecond a record, out of order within the jitter."""
    return ids + ids * 7919 % JITTER


def to_click(batch: pa.RecordBatch) -> dict[str, Any]:
    ids = batch["sequence"].to_numpy()
    return {"id": ids, "key": batch["key"], "at": pa.array(times_of(ids)).view(AT)}


class Fragile:
    """Passes records on; fails at a record in the middle as long as the flag is there."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.max(batch["id"]).as_py() > ROWS // 3 and self._flag.exists():
            self._flag.unlink(missing_ok=True)
            raise ValueError("once")
        return batch


def clicks(name: str, *, delay: str = "50ms", flag: Path | None = None) -> hr.Stream:
    stream = hr.read.sequence(ROWS, keys=KEYS, name=name, rate=RATE)
    made = stream.map_batches(to_click, schema=CLICKS, name=f"{name}-clicks")
    if flag is not None:
        made = made.map_batches(Fragile(flag), name=f"{name}-fragile")
    return made.with_watermark("at", delay)


def keys() -> dict[int, int]:
    """{id: key} of the generated records."""
    stream = hr.read.sequence(ROWS, keys=KEYS, name="numbers")
    job = hr.Job("reference", stream.write.collect(name="all"), parallelism=1)
    table = job.run("threads").collected["all"]
    return dict(zip(table["sequence"].to_pylist(), table["key"].to_pylist(), strict=True))


def read(folder: Path) -> list[dict[str, Any]]:
    return [row for part in folder.glob("part-*") for row in pq.read_table(part).to_pylist()]


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.01)


def interrupted(
    sinks: Callable[[Path], Iterable[hr.SinkHandle]],
    folder: Path,
    mode: Any,
    parallelism: int,
    backends: Sequence[Any],
) -> None:
    """Run a job that fails in the middle, is stopped, and goes on at another parallelism, perhaps
    on another backend.
    """
    flag = folder / "fail-now"
    checkpoints = hr.Checkpoints(str(folder / "ckpt"), interval="50ms", mode=mode)
    flag.touch()
    job = hr.Job("job", *sinks(flag), parallelism=2, max_parallelism=16)
    restart = hr.Restart(backoff="1ms")
    first, second = (hr.State(backend, write_buffer="1MiB") for backend in backends)
    handle = job.start("threads", checkpoints=checkpoints, restart=restart, state=first)
    wait_until("a restart", lambda: handle.status().restarts >= 1)
    done = handle.status().completed
    wait_until("a checkpoint", lambda: handle.status().completed > done)
    handle.stop()
    handle.wait(WAIT_S)
    job.run(
        "threads",
        checkpoints=checkpoints,
        restore="latest",
        parallelism=parallelism,
        state=second,
    )


CASES = pytest.mark.parametrize(
    ("mode", "parallelism", "backends"),
    [
        ("aligned", 2, ("heap", "heap")),
        ("unaligned", 1, ("rocksdb", "heap")),
        ("unaligned", 3, ("rocksdb", "rocksdb")),
    ],
)


@CASES
def test_windows_are_emitted_once_and_hold_every_record(
    mode: str, parallelism: int, backends: Sequence[str], tmp_path: Path
) -> None:
    def sinks(flag: Path) -> list[hr.SinkHandle]:
        windows = clicks("clicks", flag=flag).key_by("key").window(hr.tumbling(f"{WINDOW}ms"))
        result = windows.aggregate(n=hr.count(), ids=hr.sum("id"), name="windows")
        return [
            result.write.parquet(str(tmp_path / "out"), name="out"),
            result.late.write.parquet(str(tmp_path / "late"), name="late"),
        ]

    interrupted(sinks, tmp_path, mode, parallelism, backends)
    expected: dict[Any, list[int]] = {}
    for id_, key in keys().items():
        start = times_of(id_) // WINDOW * WINDOW
        expected.setdefault((key, start), []).append(id_)
    found = read(tmp_path / "out")
    epoch = np.datetime64(0, "ms")
    assert Counter(
        (
            r["key"],
            int((np.datetime64(r["window_start"]) - epoch) / np.timedelta64(1, "ms")),
            r["n"],
            r["ids"],
        )
        for r in found
    ) == Counter((*window, len(ids), sum(ids)) for window, ids in expected.items())
    assert read(tmp_path / "late") == []


@CASES
def test_joined_pairs_come_once(
    mode: str, parallelism: int, backends: Sequence[str], tmp_path: Path
) -> None:
    def sinks(flag: Path) -> list[hr.SinkHandle]:
        left, right = clicks("left", flag=flag), clicks("right")
        joined = left.key_by("key").join(right.key_by("key"), within="20ms", name="joined")
        return [joined.write.parquet(str(tmp_path / "out"), name="out")]

    interrupted(sinks, tmp_path, mode, parallelism, backends)
    by_key: dict[int, list[int]] = {}
    for id_, key in keys().items():
        by_key.setdefault(key, []).append(id_)
    expected: Counter[tuple[int, int]] = Counter()
    for ids in by_key.values():
        mine = np.array(ids)
        distances = np.abs(times_of(mine)[:, None] - times_of(mine)[None, :])
        expected.update(
            zip(*(mine[side].tolist() for side in np.nonzero(distances <= 20)), strict=True)
        )
    assert Counter((r["id"], r["id_right"]) for r in read(tmp_path / "out")) == expected


class Blocked(hr.BroadcastProcessor):
    """Counts the records of each key, and says which keys it has been told of."""

    told = hr.broadcast_state(pa.int64(), pa.int64())
    n = hr.value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.n.value += 1
        yield {"id": row["id"], "nth": self.n.value, "told": self.told.get(key, 0)}

    def process_broadcast(self, row: dict[str, Any]) -> None:
        self.told[row["key"]] = self.told.get(row["key"], 0) + 1


TOLD = pa.schema([("id", pa.int64()), ("nth", pa.int64()), ("told", pa.int64())])


@CASES
def test_state_of_both_sides_counts_each_record_once(
    mode: str, parallelism: int, backends: Sequence[str], tmp_path: Path
) -> None:
    def sinks(flag: Path) -> list[hr.SinkHandle]:
        rules = hr.read.sequence(3_000, keys=KEYS, name="rules", rate=12_000.0, parallelism=1)
        told = (
            clicks("clicks", flag=flag)
            .key_by("key")
            .connect(rules.broadcast(), Blocked, schema=TOLD, name="told")
        )
        return [told.write.parquet(str(tmp_path / "out"), name="out")]

    interrupted(sinks, tmp_path, mode, parallelism, backends)
    known = keys()
    found = read(tmp_path / "out")
    assert sorted(row["id"] for row in found) == list(range(ROWS))
    by_key: dict[int, list[int]] = {}
    for row in found:
        by_key.setdefault(known[row["id"]], []).append(row["nth"])
    assert all(sorted(nth) == list(range(1, len(nth) + 1)) for nth in by_key.values())
    # The source of the rules gives each key as often as it says.
    often = Counter(key for id_, key in known.items() if id_ < 3_000)
    assert all(row["told"] <= often[known[row["id"]]] for row in found)
    newest = {known[r["id"]]: r["told"] for r in sorted(found, key=lambda r: int(r["nth"]))}
    assert newest == dict(often)


def test_late_records_are_counted_and_go_to_the_late_output() -> None:
    result = (
        clicks("clicks", delay="0ms")
        .key_by("key")
        .window(hr.tumbling("10ms"))
        .aggregate(n=hr.count(), name="windows")
    )
    job = hr.Job(
        "job",
        result.write.collect(name="out"),
        result.late.write.collect(name="late"),
        parallelism=1,
    )
    handle = job.start("threads")
    done = handle.wait(WAIT_S)
    late = done.collected["late"].num_rows
    assert late > 0
    assert pc.sum(done.collected["out"]["n"]).as_py() + late == ROWS
    # As of the last heartbeat.
    counted = [
        value
        for name, value in handle.metrics().items()
        if name.startswith('headrace_late_records_total{task="windows"')
    ]
    assert 0 <= sum(counted) <= late


def test_windows_of_windows_hold_every_record() -> None:
    small = clicks("clicks").key_by("key").window(hr.tumbling("100ms"))
    counted = small.aggregate(n=hr.count(), name="small").with_watermark("window_start", "0s")
    large = counted.key_by("key").window(hr.sliding("1s", every="500ms"))
    result = large.aggregate(n=hr.sum("n"), name="large")
    job = hr.Job(
        "job",
        result.write.collect(name="out"),
        result.late.write.collect(name="late"),
        parallelism=2,
        max_parallelism=16,
    )
    done = job.run("threads")
    assert done.collected["late"].num_rows == 0
    expected: Counter[tuple[int, int]] = Counter()
    for id_, key in keys().items():
        newest = times_of(id_) // 500 * 500
        expected.update([(key, newest), (key, newest - 500)])
    found = done.collected["out"]
    starts = found["window_start"].combine_chunks().view(pa.int64()).to_pylist()
    assert (
        dict(
            zip(
                zip(found["key"].to_pylist(), starts, strict=True),
                found["n"].to_pylist(),
                strict=True,
            )
        )
        == expected
    )


class Lately(hr.StatefulProcessor):
    """Holds the records of a key back for a moment of the clock, then lets go of them in order."""

    held = hr.list_state(pa.int64())

    def process(self, key: Any, row: dict[str, Any]) -> None:
        self.held.append(row["sequence"])
        if not len(self.processing_timers):
            self.processing_timers.set_after("5ms")

    def on_processing_timer(self, key: Any, time_ns: int) -> Iterable[dict[str, Any]]:
        yield from ({"key": key, "sequence": id_} for id_ in self.held)
        self.held.clear()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_what_the_clock_lets_go_of_comes_once_also_after_a_restore(
    backend: Any, tmp_path: Path
) -> None:
    schema = pa.schema([("key", pa.int64()), ("sequence", pa.int64())])

    def job(rows: int | None, rate: float | None) -> hr.Job:
        numbers = hr.read.sequence(rows, keys=KEYS, name="numbers", rate=rate)
        lately = numbers.key_by("key").process(Lately, schema=schema, name="lately")
        return hr.Job(
            "job",
            lately.write.parquet(str(tmp_path / "out"), name="out"),
            parallelism=2,
            max_parallelism=16,
            state=hr.State(backend),
            checkpoints=hr.Checkpoints(str(tmp_path / "ckpt"), interval="50ms", mode="unaligned"),
        )

    handle = job(None, 1_000.0).start("threads")
    # Visible before the input has ended: it was the clock.
    wait_until("records", lambda: len(read(tmp_path / "out")) > 100)
    handle.stop()
    handle.wait(WAIT_S)
    job(ROWS * 5, None).run("threads", restore="latest", parallelism=3)
    found = read(tmp_path / "out")
    assert sorted(row["sequence"] for row in found) == list(range(ROWS * 5))


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_a_drained_job_fires_every_window_of_what_it_has_read_and_has_nothing_left(
    mode: Any, tmp_path: Path
) -> None:
    """The input has no end; a window longer than the run could not close by itself."""
    stream = hr.read.sequence(None, keys=KEYS, name="endless", rate=RATE)
    made = stream.map_batches(to_click, schema=CLICKS, name="clicks").with_watermark("at", "50ms")
    windows = made.key_by("key").window(hr.tumbling("1h")).aggregate(ids=hr.sum("id"), name="sums")
    sinks = [
        made.select("id").write.parquet(str(tmp_path / "read"), name="read"),
        windows.write.parquet(str(tmp_path / "windows"), name="windows-out"),
    ]
    checkpoints = hr.Checkpoints(str(tmp_path / "ckpt"), interval="50ms", mode=mode)
    job = hr.Job("job", *sinks, parallelism=2, max_parallelism=16)
    handle = job.start("threads", checkpoints=checkpoints)
    wait_until("a checkpoint", lambda: handle.status().completed >= 2)
    handle.drain()
    assert handle.wait(WAIT_S).outcome == "finished"
    ids = [row["id"] for row in read(tmp_path / "read")]
    assert len(ids) == len(set(ids)) > 0
    assert sum(row["ids"] for row in read(tmp_path / "windows")) == sum(ids)
    before = sorted(tmp_path.glob("*/part-*"))
    again = job.run("threads", checkpoints=checkpoints, restore="latest")
    assert again.outcome == "finished"
    assert sorted(tmp_path.glob("*/part-*")) == before

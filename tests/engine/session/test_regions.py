"""Jobs of several regions: each record once, whichever region dies, stops or starts again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

import headrace as hr
from headrace.engine.api.logged import Read
from headrace.engine.coordinator.coordinator_events import NoticeKind, StopKind, StopRequested
from headrace.engine.coordinator.rules import Phase
from headrace.engine.session.handle import JobHandle
from headrace.engine.session.regions import RegionsSession
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog
from headrace.recovery.edge_log_files import EdgeLogFiles
from headrace.recovery.layout import job_folder
from headrace.recovery.registry import references

ROWS = 30_000


def session_of(handle: JobHandle) -> RegionsSession:
    session = handle._session
    assert isinstance(session, RegionsSession)
    return session


def numbers(rows: int | None = ROWS, rate: float | None = 15_000) -> hr.Stream:
    return hr.read.sequence(rows, name="numbers", rate=rate, keys=10, parallelism=2)


def three(
    folder: Path,
    rows: int | None = ROWS,
    rate: float | None = 15_000,
    parallelism: int = 2,
    read: Read = "committed",
    numbers_every: str = "100ms",
) -> hr.Job:
    """Numbers; counts of them behind a log; both written, the counts behind a second log."""
    logged = numbers(rows, rate).logged(name="log", read=read)
    counts = logged.key_by("key").aggregate(n=hr.count(), name="count")
    counts = counts.logged(name="counts", read=read)
    return hr.Job(
        "three",
        counts.write.parquet(str(folder / "counts"), name="out"),
        logged.write.parquet(str(folder / "raw"), name="raw"),
        checkpoints=hr.Checkpoints(str(folder / "checkpoints"), interval="100ms"),
        regions=[
            hr.Region("numbers", interval=numbers_every),
            hr.Region("count", mode="unaligned"),
            hr.Region("out", interval="150ms"),
        ],
        parallelism=parallelism,
    )


def column(folder: Path, name: str) -> list[int]:
    found: list[int] = pa.dataset.dataset(str(folder)).to_table()[name].to_pylist()
    return found


def check_output(folder: Path, rows: int = ROWS) -> None:
    """Every number is there once, and every count of every key."""
    assert sorted(column(folder / "raw", "sequence")) == list(range(rows))
    keys, counts = column(folder / "counts", "key"), column(folder / "counts", "n")
    assert {max(n for k, n in zip(keys, counts, strict=True) if k == key) for key in range(10)} == {
        rows // 10
    }
    assert len(set(zip(keys, counts, strict=True))) == len(keys), "a count is emitted once"


def until(reached: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline_s, "not reached in time"
        time.sleep(0.02)


@pytest.mark.parametrize("read", ["committed", "at_once"])
def test_regions_run_to_the_end_of_their_logs(tmp_path: Path, read: Read) -> None:
    job = three(tmp_path, rate=None, read=read)
    result = job.run("threads")
    assert (result.outcome, result.restarts) == ("finished", 0)
    check_output(tmp_path)


def test_the_plan_shows_all_regions(tmp_path: Path) -> None:
    job = three(tmp_path)
    assert job.plan().slots == 2 * 4
    assert list(job.plan().regions) == ["numbers", "count", "raw", "out"]
    assert job.describe().count("-.->|log|") == 2
    assert job.describe().count("-.->|counts|") == 1


def kill_in_turn(handle: JobHandle) -> dict[str, int]:
    """Kill a worker of each region; return {region: kills}."""
    rng = random.Random(3)
    killed: dict[str, int] = dict.fromkeys(["numbers", "count", "raw", "out"], 0)
    for region in ["count", "numbers", "out", "raw", "count", "numbers"]:
        until(lambda region=region: bool(session_of(handle).regions()[region].workers))  # type: ignore[misc]
        pids = sorted(session_of(handle).regions()[region].workers.values())
        try:
            os.kill(rng.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed[region] += 1
        time.sleep(0.25)
    return killed


@pytest.mark.kills
def test_kills_in_every_region_are_exact_and_restart_that_region_alone(tmp_path: Path) -> None:
    handle = three(tmp_path).start("processes")
    killed = kill_in_turn(handle)
    result = handle.wait(60)
    assert result.outcome == "finished"
    check_output(tmp_path)
    restarts = {name: status.restarts for name, status in session_of(handle).regions().items()}
    assert sum(killed.values()) >= 4
    for name, kills in killed.items():
        assert restarts[name] <= kills, f"{name} restarted without a kill of its own"
    reports = [n.text for _, n in handle.status().notices if n.kind is NoticeKind.FAILOVER]
    assert any(text.startswith("region count went back to ") for text in reports)
    assert all(", because worker " in text for text in reports)


@pytest.mark.kills
def test_kills_of_regions_that_read_at_once_are_exact(tmp_path: Path) -> None:
    handle = three(tmp_path, rate=5000, read="at_once").start("processes")
    regions = session_of(handle).regions
    until(lambda: all(status.completed >= 2 for status in regions().values()), 90)
    killed = kill_in_turn(handle)
    assert handle.wait(120).outcome == "finished"
    check_output(tmp_path)
    restarts = {name: status.restarts for name, status in regions().items()}
    assert restarts["numbers"] <= killed["numbers"], "nobody stands before it"


@pytest.mark.kills
def test_a_writer_takes_readers_back_that_have_read_at_once(tmp_path: Path) -> None:
    # The numbers take no checkpoint before their end, so whoever has read any is ahead.
    job = three(tmp_path, rate=3000, read="at_once", numbers_every="8m")
    handle = job.start("processes")
    regions = session_of(handle).regions
    until(lambda: sum(n.rows_in for n in regions()["count"].numbers.values()) > 1000, 90)
    os.kill(min(regions()["numbers"].workers.values()), signal.SIGKILL)

    def is_told() -> bool:
        texts = [n.text for _, n in handle.status().notices if n.kind is NoticeKind.FAILOVER]
        return any("was cut below what this region has read" in text for text in texts)

    until(is_told, 90)
    assert handle.wait(120).outcome == "finished"
    check_output(tmp_path)


def test_records_are_read_at_once_long_before_their_checkpoint(tmp_path: Path) -> None:
    job = hr.Job(
        "early",
        numbers(None).logged(name="log", read="at_once").write.collect(name="out"),
        checkpoints=hr.Checkpoints(str(tmp_path), interval="1h", timeout="2h"),
        parallelism=2,
    )
    handle = job.start("threads")
    until(lambda: sum(n.rows_in for n in handle.status().numbers.values()) > ROWS)
    assert handle.status().completed == 0
    # A reader's savepoint waits for checkpoints of its writer, which takes them for it.
    assert handle.stop_with_savepoint().endswith("sav-1")
    assert handle.wait(60).outcome == "stopped"


def test_a_checkpoint_that_would_wait_longer_than_it_may_is_refused(tmp_path: Path) -> None:
    for interval in (None, "1h"):
        job = hr.Job(
            "early",
            numbers(10).logged(name="log", read="at_once").write.collect(name="out"),
            checkpoints=hr.Checkpoints(str(tmp_path), interval=interval),
        )
        with pytest.raises(hr.UserError, match="wait for those of region 'numbers'"):
            job.plan()


def damage_newest(folder: Path, job: str) -> int:
    """Flip a byte of every file of the newest checkpoint but its metadata."""
    store = FsspecStore(str(folder))
    number = catalog.complete_checkpoints(store, job)[0]
    for path in references(catalog.load(store, job, number)):
        at = folder / job_folder(job) / path
        data = bytearray(at.read_bytes())
        data[-1] ^= 1
        at.write_bytes(data)
    return number


def kept_long(
    folder: Path, rows: int | None = ROWS, rate: float | None = 8000, retain: int = 50
) -> hr.Job:
    """As `three`: the sinks commit at the end alone, and the counts often."""
    logged = numbers(rows, rate).logged(name="log")
    counts = logged.key_by("key").aggregate(n=hr.count(), name="count").logged(name="counts")
    return hr.Job(
        "three",
        counts.write.parquet(str(folder / "counts"), name="out"),
        logged.write.parquet(str(folder / "raw"), name="raw"),
        checkpoints=hr.Checkpoints(str(folder / "checkpoints"), interval="90s", retain=retain),
        regions=[hr.Region("numbers"), hr.Region("count", interval="100ms")],
        parallelism=2,
    )


def beyond_two_checkpoints(handle: JobHandle) -> None:
    """The counts have come beyond the second checkpoint of the numbers."""
    running = session_of(handle)._running
    until(lambda: session_of(handle).regions()["numbers"].phase is Phase.RUNNING)
    for _ in range(2):
        time.sleep(0.4)
        running["numbers"].checkpoint()
        completed = running["count"].status().completed
        until(lambda done=completed: running["count"].status().completed > done + 4)  # type: ignore[misc]


def test_readers_go_back_with_a_writer_whose_newest_checkpoint_is_damaged(tmp_path: Path) -> None:
    handle = kept_long(tmp_path).start("processes")
    beyond_two_checkpoints(handle)
    assert damage_newest(tmp_path / "checkpoints", "three.numbers") == 2
    os.kill(min(session_of(handle).regions()["numbers"].workers.values()), signal.SIGKILL)
    result = handle.wait(90)
    assert result.outcome == "finished"
    check_output(tmp_path)
    reports = [n.text for _, n in handle.status().notices if n.kind is NoticeKind.FAILOVER]
    went = [text for text in reports if text.startswith("region count went back to chk-")]
    assert any("of log 'log' than numbers keeps" in text for text in went), reports


def test_a_start_takes_readers_back_behind_a_damaged_checkpoint(tmp_path: Path) -> None:
    handle = kept_long(tmp_path).start("threads")
    beyond_two_checkpoints(handle)
    handle.cancel()
    handle.wait(60)
    folder = tmp_path / "checkpoints" / "three.numbers" / "chk-2" / "metadata"
    folder.write_bytes(folder.read_bytes()[:-5])
    again = kept_long(tmp_path, rate=None).start("threads")
    result = again.wait(60)
    assert (result.outcome, result.restarts) == ("finished", 0)
    check_output(tmp_path)
    assert any(n.kind is NoticeKind.FAILOVER for _, n in again.status().notices)


def test_a_reader_that_keeps_too_few_checkpoints_fails_the_job_with_a_sentence(
    tmp_path: Path,
) -> None:
    handle = kept_long(tmp_path, rows=None, retain=2).start("processes")
    beyond_two_checkpoints(handle)
    damage_newest(tmp_path / "checkpoints", "three.numbers")
    os.kill(min(session_of(handle).regions()["numbers"].workers.values()), signal.SIGKILL)
    with pytest.raises(hr.JobFailed, match=r"region count has no checkpoint .*retain=") as failed:
        handle.wait(60)
    assert "of log 'log' than numbers keeps" in str(failed.value)
    metadata = tmp_path / "checkpoints" / "three.numbers" / "chk-2" / "metadata"
    if metadata.exists():
        metadata.write_bytes(metadata.read_bytes()[:-5])
        with pytest.raises(hr.UserError, match="region count has no checkpoint"):
            kept_long(tmp_path, retain=2).run("threads")


def test_a_job_that_was_stopped_goes_on_at_another_parallelism(tmp_path: Path) -> None:
    for parallelism in (2, 3, 1):
        handle = three(tmp_path, rate=8000, parallelism=parallelism).start("threads")
        until(lambda h=handle: h.status().completed > 6)  # type: ignore[misc]
        handle.stop()
        assert handle.wait(60).outcome in ("stopped", "finished")
    assert three(tmp_path, rate=None).run("threads").outcome == "finished"
    check_output(tmp_path)


def test_a_job_that_was_cancelled_goes_on_from_every_regions_newest_checkpoint(
    tmp_path: Path,
) -> None:
    handle = three(tmp_path, rate=8000).start("threads")
    until(lambda: handle.status().completed > 8)
    handle.cancel()
    handle.wait(60)
    assert three(tmp_path, rate=None).run("threads").outcome == "finished"
    check_output(tmp_path)
    assert three(tmp_path, rate=None).run("threads").outcome == "finished", "nothing left to do"
    check_output(tmp_path)


def test_a_savepoint_is_a_vector_from_which_the_job_goes_back(tmp_path: Path) -> None:
    handle = three(tmp_path, rate=8000).start("threads")
    until(lambda: handle.status().completed > 6)
    saved = handle.savepoint()
    assert saved == str(tmp_path / "checkpoints" / "three" / "regions" / "sav-1")
    done = handle.status().completed
    until(lambda: handle.status().completed > done + 6)
    handle.cancel()
    handle.wait(60)
    # What was written after the savepoint is written once more, so into other folders.
    other = tmp_path / "other"
    logged = numbers(rate=None).logged(name="log")
    counts = logged.key_by("key").aggregate(n=hr.count(), name="count").logged(name="counts")
    again = hr.Job(
        "three",
        counts.write.parquet(str(other / "counts"), name="out"),
        logged.write.parquet(str(other / "raw"), name="raw"),
        checkpoints=hr.Checkpoints(str(tmp_path / "checkpoints"), interval="100ms"),
        regions=[hr.Region("count"), hr.Region("out")],
        parallelism=2,
    )
    # Transactions that the savepoint names have been committed to the first folders.
    result = again.run("threads", restore=saved)
    assert result.outcome == "finished"
    before = set(column(tmp_path / "raw", "sequence"))
    after = column(other / "raw", "sequence")
    assert len(set(after)) == len(after)
    assert before | set(after) == set(range(ROWS))


@pytest.mark.parametrize("read", ["committed", "at_once"])
def test_stop_with_savepoint_loses_and_repeats_nothing(tmp_path: Path, read: Read) -> None:
    handle = three(tmp_path, rate=8000, read=read).start("threads")
    until(lambda: handle.status().completed > 6)
    saved = handle.stop_with_savepoint(str(tmp_path / "checkpoints"))
    assert handle.wait(60).savepoint == saved
    assert three(tmp_path, rate=None, read=read).run("threads", restore=saved).outcome == "finished"
    check_output(tmp_path)


def test_drain_ends_the_sources_and_works_the_logs_off(tmp_path: Path) -> None:
    handle = three(tmp_path, rows=None, rate=8000).start("threads")
    until(lambda: handle.status().completed > 4)
    handle.drain()
    assert handle.wait(60).outcome == "finished"
    written = column(tmp_path / "raw", "sequence")
    assert sorted(set(written)) == sorted(written)
    keys, counts = column(tmp_path / "counts", "key"), column(tmp_path / "counts", "n")
    assert sum(dict(sorted(zip(keys, counts, strict=True))).values()) == len(written)


def test_logs_are_trimmed_while_the_job_runs(tmp_path: Path) -> None:
    handle = three(tmp_path, rows=None, rate=8000).start("threads")
    files = EdgeLogFiles(FsspecStore(str(tmp_path / "checkpoints")), "three", "log")
    until(lambda: (found := files.numbers()) != [] and found[0] > 5)
    handle.cancel()
    handle.wait(60)


def test_a_region_that_fails_stops_the_others_and_the_job_says_which(tmp_path: Path) -> None:
    def broken(row: dict[str, int]) -> dict[str, int]:
        raise ValueError("no such key")

    schema = pa.schema([("sequence", pa.int64())])
    logged = numbers(rows=None).logged(name="log")
    job = hr.Job(
        "broken",
        logged.map(broken, schema=schema, name="bad").write.collect(name="out"),
        checkpoints=hr.Checkpoints(str(tmp_path), interval="100ms"),
        restart=hr.Restart(attempts=1),
        parallelism=1,
    )
    with pytest.raises(hr.JobFailed, match=r"region 'log' failed: .*no such key"):
        job.run("threads")


def test_windows_behind_a_log_close_by_the_event_time_before_it(tmp_path: Path) -> None:
    second = 1_000_000
    times = [pa.array([s * second + k for s in range(60)], pa.timestamp("us")) for k in range(2)]
    rows = [pa.record_batch({"at": column, "n": list(range(60))}) for column in times]
    timed = hr.read.batches(rows, name="rows").with_watermark("at", "0s").logged(name="log")
    windows = timed.key_by("n").window(hr.tumbling("10s")).aggregate(n_rows=hr.count(), name="w")
    job = hr.Job(
        "timed",
        windows.write.collect(name="out"),
        windows.late.write.collect(name="late"),
        checkpoints=hr.Checkpoints(str(tmp_path), interval="50ms"),
        parallelism=2,
    )
    result = job.run("threads")
    assert sum(result.collected["out"]["n_rows"].to_pylist()) == 120
    assert result.collected["late"].num_rows == 0


def test_a_region_between_two_logs_may_hold_a_loop(tmp_path: Path) -> None:
    left = pc.field("left")

    def body(loop: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
        again = loop.filter(left > 0).select("sequence", left=left - 1)
        return again, loop.filter(left == 0)

    begun = numbers(3000, None).select("sequence", left=pc.field("key")).logged(name="in")
    done = begun.rebalance().iterate(body, name="rounds").logged(name="done")
    job = hr.Job(
        "looped",
        done.write.collect(name="out"),
        checkpoints=hr.Checkpoints(str(tmp_path), interval="50ms"),
        parallelism=2,
    )
    result = job.run("threads")
    assert sorted(result.collected["out"]["sequence"].to_pylist()) == list(range(3000))


def test_a_job_whose_output_ends_with_the_process_begins_anew(tmp_path: Path) -> None:
    for _ in range(2):
        job = hr.Job(
            "volatile",
            numbers(2000, None).logged(name="log").write.collect(name="out"),
            checkpoints=hr.Checkpoints(str(tmp_path), interval="50ms"),
            parallelism=2,
        )
        result = job.run("threads")
        assert sorted(result.collected["out"]["sequence"].to_pylist()) == list(range(2000))


def test_a_fresh_job_begins_its_logs_anew(tmp_path: Path) -> None:
    three(tmp_path, rate=None).run("threads")
    three(tmp_path, rate=None).run("threads", fresh="replace")
    check_output(tmp_path)


def a_job(folder: Path, **options: object) -> hr.Job:
    out = numbers(10, None).logged(name="log").write.collect(name="out")
    stated: dict[str, object] = {"checkpoints": hr.Checkpoints(str(folder)), **options}
    return hr.Job("small", out, parallelism=1, **stated)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "run", "reason"),
    [
        ({"checkpoints": None}, {}, "has logged edges, whose logs lie in the checkpoint directory"),
        ({"autoscale": hr.Autoscale(most=4)}, {}, "which autoscale does not know"),
        ({}, {"restore": 7}, "starts from 'auto', 'latest' or one of its savepoints"),
        ({}, {"restore": "latest"}, "no region of job 'small' has a complete checkpoint"),
        ({"regions": [hr.Region("nobody")]}, {}, "the job has no operator of that name"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    tmp_path: Path, options: dict[str, object], run: dict[str, object], reason: str
) -> None:
    with pytest.raises(hr.UserError, match=reason):
        a_job(tmp_path, **options).run("threads", **run)  # type: ignore[arg-type]


def test_regions_of_a_job_without_logged_edges_are_refused() -> None:
    job = hr.Job("one", numbers(10).write.collect(name="out"), regions=[hr.Region("out")])
    with pytest.raises(hr.UserError, match="no edge of it is logged"):
        job.plan()


def test_what_cannot_be_asked_of_a_running_job_is_refused(tmp_path: Path) -> None:
    handle = three(tmp_path, rows=None, rate=1000).start("threads")
    try:
        with pytest.raises(hr.UserError, match="not rescaled while it runs"):
            handle.rescale(3)
        with pytest.raises(hr.UserError, match="lies in its own checkpoint directory"):
            handle.savepoint(str(tmp_path / "elsewhere"))
        with pytest.raises(hr.UserError, match="cannot drain into a savepoint"):
            handle.stop_with_savepoint(drain=True)
    finally:
        handle.cancel()
        handle.wait(60)


def with_a_finished_region(folder: Path) -> hr.Job:
    """The numbers end soon; what reads them takes its time."""

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(0.2)
        return batch

    logged = numbers(2_000, None).logged(name="log")
    scored = logged.map_batches(slow, batch_size=50, name="slow")
    return hr.Job(
        "soon",
        scored.write.parquet(str(folder / "raw"), name="raw"),
        checkpoints=hr.Checkpoints(str(folder / "checkpoints"), interval="100ms"),
        parallelism=2,
    )


def test_a_region_that_has_finished_is_told_to_whom_asks_for_a_savepoint(tmp_path: Path) -> None:
    handle = with_a_finished_region(tmp_path).start("threads")
    session = session_of(handle)
    until(lambda: session.regions()["numbers"].phase is Phase.ENDED)
    assert handle.checkpoint() > 0, "of the regions that run"
    with pytest.raises(hr.HeadraceError, match=r"region 'numbers' has ended, .* no savepoint"):
        handle.savepoint()
    with pytest.raises(hr.HeadraceError, match=r"region 'numbers' has ended, .* no savepoint"):
        handle.stop_with_savepoint()
    others = {name: one.phase for name, one in session.regions().items() if name != "numbers"}
    assert set(others.values()) == {Phase.RUNNING}, "nothing was stopped"
    assert handle.wait(60).outcome == "finished"
    assert sorted(column(tmp_path / "raw", "sequence")) == list(range(2_000))


def test_a_stop_whose_savepoint_fails_in_the_middle_stops_the_whole_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = three(tmp_path, rows=None).start("threads")
    session = session_of(handle)
    until(lambda: all(status.checkpoints for status in session.regions().values()))

    def refuses(*_: object, **__: object) -> str:
        raise hr.HeadraceError("the savepoint failed: no space left")

    monkeypatch.setattr(session._running["numbers"], "stop_with_savepoint", refuses)
    with pytest.raises(hr.HeadraceError, match=r"no space left; .*, so the whole job stops"):
        handle.stop_with_savepoint()
    assert handle.wait(60).outcome == "stopped"


def test_a_region_that_starts_again_is_drained_like_the_one_before(tmp_path: Path) -> None:
    handle = three(tmp_path, rows=None).start("threads")
    session = session_of(handle)
    until(lambda: all(status.checkpoints for status in session.regions().values()))
    handle.drain()
    ordered: list[StopKind] = []

    class Again:
        _driver: Any

        def post(self, order: StopRequested) -> None:
            ordered.append(order.kind)

    again = Again()
    again._driver = again
    for name in ("numbers", "count"):
        session._repeat_orders(name, again)  # type: ignore[arg-type]
    assert ordered == [StopKind.DRAIN], "only the region that reads no log"
    assert handle.wait(60).outcome == "finished"


def in_batches(folder: Path, rate: float, every: str = "300ms") -> hr.Job:
    """Every number as it comes, and in batches."""
    logged = numbers(rate=rate).logged(name="log")
    return hr.Job(
        "batches",
        logged.write.parquet(str(folder / "raw"), name="raw"),
        logged.map_batches(lambda batch: batch, schema=logged.schema, name="pass").write.parquet(
            str(folder / "passed"), name="passed"
        ),
        checkpoints=hr.Checkpoints(str(folder / "checkpoints"), interval="100ms"),
        regions=[hr.Region("passed", policy="batch", interval=every)],
        parallelism=2,
    )


def check_batches(folder: Path) -> None:
    assert sorted(column(folder / "raw", "sequence")) == list(range(ROWS))
    assert sorted(column(folder / "passed", "sequence")) == list(range(ROWS))


def test_a_region_in_batches_reads_its_log_to_the_end_in_several_runs(tmp_path: Path) -> None:
    handle = in_batches(tmp_path, rate=6000).start("threads")
    until(lambda: handle.status().phase is Phase.RUNNING)
    ends: set[int] = set()
    while handle.status().phase is not Phase.ENDED:
        ends.add(len(session_of(handle).regions()["passed"].workers))
        time.sleep(0.01)
    assert handle.wait(60).outcome == "finished"
    check_batches(tmp_path)
    epochs = session_of(handle).regions()["passed"].epoch
    assert epochs >= 3, "each batch is a run"


@pytest.mark.kills
def test_a_batch_that_loses_a_worker_is_repeated_as_a_whole(tmp_path: Path) -> None:
    handle = in_batches(tmp_path, rate=4000).start("processes")
    kills = 0
    until(lambda: handle.status().phase is Phase.RUNNING)
    while kills < 2 and handle.status().phase is not Phase.ENDED:
        pids = session_of(handle).regions()["passed"].workers.values()
        for pid in list(pids)[:1]:
            try:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                pass
        time.sleep(0.4)
    assert kills
    assert handle.wait(120).outcome == "finished"
    check_batches(tmp_path)


def test_a_stop_between_batches_is_no_end_of_the_log(tmp_path: Path) -> None:
    handle = in_batches(tmp_path, rate=6000, every="1h").start("threads")
    until(lambda: len(session_of(handle).regions()["log"].checkpoints) > 0)
    until(lambda: session_of(handle).regions()["passed"].phase is Phase.ENDED)
    with pytest.raises(hr.UserError, match="runs in batches, which have no savepoints"):
        handle.savepoint()
    handle.stop()
    assert handle.wait(60).outcome == "stopped"
    assert in_batches(tmp_path, rate=1_000_000).run("threads").outcome == "finished"
    check_batches(tmp_path)


class _Past:
    """A session of a region, of which only its completed checkpoints matter."""

    def __init__(self, completed: int) -> None:
        self.completed = completed

    def status(self) -> _Past:
        return self


def test_a_region_that_goes_back_again_and_again_without_a_checkpoint_is_given_up(
    tmp_path: Path,
) -> None:
    job = a_job(tmp_path, restart=hr.Restart(attempts=2))
    session = object.__new__(RegionsSession)
    session._plan = job._regions_plan(job.options)
    session._rolled = {}
    count: Callable[[Any], None] = session._count
    count({"log": _Past(0)})
    count({"log": _Past(0)})
    count({"log": _Past(1)})
    for _ in range(2):
        count({"log": _Past(0)})
    with pytest.raises(hr.HeadraceError, match="'log' went back 3 times in a row without a"):
        count({"log": _Past(0)})

"""Whole jobs whose user code fails: the job says so, goes on, or ends; it never stands still."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.engine.contract.connectors import Delivery
from headrace.engine.contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateSnapshot,
    Transaction,
)
from headrace.engine.contract.options import Runner

WAIT_S = 20.0
SCHEMA = pa.schema([("x", pa.int64())])
ROWS = pa.table({"x": list(range(100))}).to_batches()
Row = dict[str, Any]


class Panic(BaseException):
    """As of an extension in Rust."""


WAYS_OUT: list[Callable[[], BaseException]] = [
    lambda: SystemExit(3),
    KeyboardInterrupt,
    lambda: asyncio.CancelledError("gone"),
    lambda: Panic("rust"),
]


def the_end(stream: hr.Stream, tmp_path: Path, runner: Runner = "threads", **options: Any) -> str:
    """Run a job that fails; the words it fails with."""
    job = hr.Job("job", stream.write.collect(name="out"), parallelism=1, max_parallelism=8)
    with pytest.raises(hr.JobFailed) as caught:
        job.start(runner, **options).wait(WAIT_S)
    return str(caught.value)


class Fails:
    """Raises what `way_out` makes where `where` says."""

    where = ""
    way_out: Callable[[], BaseException]

    def __init__(self) -> None:
        self._at("init")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._at("call")
        return batch

    def _at(self, place: str) -> None:
        if place == self.where:
            raise type(self).way_out()


def failing(place: str, made: Callable[[], BaseException]) -> type:
    return type("Model", (Fails,), {"where": place, "way_out": staticmethod(made)})


@pytest.mark.parametrize("way_out", WAYS_OUT)
@pytest.mark.parametrize("place", ["init", "call"])
def test_a_function_that_leaves_in_any_way_fails_the_job(
    place: str, way_out: Callable[[], BaseException], tmp_path: Path
) -> None:
    stream = hr.read.batches(ROWS, name="rows")
    text = the_end(stream.map_batches(failing(place, way_out), name="model"), tmp_path)
    assert "operator 'model' (test_user_failures.py:" in text
    assert type(way_out()).__name__ in text
    assert "gave up after 2 restarts" in text


#: A worker of its own process has a copy.
ALWAYS_THE_SAME = ValueError("made once")


def test_an_exception_made_once_is_the_same_failure_each_time(tmp_path: Path) -> None:
    def fails(row: Row) -> Row:
        raise ALWAYS_THE_SAME

    stream = hr.read.batches(ROWS, name="rows").map(fails, name="model")
    text = the_end(stream, tmp_path, restart=hr.Restart(attempts=9, backoff="1ms"))
    assert "gave up after 2 restarts" in text
    assert text.count("raise ALWAYS_THE_SAME") == 1


class Reader:
    """A source that fails where it is told to; it emits a row and then waits."""

    def __init__(self, place: str, error: BaseException) -> None:
        self._place, self._error = place, error
        self._sent = False
        self._at("init")

    def _at(self, place: str) -> None:
        if place == self._place:
            raise type(self._error)(*self._error.args)

    def open(self, context: OperatorContext) -> None:
        self._at("open")

    def restore(self, states: Sequence[RestoredState]) -> None:
        pass

    def poll(self, rows_max: int) -> Polled:
        self._at("poll")
        return Polled((), SourceStatus.IDLE, 1_000_000)

    def completed(self, checkpoint: int, states: Sequence[StateSnapshot]) -> None:
        self._at("completed")

    def commit(self) -> None:
        self._at("commit")

    def snapshot(self) -> Sequence[StateSnapshot]:
        self._at("snapshot")
        return ()

    def close(self) -> None:
        self._at("close")


class Source:
    """A user's own source."""

    schema = SCHEMA

    def __init__(self, place: str, error: BaseException) -> None:
        self._made = (place, error)

    def reader(self) -> Reader:
        return Reader(*self._made)


@pytest.mark.parametrize("error", [ValueError("no good"), SystemExit(3)])
@pytest.mark.parametrize("place", ["init", "open", "poll", "commit", "snapshot", "completed"])
def test_a_source_that_fails_anywhere_fails_the_job(
    place: str, error: BaseException, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = hr.read.from_source(Source(place, error), name="mine")
    options = hr.Checkpoints(str(tmp_path / "c"), interval="20ms")
    text = the_end(stream, tmp_path, checkpoints=options)
    assert "operator 'mine' (test_user_failures.py:" in text
    assert f"{type(error).__name__}: {error}" in text
    assert "Traceback" not in capfd.readouterr().err, "it is told once, and not by us"


@pytest.mark.parametrize(
    "error",
    [hr.UserError("topic 'a' does not exist"), hr.StorageUnreachable("b:9092 does not answer")],
)
def test_a_connector_that_does_not_open_is_told_by_its_name(
    error: hr.HeadraceError, tmp_path: Path
) -> None:
    source = hr.from_source(Source("open", error), name="orders")
    text = the_end(source, tmp_path, restart=hr.Restart(attempts=1, backoff="1ms"))
    assert re.search(rf"source 'orders' \(test_user_failures.py:\d+\): {error}", text), text
    rows = hr.read.batches(ROWS, name="rows")
    job = hr.Job("job", rows.write.to(Sink("open", error), name="totals"), parallelism=1)
    with pytest.raises(hr.JobFailed) as caught:
        job.start("threads", restart=hr.Restart(attempts=1, backoff="1ms")).wait(WAIT_S)
    told = rf"sink 'totals' \(test_user_failures.py:\d+\): {error}"
    assert re.search(told, str(caught.value)), str(caught.value)


class Writer(Reader):
    """A sink that fails where it is told to."""

    def write(self, batch: pa.RecordBatch) -> None:
        self._at("write")

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        self._at("precommit")
        return ()


class Sink:
    """A user's own sink."""

    def __init__(self, place: str, error: BaseException) -> None:
        self._made = (place, error)

    delivery: Delivery = "at-least-once"

    def check(self, schema: pa.Schema) -> None:
        pass

    def writer(self) -> Writer:
        return Writer(*self._made)

    def committer(self, job: str, name: str) -> None:
        return None


@pytest.fixture
def shipped() -> Iterator[None]:
    """This module travels to worker processes, which cannot import it."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def failing_job(place: str, error: BaseException) -> hr.Job:
    """A job whose function, source or sink fails at `place`."""
    rows = hr.read.batches(ROWS, name="rows")
    if place == "poll":
        rows = hr.read.from_source(Source(place, error), name="mine")
    if place in ("init", "call"):
        rows = rows.map_batches(failing(place, lambda: error), name="mine")
    sink = Sink(place, error) if place == "write" else None
    end = rows.write.to(sink, name="mine") if sink else rows.write.collect(name="out")
    return hr.Job("job", end, parallelism=1, max_parallelism=8)


@pytest.mark.parametrize("way_out", WAYS_OUT, ids=lambda made: type(made()).__name__)
@pytest.mark.parametrize("place", ["init", "call", "poll", "write"])
def test_code_that_leaves_a_worker_process_in_any_way_fails_the_job(
    place: str, way_out: Callable[[], BaseException], shipped: None, tmp_path: Path
) -> None:
    error = way_out()
    job = failing_job(place, error)
    options: dict[str, Any] = {"restart": hr.Restart(attempts=1, backoff="1ms")}
    if place == "write":
        options["checkpoints"] = str(tmp_path / "c")
    with pytest.raises(hr.JobFailed) as caught:
        job.start("processes", **options).wait(WAIT_S)
    assert "operator 'mine' (test_user_failures.py:" in str(caught.value)
    assert type(error).__name__ in str(caught.value)
    assert "gave up after 1 restarts" in str(caught.value)


@pytest.mark.parametrize("place", ["init", "open", "write", "precommit"])
def test_a_sink_that_fails_is_told_by_name_and_line(place: str, tmp_path: Path) -> None:
    sink = hr.read.batches(ROWS, name="rows").write.to(Sink(place, IndexError("7")), name="mine")
    job = hr.Job("job", sink, parallelism=1, max_parallelism=8)
    with pytest.raises(hr.JobFailed, match=r"'mine' \(test_user_failures.py:\d+\): IndexError: 7"):
        job.start("threads", checkpoints=str(tmp_path / "c")).wait(WAIT_S)


def test_a_passing_failure_at_the_start_is_worth_a_restart(tmp_path: Path) -> None:
    tries: list[int] = []

    class Model:
        def __init__(self) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise ConnectionError("the licence server is down")

        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch

    stream = hr.read.batches(ROWS, name="rows").map_batches(Model)
    job = hr.Job("job", stream.write.collect(name="out"), parallelism=1, max_parallelism=8)
    result = job.start("threads").wait(WAIT_S)
    assert result.restarts == 2
    assert result.collected["out"].num_rows == 100


def test_a_record_that_cannot_travel_fails_the_job_with_its_size(tmp_path: Path) -> None:
    def large(row: Row) -> Row:
        return {"x": row["x"], "blob": b"x" * (70 << 20 if row["x"] == 5 else 10)}

    stream = hr.read.batches(ROWS, name="rows")
    schema = pa.schema([("x", pa.int64()), ("blob", pa.binary())])
    blobs = stream.map(large, schema=schema, name="blobs").broadcast()
    job = hr.Job("job", blobs.write.blackhole(name="out"), parallelism=2, max_parallelism=8)
    with pytest.raises(hr.JobFailed) as caught:
        job.start("processes").wait(WAIT_S)
    assert "operator 'blobs' (test_user_failures.py:" in str(caught.value)
    assert "a record of 70.0 MiB cannot travel to another worker" in str(caught.value)


# --- on_error -------------------------------------------------------------------------------------


def odd_only(row: Row) -> Row:
    if row["x"] % 10 == 0:
        raise ValueError(f"{row['x']} is round")
    return row


def test_dead_letters_carry_operator_error_and_record() -> None:
    good = hr.read.batches(ROWS, name="rows").map(odd_only, on_error="route", name="odd")
    job = hr.Job(
        "job",
        good.errors.write.collect(name="dead"),
        good.write.collect(name="out"),
        parallelism=2,
        max_parallelism=8,
    )
    found = job.start("threads").wait(WAIT_S).collected
    dead = sorted(found["dead"].to_pylist(), key=lambda letter: letter["record"]["x"])
    assert [letter["record"]["x"] for letter in dead] == list(range(0, 100, 10))
    assert dead[1] == {
        "operator": "odd",
        "error": "ValueError",
        "message": "10 is round",
        "record": {"x": 10},
    }
    assert sorted(found["out"]["x"].to_pylist()) == [x for x in range(100) if x % 10]


def test_dead_letters_come_once_through_a_restart(tmp_path: Path) -> None:
    failed: list[int] = []

    def fails_once(row: Row) -> Row:
        if row["sequence"] == 3_000 and not failed:
            failed.append(1)
            raise ConnectionError("once")
        return row

    def even(row: Row) -> Row:
        if row["sequence"] % 2:
            raise ValueError("odd")
        return row

    numbers = hr.read.sequence(4_000, keys=7, name="numbers", rate=8_000.0)
    good = numbers.map(even, on_error="route", name="even")
    sinks = [
        good.errors.rebalance().write.parquet(str(tmp_path / "dead"), name="dead"),
        good.rebalance().map(fails_once).write.parquet(str(tmp_path / "out"), name="out"),
    ]
    job = hr.Job("job", *sinks, parallelism=2, max_parallelism=8)
    options = hr.Checkpoints(str(tmp_path / "c"), interval="50ms", mode="unaligned")
    result = job.start("threads", checkpoints=options).wait(WAIT_S * 3)
    assert result.restarts == 1
    dead = [letter["sequence"] for letter in pq.read_table(tmp_path / "dead")["record"].to_pylist()]
    out = pq.read_table(tmp_path / "out")["sequence"].to_pylist()
    assert sorted(dead) == list(range(1, 4_000, 2))
    assert sorted(out) == list(range(0, 4_000, 2))


@pytest.mark.parametrize("fused", [True, False])
def test_dropped_records_are_counted_and_told(fused: bool) -> None:
    good = hr.read.batches(ROWS, name="rows").map(odd_only, on_error="skip", name="odd")
    behind = good.map(lambda row: row) if fused else good.rebalance()
    job = hr.Job("job", behind.write.collect(name="out"), parallelism=1, max_parallelism=8)
    handle = job.start("threads")
    result = handle.wait(WAIT_S)
    assert result.collected["out"].num_rows == 90
    told = [notice.text for _, notice in handle.status().notices if "dropped" in notice.text]
    assert len(told) == 1
    assert "failed and been dropped (on_error=\"skip\"), the last in operator 'odd'" in told[0]
    assert re.search(r"\(test_user_failures.py:\d+\): ValueError: \d+ is round for record", told[0])
    (failed,) = [n for name, n in handle.metrics().items() if "failed" in name and "odd" in name]
    assert failed == 10


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_the_batch_at_which_a_function_failed_is_kept_beside_the_checkpoints(
    runner: Runner, tmp_path: Path
) -> None:
    def odd(row: Row) -> Row:
        if row["x"] == 8:
            raise ValueError("8 is round")
        return row

    doubled = hr.read.batches(ROWS, name="rows").map(lambda row: {"x": 2 * row["x"]}, name="double")
    job = hr.Job(
        "job",
        doubled.map(odd, name="odd").write.collect(name="out"),
        parallelism=1,
        checkpoints=hr.Checkpoints(str(tmp_path)),
        restart=hr.Restart(attempts=0),
    )
    place = f"{tmp_path}/job/failed/odd-0.arrow"
    with pytest.raises(hr.JobFailed, match=f"8 is round.*; the batch at hand goes to {place}"):
        job.start(runner).wait(WAIT_S)
    kept = pa.ipc.open_file(place).read_all()["x"].to_pylist()
    assert 8 in kept
    assert kept == list(range(0, 2 * len(kept), 2)), "as the function was given it"


# --- output ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_user_code_prints_to_standard_error_with_its_name(
    runner: Runner, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout

    def printing(row: Row) -> Iterator[Row]:
        print("seen", row["x"], "", end="\n" if row["x"] % 2 else "")
        yield row

    stream = hr.read.batches(pa.table({"x": [0, 1, 2]}).to_batches(), name="rows").map(
        lambda row: row
    )
    spoken = stream.flat_map(printing, name="loud")
    job = hr.Job("job", spoken.write.collect(name="out"), parallelism=1, max_parallelism=8)
    job.start(runner).wait(WAIT_S)
    assert sys.stdout is before
    out, err = capfd.readouterr()
    assert out == ""
    assert [line for line in err.splitlines() if "seen" in line] == [
        "[loud/0] seen 0 seen 1 ",
        "[loud/0] seen 2 ",
    ]


@pytest.mark.parametrize("runner", ["threads", "processes"])
@pytest.mark.parametrize("way", ["coroutine", "threads", "isolated"])
def test_calls_elsewhere_print_to_standard_error_with_their_operators_name(
    runner: Runner, way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    class Loud:
        def __init__(self) -> None:
            print("made")

        def __call__(self, row: Row) -> Row:
            print("seen", row["x"])
            return row

    async def loud(row: Row) -> Row:
        await asyncio.sleep(0)
        return Loud()(row)

    stream = hr.read.batches(pa.table({"x": [1]}).to_batches(), name="rows")
    match way:
        case "coroutine":
            spoken = stream.map_async(loud, name="loud")
        case "threads":
            spoken = stream.map_async(Loud, name="loud")
        case _:
            spoken = stream.map(lambda row: Loud()(row), name="loud", isolate=True)
    job = hr.Job("job", spoken.write.collect(name="out"), parallelism=1, max_parallelism=8)
    job.start(runner).wait(WAIT_S)
    out, err = capfd.readouterr()
    assert out == ""
    assert [line for line in err.splitlines() if "made" in line or "seen" in line] == [
        "[loud/0] made",
        "[loud/0] seen 1",
    ]

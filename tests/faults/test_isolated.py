"""Jobs with functions in processes of their own: records once, checkpoints while a call holds its
GIL, and a failure like any other when such a process dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.contract.options import Runner
from headrace.engine.coordinator.coordinator_events import NoticeKind

from .conftest import WAIT_S, is_alive, wait_for

ROWS = 2_000
SEEN = pa.schema([("sequence", pa.int64()), ("process", pa.int64())])


def notices(handle: hr.JobHandle, kind: NoticeKind) -> list[str]:
    return [notice.text for _, notice in handle.status().notices if notice.kind is kind]


@contextlib.contextmanager
def running(job: hr.Job, runner: Runner = "processes") -> Iterator[hr.JobHandle]:
    handle = job.start(runner, restart=hr.Restart(backoff="0.1s"))
    try:
        yield handle
    finally:
        handle.cancel()


def job(scored: hr.Stream, **options: object) -> hr.Job:
    out = scored.write.collect(name="out")
    return hr.Job("isolated", out, parallelism=2, max_parallelism=16, **options)  # type: ignore[arg-type]


def sequences(result: hr.JobResult) -> list[int]:
    return sorted(result.collected["out"]["sequence"].to_pylist())


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_an_isolated_function_runs_elsewhere_and_its_prints_go_to_stderr(
    runner: Runner, capfd: pytest.CaptureFixture[str]
) -> None:
    def score(row: dict[str, int]) -> dict[str, int]:
        import os

        if row["sequence"] == 7:
            print("seven", flush=True)
        return {"sequence": row["sequence"], "process": os.getpid()}

    source = hr.read.sequence(ROWS, name="numbers")
    with running(job(source.map(score, SEEN, name="score", isolate=True)), runner) as handle:
        result = handle.wait(WAIT_S)
        workers = set(handle.status().workers.values())
    assert sequences(result) == list(range(ROWS))
    found = set(result.collected["out"]["process"].to_pylist())
    assert len(found) == 2
    assert not found & (workers | {os.getpid()})
    wait_for(lambda: not any(map(is_alive, found)), "their end")
    said = capfd.readouterr()
    assert said.out == ""
    (line,) = [line for line in said.err.splitlines() if line.endswith("] seven")]
    assert line.startswith("[score/")


def test_checkpoints_do_not_wait_for_an_isolated_call(tmp_path: Path) -> None:
    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        import ctypes

        ctypes.PyDLL(None).usleep(2_000_000)
        return batch

    source = hr.read.sequence(None, name="numbers", rate=500.0)
    scored = source.rebalance().map_batches(score, name="score", isolate=True)
    checkpoints = hr.Checkpoints(str(tmp_path), interval="0.2s", mode="unaligned")
    with running(job(scored, checkpoints=checkpoints)) as handle:
        wait_for(lambda: handle.status().completed >= 12, "checkpoints")
        took_ms = sorted(c.duration_ns / 1e6 for c in handle.status().checkpoints)
    assert took_ms[-1] < 1_000, took_ms


def test_the_death_of_an_isolated_process_fails_the_attempt_and_the_job_goes_on(
    tmp_path: Path,
) -> None:
    mark = str(tmp_path / "died")

    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        import os

        if 1_000 in batch["sequence"].to_pylist() and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), 11)
        return batch

    source = hr.read.sequence(ROWS, name="numbers", rate=2_000.0)
    with running(job(source.map_batches(score, name="score", isolate=True))) as handle:
        result = handle.wait(WAIT_S)
        (failed,) = notices(handle, NoticeKind.ATTEMPT_FAILED)
    assert sequences(result) == list(range(ROWS))
    told = "operator 'score': its isolated process was killed by SIGSEGV during a call"
    assert failed.partition(": ")[2] == told


def test_isolated_processes_end_with_their_worker() -> None:
    def score(batch: pa.RecordBatch) -> dict[str, list[int]]:
        import ctypes

        ctypes.PyDLL(None).usleep(30_000_000)
        return {}

    source = hr.read.sequence(ROWS, name="numbers")
    with running(job(source.map_batches(score, name="score", isolate=True))) as handle:
        pid = wait_for(lambda: handle.status().workers.get(0), "a worker")
        (companion,) = wait_for(lambda: children(pid), "its companion")
        isolated = wait_for(lambda: children(companion), "the isolated process")
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, [companion, *isolated])), "their end")


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
